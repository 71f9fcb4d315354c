"""`dd-jax run --l2 auto --tune DATA`: a good λ on public data, whatever the private rows are."""

import functools
import json

import jax
import numpy as np
import pytest

import dd_jax as dd
from dd_jax import cli, constants
from dd_jax.cli import serving, tuning
from dd_jax.constants import ProblemConstants
from dd_jax.data.encoding import Bounds
from dd_jax.data.own_file import load_file

N, DIM = 60, 3
BUDGETS = {"order": 2.0, "eps_dp": 1.0, "eps_dd": 0.5}
OF_LOSS = {"constants": constants.logistic(), "classes": 2, "loss": None, "intercept": False}
KNOWN = {"around": 0.1, "n": N, "dim": DIM, "say": str, **OF_LOSS, **BUDGETS}


def records(path, seed, classes=("down", "up"), n=80):
    """A file with names, two features in [-1, 1], and a class that follows the first of them."""
    values = np.random.default_rng(seed).uniform(-1, 1, (n, 2))
    found = np.minimum(len(classes) * (values[:, 0] + 1) / 2, len(classes) - 1).astype(int)
    lines = [
        f"P{row},{a:.6f},{b:.6f},{classes[which]}\n"
        for row, ((a, b), which) in enumerate(zip(values, found, strict=True))
    ]
    path.write_text("name,a,b,y\n" + "".join(lines))
    return path


def loaded(path):
    return load_file(path, label="y", ids="name", bounds=Bounds(lower=-1, upper=1))


@pytest.fixture(scope="module")
def public(tmp_path_factory):
    return loaded(records(tmp_path_factory.mktemp("public") / "public.csv", seed=0, n=120))


def test_the_largest_within_one_standard_error_of_the_best_is_taken(public, monkeypatch):
    """32 held-out rows: the error of .9 is √(.88 · .12 / 32) = .058."""
    assert len(public.test.label) == 32
    accuracies = iter((0.5, 0.83, 0.85, 0.9, 0.9, 0.6, 0.5))
    monkeypatch.setattr(tuning, "_accuracy", lambda *_: next(accuracies))
    chosen = tuning.choose(public, "some", **KNOWN)
    tried = [one.l2 for one in chosen.tried]
    np.testing.assert_allclose(tried, [10 ** (half / 2) for half in (0, -1, -2, -3, -4, -5, -6)])
    assert chosen.l2 == tried[2]
    for said in ("0.850", "0.900", "some"):
        assert said in chosen.words


def test_accuracies_are_those_of_models_learned_with_the_private_plan(public):
    batches = 4
    chosen = tuning.choose(public, "some", **KNOWN, batches=batches)
    problem = dd.Problem(dd.losses.logistic(), chosen.l2)
    plan = dd.plan_convex(problem, n=N, dim=DIM, batches=batches, **BUDGETS)
    train = tuning._some(public.train, N)
    assert len(train.label) == N < len(public.train.label)
    mechanism = dd.noisy_gd.mechanism(problem, dd.noisy_gd.Schedule.of(plan))
    right = []
    for seed in range(tuning.SEEDS):
        state = mechanism.learn(jax.random.fold_in(jax.random.key(0), seed), train)
        model = np.asarray(state.model)
        right.append(public.test.features @ model * public.test.label > 0)
    (found,) = (one.accuracy for one in chosen.tried if one.l2 == chosen.l2)
    assert found == pytest.approx(np.mean(right), abs=1 / np.size(right))
    assert len({one.accuracy for one in chosen.tried}) > 1


def test_private_rows_do_not_matter(public, tmp_path):
    """Same sizes and names, other rows: the same choice, bit for bit."""
    found = []
    for seed in (1, 2):
        data = loaded(records(tmp_path / "private.csv", seed))
        tune = functools.partial(tuning.choose, public, "some", say=str)
        options = {"loss": None, "l2": "auto", "intercept": True, "tune": tune, **BUDGETS}
        found.append((data, serving.make(data, np.array([[0], [1]]), **options)))
    (one, first), (other, second) = found
    assert not np.array_equal(one.train.features, other.train.features)
    assert (first.tried, first.assumed) == (second.tried, second.assumed)
    assert first.plan == second.plan
    assert first.plan.problem.l2 in [one.l2 for one in first.tried]


def test_plans_that_take_too_long_or_do_not_exist_are_left_out(public, monkeypatch):
    problems = [ProblemConstants(constants.logistic(), l2) for l2 in (0.1, 0.1 / 10**0.5)]
    kept, costly = (dd.plan_convex(p, n=N, dim=DIM, **BUDGETS).learn_steps for p in problems)
    assert kept < costly
    size = len(tuning._some(public.train, N).label) * 2 * tuning.SEEDS
    monkeypatch.setattr(tuning, "_MOST_WORK", size * kept)
    assert min(one.l2 for one in tuning.choose(public, "some", **KNOWN).tried) == 0.1
    monkeypatch.setattr(tuning, "_MOST_WORK", 0)
    with pytest.raises(dd.InputError, match="give --l2"):
        tuning.choose(public, "some", **KNOWN)
    with pytest.raises(dd.InputError, match="eps_dp"):
        tuning.choose(public, "some", **(KNOWN | {"eps_dp": -1.0}))


def test_the_answer_says_what_was_tried(tmp_path, capsys):
    records(tmp_path / "my.csv", seed=1)
    public = records(tmp_path / "public.csv", seed=0)
    how = "--label y --id name --lower -1 --upper 1 --test-fraction 0 --seed 0 --seeds 1"
    words = ["run", "--data", str(tmp_path / "my.csv"), *how.split(), "--requests", "1"]
    assert cli.main([*words, "--l2", "auto", "--tune", str(public), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["plan"]["l2"] in [one["l2"] for one in values["tried"]]
    assert str(public) in values["assumed"][0]


BAD = [
    ("--tune public.csv", "--l2 auto"),
    ("--l2 0.1 --tune public.csv", "--l2 auto"),
    ("--l2 auto --tune ./my.csv", "private"),
    ("--l2 auto --tune nowhere", "nowhere"),
    ("--l2 auto --tune three.csv", "3 classes"),
    ("--l2 auto --tune few.csv", "few.csv"),
    ("--l2 auto --tune public.csv --loss tanh_margin", "convex"),
]


@pytest.mark.parametrize(("options", "word"), BAD)
def test_bad_input_is_one_line_before_anything_is_computed(
    options, word, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(tuning, "_accuracy", None)
    monkeypatch.chdir(tmp_path)
    records(tmp_path / "my.csv", seed=1)
    records(tmp_path / "public.csv", seed=0)
    records(tmp_path / "three.csv", seed=0, classes=("a", "b", "c"))
    records(tmp_path / "few.csv", seed=0, n=3)
    words = ["run", "--data", "my.csv", "--label", "y", "--drop", "name", *options.split()]
    assert cli.main(words) == 2
    done = capsys.readouterr()
    lines = [line for line in done.err.splitlines() if not line.endswith("…")]
    assert (len(lines), done.out) == (1, "")
    assert word in lines[0]
