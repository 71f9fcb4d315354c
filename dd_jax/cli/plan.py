"""`dd-jax plan`: budgets in, the settings of a run and its certificate out. Never loads JAX."""

from dataclasses import asdict, dataclass, fields, replace
from typing import Annotated, Any, Literal

import tyro

from dd_jax import constants
from dd_jax.cli.options import MaybeFloat, MaybeInt, Switch, flag
from dd_jax.cli.output import print_json, print_table
from dd_jax.constants import CatalogueLoss, LossConstants, Precision, ProblemConstants
from dd_jax.errors import InputError
from dd_jax.plans import (
    FORMULAS,
    Certificate,
    Plan,
    batch_options,
    plan_convex,
    plan_nonconvex,
)

MaybeRisk = Annotated[
    float | Literal["paper"] | None, tyro.conf.arg(metavar="FLOAT|paper", help_behavior_hint="")
]
# Any text: random orders are refused by name, with the reason.
Batches = Annotated[int | str, tyro.conf.arg(metavar="INT|auto")]


@dataclass(frozen=True)
class Config:
    """Plan a run that meets privacy, deletion and risk budgets, and show its certificate.

    Budgets are Rényi divergences of --order, or the ε of (ε, δ) with --delta (convex losses). The
    table shows every accountant side by side; the certificate is that of --accountant.
    """

    n: int
    """Number of records in the database."""
    dim: int
    """Number of parameters of the model."""
    l2: float
    """Constant λ of the regulariser (λ/2)‖θ‖²."""
    eps_dp: float
    """Privacy budget of one release (--nonconvex: of one run)."""
    eps_dd: float
    """Deletion budget: what may remain of one deleted record."""
    order: MaybeFloat = None
    """Rényi order q of the budgets."""
    delta: MaybeFloat = None
    """The δ of (ε, δ), if the budgets are its ε."""
    loss: CatalogueLoss | None = None
    """A loss of the catalogue; without one, declare --lipschitz and --smoothness yourself."""
    lipschitz: MaybeFloat = None
    """Lipschitz constant L of one record's loss."""
    smoothness: MaybeFloat = None
    """Smoothness constant β of one record's loss."""
    bound: MaybeFloat = None
    """A bound b on |loss| (--nonconvex)."""
    single_index: Switch = False
    """The declared loss is a generalised linear model with one score, so that it may be clipped."""
    feature_norm: MaybeFloat = None
    """Bound on the feature norm of a catalogue loss, 1 by default."""
    intercept: Switch = False
    """Append a constant 1 to the features of a catalogue loss."""
    threshold: MaybeFloat = None
    """The Huber loss is linear beyond this residual."""
    smoothing: MaybeFloat = None
    """Width of the smoothed hinge's corner."""
    label_bound: MaybeFloat = None
    """Bound on the labels of the squared loss."""
    num_classes: MaybeInt = None
    """Number of classes of the losses softmax and one_vs_rest."""
    hidden: MaybeInt = None
    """Hidden units of the bounded network."""
    output_norm: MaybeFloat = None
    """Norm of the bounded network's fixed output weights."""
    clip_norm: MaybeFloat = None
    """Clip every record's gradient to this norm."""
    edits_per_request: int = 1
    """Records that one request may replace."""
    adaptivity: int = 0
    """Releases that the requester saw before the deletion."""
    request: int = 1
    """The last request that deletes the record."""
    first_inserted: int = 0
    """The request that inserted the record; 0 for a record of the initial database."""
    accountant: Literal["optimal", "unrelaxed", "paper", "sharp", "refined", "tuned"] | None = None
    """Formulas of the certificate: optimal, unrelaxed or paper; with --nonconvex sharp, refined,
    tuned or paper. The tightest by default."""
    step_size: MaybeFloat = None
    """Step size η; the accountant's own by default."""
    noise_variance: MaybeFloat = None
    """Noise variance σ²; by default the smallest that the budgets allow."""
    batches: Batches = 1
    """Cyclic batches m of consecutive rows, one per step; auto takes the cheapest."""
    reference: Literal["replaced", "null"] = "replaced"
    """What --eps-dd is compared with: the record that replaced the deleted one, or an empty row."""
    expected_requests: int = 100
    """Requests that --batches auto counts the cost of."""
    learn_steps: MaybeInt = None
    """Steps of learning; by default what the risk bound asks for."""
    target_risk: MaybeRisk = None
    """Excess risk that no released model may exceed; paper for what the paper's theorem states."""
    protects: Literal["record", "label"] = "record"
    """Protect whole records, or labels only."""
    nonconvex: Switch = False
    """Use the non-convex (Gibbs-law) certificate: needs a bounded loss."""
    dtype: Literal["float32", "float64"] = "float32"
    """Floating type that is run."""
    arithmetic: Literal["fast", "exact"] = "fast"
    """Floating point with a certificate about real numbers, or a lattice where rounding counts."""
    precision: Precision = "full"
    """How matrix products are computed: in full, or in three bfloat16 passes on accelerators."""
    json: Switch = False
    """Print one JSON object."""


_LOSS_OPTIONS = (
    "feature_norm",
    "threshold",
    "smoothing",
    "label_bound",
    "num_classes",
    "hidden",
    "output_norm",
)
_NEEDED = {"softmax": "num_classes", "one_vs_rest": "num_classes", "bounded_network": "hidden"}
_SETTINGS = (
    "step_size",
    "noise_variance",
    "init_variance",
    "learn_steps",
    "delete_steps",
    "batches",
)
_PROMISED = ("eps_dp", "eps_dd", "eps_dd_null", "eps_dd_adaptive", "advantage_bound", "risk_bound")
# Headings of the table, and what is below them.
_COLUMNS = {
    "batches m": "batches",
    "learning K_L": "learn_steps",
    "deletion K_U": "delete_steps",
    "noise σ²": "noise_variance",
    "step η": "step_size",
    "stays ε_dp": "eps_dp",
    "deleted ε_dd": "eps_dd",
    "against empty row": "eps_dd_null",
    "risk bound": "risk_bound",
}


def main(config: Config) -> int:
    """Plan and print; returns the exit status."""
    problem = ProblemConstants(_loss(config), config.l2, config.clip_norm, config.precision)
    names = FORMULAS["nonconvex" if config.nonconvex else "convex"]
    chosen = names[0] if config.accountant is None else config.accountant
    certificate = _certificate(config, problem, chosen)
    accountants = {
        name: _numbers(certificate) if name == chosen else _compared(config, problem, name)
        for name in names
    }
    values = _values(certificate, accountants)
    if config.json:
        print_json(values)
    else:
        if config.batches == "auto":
            _show_options(config, problem, certificate.plan)
        _show(config, values, certificate)
    return 0


def _loss(config: Config) -> LossConstants:
    if config.loss is None:
        return _declared(config)
    options = {k: v for k in _LOSS_OPTIONS if (v := getattr(config, k)) is not None}
    if config.intercept:
        options["intercept"] = True
    needed = _NEEDED.get(config.loss)
    if needed and needed not in options:
        raise InputError(f"the loss {config.loss} needs {flag(needed)}; give it.")
    try:
        loss = getattr(constants, config.loss)(**options)
    except TypeError:
        raise InputError(
            f"{config.loss} does not take all of {', '.join(map(flag, options))}; "
            f"drop those that are not its own."
        ) from None
    return _loosened(config, loss)


def _loosened(config: Config, loss: LossConstants) -> LossConstants:
    """The proved constants, or larger ones if they are given: a larger bound holds as well."""
    given = {}
    for name in ("lipschitz", "smoothness", "bound"):
        value, proved = getattr(config, name), getattr(loss, name)
        if value is None:
            continue
        if proved is None or value < proved:
            known = "no such constant" if proved is None else f"{proved:g}"
            raise InputError(
                f"{flag(name)} {value:g} contradicts {loss.name}, which has {known}; drop "
                f"{flag(name)}, or drop --loss to declare a loss of your own."
            )
        given[name] = value
    return replace(loss, **given)


def _declared(config: Config) -> LossConstants:
    odd = [name for name in _LOSS_OPTIONS if getattr(config, name) is not None]
    if odd or config.intercept:
        raise InputError(
            f"{flag((odd or ['intercept'])[0])} belongs to a loss of the catalogue; name it with "
            f"--loss, or declare --lipschitz and --smoothness instead."
        )
    return LossConstants(
        name="the declared loss",
        convex=not config.nonconvex,
        single_index=config.single_index,
        lipschitz=config.lipschitz,
        smoothness=config.smoothness,
        bound=config.bound,
        domain="the records that the constants were declared for",
    )


_COMMON = (
    "n",
    "dim",
    "eps_dp",
    "eps_dd",
    "edits_per_request",
    "step_size",
    "noise_variance",
    "dtype",
)


def _plan(config: Config, problem: ProblemConstants, accountant: str) -> Plan:
    common: dict[str, Any] = {name: getattr(config, name) for name in _COMMON}
    if not config.nonconvex:
        if not problem.loss.convex:
            raise InputError(f"{problem.loss.name} is not convex; give --nonconvex.")
        common |= _convex(config) | {"accountant": accountant}
        batches: Any = config.batches
        return plan_convex(problem, batches=batches, **common)
    if (config.batches, config.reference, config.learn_steps) != (1, "replaced", None):
        raise InputError(
            "--nonconvex takes no --batches, --reference or --learn-steps; drop them, or use a "
            "convex loss."
        )
    if config.arithmetic == "exact":
        raise InputError("--nonconvex takes no --arithmetic exact; drop it, or use a convex loss.")
    if config.delta is not None or config.target_risk is not None or config.protects == "label":
        raise InputError(
            "--nonconvex takes Rényi budgets only, no --delta, --target-risk or --protects label; "
            "drop them and give --order."
        )
    if config.order is None:
        raise InputError("--nonconvex needs the Rényi order of its budgets; give --order, e.g. 2.")
    return plan_nonconvex(
        problem,
        order=config.order,
        form=accountant,  # pyright: ignore[reportArgumentType]
        **common,
    )


_CONVEX = (
    *("order", "delta", "target_risk", "protects", "reference", "expected_requests"),
    "arithmetic",
)


def _convex(config: Config) -> dict[str, Any]:
    """What only `plan_convex` takes, besides the number of batches."""
    return {name: getattr(config, name) for name in (*_CONVEX, "learn_steps")}


def _certificate(config: Config, problem: ProblemConstants, name: str) -> Certificate:
    return _plan(config, problem, name).certificate(
        config.adaptivity, config.request, first_inserted=config.first_inserted
    )


def _compared(config: Config, problem: ProblemConstants, name: str) -> dict[str, Any]:
    """One accountant's settings and numbers, or the reason why it has none."""
    try:
        return _numbers(_certificate(config, problem, name))
    except InputError as error:
        return {"refused": str(error)}


def _numbers(certificate: Certificate) -> dict[str, Any]:
    plan = {name: getattr(certificate.plan, name) for name in _SETTINGS}
    return plan | {name: getattr(certificate, name) for name in _PROMISED}


def _values(certificate: Certificate, accountants: dict[str, dict]) -> dict[str, Any]:
    """The settings, every field of the certificate, and the accountants side by side."""
    plan = certificate.plan
    names = [f.name for f in fields(certificate) if f.name not in ("plan", "assumptions")]
    return {
        **{name: getattr(plan, name) for name in (*_SETTINGS, "accountant", "kind")},
        **{name: getattr(certificate, name) for name in names},
        "assumptions": [asdict(assumption) for assumption in certificate.assumptions],
        "reference": plan.reference,
        "arithmetic": plan.arithmetic,
        "eps_dd_replaced": certificate.eps_dd,
        "accountants": accountants,
    }


def _show_options(config: Config, problem: ProblemConstants, chosen: Plan) -> None:
    """What each number of batches would cost, and which one was taken."""
    common: dict[str, Any] = {name: getattr(config, name) for name in _COMMON}
    options = batch_options(problem, **common, **_convex(config))
    print_table(
        f"Batches, for {config.expected_requests} requests: {chosen.batches} cost least",
        ("batches m", "step η", "noise", "passes to learn", "per request", "passes in all"),
        [
            (
                option.plan.batches,
                option.plan.step_size,
                option.noise,
                option.plan.learn_steps / option.plan.batches,
                option.plan.delete_steps / option.plan.batches,
                option.gradients / option.plan.n,
            )
            for option in options
        ],
    )
    print("noise: variance of a model at rest, as a multiple of that of full batches; at most 1.25")
    print()


def _show(config: Config, values: dict[str, Any], certificate: Certificate) -> None:
    found = values["accountants"].items()
    print_table(
        f"Plans for eps_dp = {config.eps_dp:g}, eps_dd = {config.eps_dd:g}",
        ("accountant", *_COLUMNS),
        [
            (name, *(row.get(key, "-") for key in _COLUMNS.values()))
            for name, row in found
            if "refused" not in row
        ],
    )
    for name, row in found:
        if "refused" in row:
            print(f"{name}: {row['refused']}")
    print()
    print(certificate)
