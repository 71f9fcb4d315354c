import json

import numpy as np
from shown import shown

from experiments.cache import Runner
from experiments.figures import targets


def test_the_kept_answers_are_whole_and_say_who_made_them():
    config = targets.Config()
    results = targets.compute(config, Runner())
    (rows,) = shown(targets, config, results)
    values = json.loads(targets.FILE.read_text())
    assert values["made"]
    for answer in values["answers"]:
        assert answer["compiler"]
        assert answer["jax"]
        assert answer["collectives"] == {}
    assert len(rows) == len(values["answers"]) == len(results["step"])
    # The time of a step is never below its bounds.
    for limit in targets.LIMITS:
        assert np.all(results["step"] >= 0.999 * results[limit])


def test_no_share_of_the_roofline_is_above_one():
    share = targets.compute(targets.Config(), Runner())["share"]
    assert np.all((share > 0) & (share <= 1) | np.isnan(share))
