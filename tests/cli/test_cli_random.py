"""Random options: no traceback, no NaN, and no status 1, which is for a refuted claim.

Plans are made; the other commands are asked for what is refused or listed without computing.
"""

import dataclasses
import importlib
import random
import re

import pytest
from problems import soak

from dd_jax import cli
from dd_jax.cli.options import flag
from dd_jax.constants import CATALOGUE
from dd_jax.plans.settings import FORMULAS

ODD = ("0", "-1", "1", "nan", "inf", "-inf", "1e-320", "1e308", "1e400", "x", "", "1e200", "1e-200")
COUNTS = ("1", "2", "3", "10", "1000", "0", "-1", "9" * 20, str(10**300), "1.5")
OWN = {
    "huber": ["--threshold"],
    "smoothed_hinge": ["--smoothing"],
    "squared": ["--label-bound"],
    "bounded_network": ["--output-norm"],
}
NEEDED = {"softmax": ["--num-classes", "3"], "bounded_network": ["--hidden", "3"]}
BATCHES = ("auto", "2", "10", "shuffled", "iid", "poisson", "0", "x")
WORDS = ("x", "auto", "none", "logistic", "nowhere", "/", "/dev/full", "/proc/x", "a/b", "-", "é")
# What comes before the random options of other commands.
OTHERS = {
    "run": "--data nowhere.csv",
    "sweep": "--data nowhere.csv",
    "audit": "--list",
    "attack": "--list",
    "data": "",
    "check": "nowhere",
    "curate": "status nowhere",
    "predict": "nowhere.npz --data nowhere.csv",
    "targets": "nowhere",
}


def number(chance: random.Random) -> str:
    if chance.random() < 0.3:
        return chance.choice(ODD)
    return f"{10 ** chance.uniform(*chance.choice([(-300, 300), (-4, 4)])):.6g}"


def plan(chance: random.Random) -> list[str]:
    """A plan that can be made, with a few of its options replaced by any number."""
    loss = chance.choice(CATALOGUE)
    options = {"--n": "1000", "--dim": "5", "--l2": ".05", "--eps-dp": "1", "--eps-dd": ".1"}
    options |= {"--loss": loss, "--order": "2"}
    options |= dict([NEEDED[loss]] if loss in NEEDED else [])
    kind = "nonconvex" if loss in ("tanh_margin", "bounded_network") else "convex"
    switches = ["--json"] * (chance.random() < 0.5)
    if kind == "nonconvex":
        switches.append("--nonconvex")
        options["--noise-variance"] = str(10 ** chance.uniform(-2, 3))
    elif chance.random() < 0.3:
        del options["--order"]
        options["--delta"] = "1e-5"
    floats = ["--l2", "--eps-dp", "--eps-dd", "--step-size", "--noise-variance", "--target-risk"]
    floats += ["--feature-norm", "--clip-norm", *OWN.get(loss, [])]
    floats += [name for name in ("--order", "--delta") if name in options]
    whole = ["--n", "--dim", "--edits-per-request", "--adaptivity", "--request", "--learn-steps"]
    for _ in range(chance.randrange(4)):
        if chance.random() < 0.7:
            options[chance.choice(floats)] = number(chance)
        else:
            options[chance.choice(whole)] = chance.choice(COUNTS)
    if chance.random() < 0.15:
        options["--batches"] = chance.choice(BATCHES)
    if chance.random() < 0.15:
        options["--accountant"] = chance.choice(FORMULAS[kind])
    return ["plan", *(word for pair in options.items() for word in pair), *switches]


def options_of(kind: type) -> list[str]:
    """All options of a command."""
    found = []
    for field in dataclasses.fields(kind):
        shared = dataclasses.is_dataclass(field.default)
        found += options_of(type(field.default)) if shared else [flag(field.name)]
    return found


def other(chance: random.Random) -> list[str]:
    """A command that has nothing to compute, with options of any value."""
    name = chance.choice(list(OTHERS))
    words = [name, *OTHERS[name].split()]
    known = options_of(importlib.import_module(f"dd_jax.cli.{name}").Config)
    # Other processes are not waited for here.
    known = [option for option in known if option not in {*words, "--distributed"}]
    for option in chance.sample(known, min(chance.randrange(4), len(known))):
        words += [option, chance.choice([number(chance), *COUNTS, *WORDS])][: chance.choice((1, 2))]
    return words


@pytest.mark.parametrize("part", range(soak(1, 10)))
def test_random_options_end_with_a_result_or_one_line(part, capsys):
    chance, statuses = random.Random(part), []
    for _ in range(soak(30, 500)):
        words = (plan if chance.random() < 0.7 else other)(chance)
        status = cli.main(words)
        out, err = capsys.readouterr()
        asked = " ".join(words)
        assert status in (0, 2), (asked, err)
        assert not re.search(r"\bnan\b|NaN", out), asked
        assert "Traceback" not in err, asked
        if status == 2:
            said = [line for line in err.splitlines() if not line.endswith("…")]  # of progress
            assert (out, len(said)) == ("", 1), (asked, err)
        statuses.append(status)
    assert {0, 2} == set(statuses)
