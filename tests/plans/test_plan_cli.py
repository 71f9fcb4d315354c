"""`dd-jax plan`: the keys, the table, one line for bad input, and never JAX."""

import json
import os
import subprocess
import sys
import time

import pytest

from dd_jax import cli, constants
from dd_jax.constants import LossConstants, ProblemConstants
from dd_jax.plans import plan_convex, plan_nonconvex

BASE = ["plan", "--n", "1000", "--dim", "10", "--l2", "0.1", "--eps-dp", "1", "--eps-dd", "0.1"]
LOGISTIC = [*BASE, "--loss", "logistic", "--order", "2"]
TANH = [*BASE, "--loss", "tanh_margin", "--order", "2"]
KEYS = {
    "step_size", "noise_variance", "init_variance", "learn_steps", "delete_steps", "eps_dp",
    "eps_dd", "eps_dd_adaptive", "advantage_bound", "risk_bound", "accountant", "assumptions",
    "warnings",
}  # fmt: skip


def run(capsys, arguments):
    status = cli.main(arguments)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def run_json(capsys, arguments):
    status, out, _ = run(capsys, [*arguments, "--json"])
    assert status == 0
    return json.loads(out)


def test_json_is_the_plan_and_its_certificate(capsys):
    found = run_json(capsys, [*LOGISTIC, "--adaptivity", "2", "--request", "3"])
    assert found.keys() >= KEYS
    problem = ProblemConstants(constants.logistic(), 0.1)
    plan = plan_convex(problem, n=1000, dim=10, order=2.0, eps_dp=1.0, eps_dd=0.1)
    certificate = plan.certificate(2, 3)
    for name in ("step_size", "noise_variance", "init_variance", "learn_steps", "delete_steps"):
        assert found[name] == getattr(plan, name)
    for name in ("eps_dp", "eps_dd", "eps_dd_adaptive", "advantage_bound", "risk_bound"):
        assert found[name] == getattr(certificate, name)
    assert found["warnings"] == list(certificate.warnings)
    assert found["assumptions"][0] == {
        "statement": "logistic is convex in the model",
        "established": "proved for this loss",
    }
    assert list(found["accountants"]) == ["optimal", "unrelaxed", "paper"]
    assert found["accountants"]["optimal"]["delete_steps"] == plan.delete_steps


def test_table_shows_the_three_accountants(capsys):
    status, out, _ = run(capsys, LOGISTIC)
    assert status == 0
    for text in (
        "optimal",
        "unrelaxed",
        "paper",
        "K_L",
        "K_U",
        "σ²",
        "risk bound",
        "Certificate",
    ):
        assert text in out
    status, out, _ = run(capsys, [*BASE, "--loss", "logistic", "--delta", "1e-5"])
    assert status == 0
    assert "paper: (ε, δ) budgets go through Gaussian DP" in out


@pytest.mark.parametrize("accountant", ["optimal", "unrelaxed", "paper"])
def test_accountant_is_chosen(capsys, accountant):
    found = run_json(capsys, [*LOGISTIC, "--accountant", accountant])
    assert found["accountant"] == accountant
    assert found["delete_steps"] == found["accountants"][accountant]["delete_steps"]


def test_nonconvex(capsys):
    arguments = [*TANH, "--nonconvex", "--noise-variance", "4"]
    found = run_json(capsys, arguments)
    problem = ProblemConstants(constants.tanh_margin(), 0.1)
    plan = plan_nonconvex(
        problem, n=1000, dim=10, order=2.0, eps_dp=1.0, eps_dd=0.1, noise_variance=4.0
    )
    assert found["learn_steps"] == plan.learn_steps
    assert list(found["accountants"]) == ["sharp", "refined", "tuned", "paper"]
    assert found["kind"] == "nonconvex"


LOSSES = {
    "logistic --feature-norm 2 --intercept": constants.logistic(feature_norm=2.0, intercept=True),
    "smoothed_hinge --smoothing 0.5": constants.smoothed_hinge(smoothing=0.5),
    "huber --threshold 0.3": constants.huber(threshold=0.3),
    "linear": constants.linear(),
    "softmax --num-classes 4": constants.softmax(num_classes=4),
    "squared --clip-norm 0.5": constants.squared(),
    "squared --label-bound 2 --protects label": constants.squared(label_bound=2.0),
}


@pytest.mark.parametrize("words", LOSSES)
def test_losses_of_the_catalogue(capsys, words):
    found = run_json(capsys, [*BASE, "--order", "2", "--loss", *words.split()])
    clip_norm = 0.5 if "clip" in words else None
    plan = plan_convex(
        ProblemConstants(LOSSES[words], 0.1, clip_norm),
        n=1000,
        dim=10,
        order=2.0,
        eps_dp=1.0,
        eps_dd=0.1,
        protects="label" if "label" in words else "record",
    )
    assert found["noise_variance"] == plan.noise_variance
    assert found["delete_steps"] == plan.delete_steps


def test_bounded_network(capsys):
    arguments = [*BASE, "--order", "2", "--nonconvex", "--loss", "bounded_network"]
    found = run_json(capsys, [*arguments, "--hidden", "4", "--output-norm", "0.5"])
    assert found["eps_dd"] <= 0.1


def test_declared_loss(capsys):
    arguments = [*BASE, "--order", "2", "--lipschitz", "2", "--smoothness", "3"]
    found = run_json(capsys, arguments)
    loss = LossConstants("the declared loss", True, False, lipschitz=2.0, smoothness=3.0)
    plan = plan_convex(
        ProblemConstants(loss, 0.1), n=1000, dim=10, order=2.0, eps_dp=1.0, eps_dd=0.1
    )
    assert found["noise_variance"] == plan.noise_variance
    assert found["assumptions"][0]["established"] == "declared by the user"
    clipped = run_json(capsys, [*arguments, "--clip-norm", "1", "--single-index"])
    assert clipped["noise_variance"] < found["noise_variance"]


def test_larger_constants_of_a_catalogue_loss_are_accepted(capsys):
    loose = run_json(capsys, [*LOGISTIC, "--lipschitz", "2"])
    tight = run_json(capsys, LOGISTIC)
    assert loose["noise_variance"] == pytest.approx(4 * tight["noise_variance"])


BAD = {
    "no unit": (
        [*BASE, "--loss", "logistic"],
        "give either order (budgets are Rényi divergences of that order) or delta (budgets are the "
        "ε of (ε, δ)), and not both.",
    ),
    "no smoothness": (
        [*BASE, "--order", "2", "--lipschitz", "1"],
        "smoothness of the declared loss is not known: the certificate needs β, the smoothness of "
        "one record's loss; declare smoothness, or use a loss of the catalogue that has it.",
    ),
    "smaller constant": (
        [*LOGISTIC, "--lipschitz", "0.5"],
        "--lipschitz 0.5 contradicts logistic, which has 1; drop --lipschitz, or drop --loss to "
        "declare a loss of your own.",
    ),
    "constant that does not exist": (
        [*LOGISTIC, "--bound", "1"],
        "--bound 1 contradicts logistic, which has no such constant; drop --bound, or drop --loss "
        "to declare a loss of your own.",
    ),
    "classes": (
        [*BASE, "--order", "2", "--loss", "softmax"],
        "softmax needs --num-classes; give it.",
    ),
    "foreign option": (
        [*LOGISTIC, "--num-classes", "3"],
        "logistic does not take all of --num-classes; drop those that are not its own.",
    ),
    "option without a loss": (
        [*BASE, "--order", "2", "--feature-norm", "2"],
        "--feature-norm belongs to a loss of the catalogue; name it with --loss, or declare "
        "--lipschitz and --smoothness instead.",
    ),
    "non-convex loss": (
        [*BASE, "--order", "2", "--loss", "tanh_margin"],
        "tanh margin is not convex; give --nonconvex.",
    ),
    "non-convex delta": (
        [*BASE, "--delta", "1e-5", "--loss", "tanh_margin", "--nonconvex"],
        "--nonconvex takes Rényi budgets only, no --delta, --target-risk or --protects label; drop "
        "them and give --order.",
    ),
    "non-convex without an order": (
        [*BASE, "--loss", "tanh_margin", "--nonconvex"],
        "--nonconvex needs the Rényi order of its budgets; give --order, e.g. 2.",
    ),
    "accountant of the other kind": (
        [*LOGISTIC, "--accountant", "sharp"],
        "accountant = 'sharp' is not known; give one of paper, unrelaxed, optimal.",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_status_2(capsys, name):
    arguments, text = BAD[name]
    status, out, err = run(capsys, arguments)
    assert status == 2
    assert out == ""
    assert err == f"dd-jax plan: {text}\n"


def test_help_lists_the_command(capsys):
    assert cli.main(["--help"]) == 0
    assert "plan" in capsys.readouterr().out


def test_a_plan_is_quick_and_loads_no_jax():
    code = (
        "import sys, time\n"
        "from dd_jax import cli\n"
        f"status = cli.main({[*LOGISTIC, '--json']!r})\n"
        "assert 'jax' not in sys.modules and 'flax' not in sys.modules\n"
        "sys.exit(status)"
    )
    before = os.times()
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    after = os.times()
    assert after.children_user - before.children_user < 2.0  # about 0.6 s on a quiet machine


def test_planning_after_import_takes_less_than_a_second(capsys):
    start = time.process_time()
    run_json(capsys, [*BASE, "--loss", "logistic", "--delta", "1e-5"])
    run_json(capsys, [*LOGISTIC, "--target-risk", "1"])
    run_json(capsys, [*TANH, "--nonconvex"])
    assert time.process_time() - start < 3.0


def test_dtype_and_first_insertion_reach_the_plan(capsys):
    double = run_json(capsys, [*LOGISTIC, "--dtype", "float64", "--request", "3"])
    young = run_json(capsys, [*LOGISTIC, "--request", "3", "--first-inserted", "2"])
    assert any("float64" in a["statement"] for a in double["assumptions"])
    assert young["first_inserted"] == 2
    assert young["eps_dd_request"] < double["eps_dd_request"]
    assert young["basis"] == "promise"
