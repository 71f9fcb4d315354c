import numpy as np
import pytest

import dd_jax as dd
from dd_jax import data

SIZES = {"digits-3-vs-8": (267, 90, 64), "breast-cancer": (426, 143, 30)}


@pytest.mark.parametrize("name", SIZES)
def test_bundled_data_lies_in_the_logistic_domain(name):
    loaded = data.load(name)
    n, held_out, dim = SIZES[name]
    assert loaded.train.features.shape == (n, dim)
    assert loaded.test.features.shape == (held_out, dim)
    for records in (loaded.train, loaded.test):
        dd.losses.logistic().domain.check(records)
        np.testing.assert_allclose(np.linalg.norm(records.features, axis=1), 1, rtol=1e-6)
        assert set(np.unique(records.label)) == {-1.0, 1.0}


def test_train_and_test_share_no_row():
    loaded = data.load("breast-cancer")
    train = {row.tobytes() for row in np.asarray(loaded.train.features)}
    assert not any(row.tobytes() in train for row in np.asarray(loaded.test.features))


def test_bad_requests_are_refused():
    with pytest.raises(dd.InputError) as error:
        data.load("mnist")
    assert str(error.value) == ("no data set 'mnist'; choose one of breast-cancer, digits-3-vs-8.")
    with pytest.raises(dd.InputError, match="test_share = 1; give a share between 0 and 1"):
        data.load("digits-3-vs-8", test_share=1)
