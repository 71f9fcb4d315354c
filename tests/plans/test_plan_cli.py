"""`dd-jax plan`: the JSON it prints, status 2 and one line for bad input, and never JAX."""

import json
import subprocess
import sys

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
    assert found["assumptions"][0]["established"] == "proved for this loss"
    assert list(found["accountants"]) == ["optimal", "unrelaxed", "paper"]
    assert found["accountants"]["optimal"]["delete_steps"] == plan.delete_steps
    paper = run_json(capsys, [*LOGISTIC, "--accountant", "paper"])
    assert paper["accountant"] == "paper"
    assert paper["delete_steps"] == found["accountants"]["paper"]["delete_steps"]


def test_people_get_a_table_of_the_accountants_and_a_certificate(capsys):
    for unit in (["--order", "2"], ["--delta", "1e-5"]):
        status, out, _ = run(capsys, [*BASE, "--loss", "logistic", *unit])
        assert status == 0
        for text in ("optimal", "unrelaxed", "paper", "Certificate"):
            assert text in out


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
    network = ["--loss", "bounded_network", "--hidden", "4", "--output-norm", "0.5"]
    found = run_json(capsys, [*BASE, "--order", "2", "--nonconvex", *network])
    assert found["eps_dd"] <= 0.1


LOSSES = {
    "logistic --feature-norm 2 --intercept": constants.logistic(feature_norm=2.0, intercept=True),
    "smoothed_hinge --smoothing 0.5": constants.smoothed_hinge(smoothing=0.5),
    "huber --threshold 0.3": constants.huber(threshold=0.3),
    "linear": constants.linear(),
    "softmax --num-classes 4": constants.softmax(num_classes=4),
    "one_vs_rest --num-classes 4": constants.one_vs_rest(num_classes=4),
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
    "no unit": ([*BASE, "--loss", "logistic"], "order"),
    "no smoothness": ([*BASE, "--order", "2", "--lipschitz", "1"], "smoothness"),
    "smaller constant": ([*LOGISTIC, "--lipschitz", "0.5"], "--lipschitz"),
    "constant that does not exist": ([*LOGISTIC, "--bound", "1"], "--bound"),
    "classes": ([*BASE, "--order", "2", "--loss", "softmax"], "--num-classes"),
    "foreign option": ([*LOGISTIC, "--num-classes", "3"], "--num-classes"),
    "option without a loss": ([*BASE, "--order", "2", "--feature-norm", "2"], "--feature-norm"),
    "non-convex loss": ([*BASE, "--order", "2", "--loss", "tanh_margin"], "--nonconvex"),
    "non-convex delta": (
        [*BASE, "--delta", "1e-5", "--loss", "tanh_margin", "--nonconvex"],
        "--delta",
    ),
    "non-convex without an order": ([*BASE, "--loss", "tanh_margin", "--nonconvex"], "--order"),
    "accountant of the other kind": ([*LOGISTIC, "--accountant", "sharp"], "accountant"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_status_2(capsys, name):
    arguments, word = BAD[name]
    status, out, err = run(capsys, arguments)
    assert status == 2
    assert out == ""
    assert word in err
    assert err.count("\n") == 1


def test_a_plan_loads_no_jax_and_nothing_slow():
    code = (
        "import sys\n"
        "from dd_jax import cli\n"
        f"status = cli.main({[*LOGISTIC, '--json']!r})\n"
        "slow = {'jax', 'flax', 'dp_accounting', 'scipy.stats', 'scipy.optimize'}\n"
        "sys.exit(status or ', '.join(slow & {*sys.modules}) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_dtype_and_first_insertion_reach_the_plan(capsys):
    double = run_json(capsys, [*LOGISTIC, "--dtype", "float64", "--request", "3"])
    young = run_json(capsys, [*LOGISTIC, "--request", "3", "--first-inserted", "2"])
    assert any("float64" in a["statement"] for a in double["assumptions"])
    assert young["first_inserted"] == 2
    assert young["eps_dd_request"] < double["eps_dd_request"]
    assert young["basis"] == "promise"


def test_exact_arithmetic(capsys):
    found = run_json(capsys, [*LOGISTIC, "--arithmetic", "exact"])
    problem = ProblemConstants(constants.logistic(), 0.1)
    budgets = {"order": 2.0, "eps_dp": 1.0, "eps_dd": 0.1}
    plan = plan_convex(problem, n=1000, dim=10, arithmetic="exact", **budgets)
    assert found["arithmetic"] == "exact"
    assert found["noise_variance"] == plan.noise_variance
    assert found["mu_dd"] is None
    assert "optimal" in found["accountants"]["paper"]["refused"]
    squared = [*BASE, "--loss", "squared", "--order", "2", "--clip-norm", "1"]
    for options in (squared, [*TANH, "--nonconvex"]):
        status, _, error = run(capsys, [*options, "--arithmetic", "exact"])
        assert status == 2
        assert "exact" in error


def test_batches_and_references(capsys):
    """Both comparators are printed; auto names what it took, and full batches can be asked for."""
    base = LOGISTIC
    problem = ProblemConstants(constants.logistic(), 0.1)
    known = {"n": 1000, "dim": 10, "order": 2.0, "eps_dp": 1.0, "eps_dd": 0.1}
    for batches, reference in ((4, "replaced"), (4, "null"), ("auto", "replaced"), (1, "null")):
        options = ["--batches", str(batches), "--reference", reference]
        found = run_json(capsys, [*base, *options])
        plan = plan_convex(problem, batches=batches, reference=reference, **known)
        assert found["batches"] == plan.batches
        assert found["delete_steps"] == plan.delete_steps
        assert found["eps_dd_replaced"] == found["eps_dd"] == 4 * found["eps_dd_null"]
        budgeted = "eps_dd_null" if reference == "null" else "eps_dd_replaced"
        assert found[budgeted] <= 0.1 < found["eps_dp"]
        assert ("refused" in found["accountants"]["paper"]) == (batches == 4)
    status, out, _ = run(capsys, [*base, "--batches", "auto"])
    assert status == 0
    assert "passes" in out
    for options in (["--batches", "0"], ["--batches", "shuffled"], ["--reference", "gone"]):
        status, _, error = run(capsys, [*base, *options])
        assert status == 2
        assert len(error.splitlines()) == 1


def test_the_theorems_plan_by_one_option(capsys):
    found = run_json(capsys, [*LOGISTIC, "--accountant", "paper", "--target-risk", "paper"])
    # 10κqdL²/(λ ε_dp n²) with κ = 3.5
    assert found["risk_bound_paper"] == pytest.approx(10 * 3.5 * 2 * 10 / (0.1 * 10**6), rel=1e-5)
    assert found["accountants"]["optimal"]["risk_bound"] <= found["risk_bound_paper"]
    status, _, error = run(capsys, [*LOGISTIC, "--target-risk", "theirs"])
    assert (status, "target-risk" in error) == (2, True)
