"""The systems that serve a stream of deletions: what each claims, keeps and runs."""

from collections.abc import Callable
from typing import NamedTuple

from dd_jax.baselines.perturbed_gd import Form
from experiments.sequential.passes import (
    LAZY_REQUESTS,
    Setting,
    langevin_passes,
    lazy_passes,
    noisy_gd_passes,
    pnsgd_passes,
)

OURS = "Noisy-GD"
LAZY = f"Noisy-GD, 1 pass per {LAZY_REQUESTS}"
# Passes in the authors' stored results for MNIST 3-vs-8 at ε = 1: their settings, not ours.
REPORTED = {
    "Langevin, 5 × 20": (5058, 5058),
    "Langevin, 20 × 5": (19717, 19717),
    "PNSGD, full batch": (886, 886),
    "PNSGD, mini-batch": (100, 100),
    "Perturbed-GD, Thm 28": (9118, 15718),
}


class Row(NamedTuple):
    """A system in the table: the notion it claims, what it keeps, and which steps it runs.

    Attributes:
        notion, keeps: in words.
        steps: the kind of step whose accuracy is its own: one of `KINDS`, or its own name.
        passes: `(setting, σ², batch size) -> passes over all requests`; None for a single point.
        single: whether every record is a request of its own.
    """

    notion: str
    keeps: str
    steps: str
    passes: Callable[[Setting, float, int], float] | None
    single: bool = True


def _full(passes, requests: int | None = None):
    """`passes(setting, σ², requests)` for a number of requests; every record is one by default."""
    return lambda setting, noise, _: passes(setting, noise, requests or setting.deletions)


def _ours(requests: int | None = None) -> Row:
    passes = _full(noisy_gd_passes, requests)
    return Row(DELETION, "nothing", LONG, passes, requests is None)


def _langevin(requests: int | None = None) -> Row:
    passes = _full(langevin_passes, requests)
    return Row(UNLEARNING, "request count", FULL_BATCH, passes, requests is None)


def _perturbed(name: str) -> Row:
    return Row("(ε,δ)-unlearning", "nothing", name, None)


DELETION, UNLEARNING = "data-deletion", "Rényi unlearning"
FULL_BATCH, LONG = "full batch", "full batch, long steps"
SELDOM, MINI_BATCH = f"full batch, long steps, one per {LAZY_REQUESTS}", "mini-batch"
KINDS = (FULL_BATCH, LONG, SELDOM, MINI_BATCH)
FORMS: dict[str, Form] = {"Perturbed-GD, Thm 28": "published", "Perturbed-GD, Thm 28, best": "best"}
PNSGD = "PNSGD, mini-batch"
ROWS: dict[str, Row] = {
    OURS: _ours(),
    LAZY: Row(DELETION, "nothing", SELDOM, lazy_passes),
    "Langevin": _langevin(),
    "PNSGD, full batch": Row(
        UNLEARNING,
        "request count",
        FULL_BATCH,
        lambda setting, noise, _: pnsgd_passes(setting, noise, setting.n),
    ),
    PNSGD: Row(UNLEARNING, "order of batches", MINI_BATCH, pnsgd_passes),
    **{name: _perturbed(name) for name in FORMS},
    "Retraining": Row(
        "exact",
        "nothing",
        LONG,
        lambda setting, noise, _: setting.deletions * setting.learn_steps(noise, setting.long_step),
    ),
    f"{OURS}, 20 × 5": _ours(20),
    "Langevin, 20 × 5": _langevin(20),
    f"{OURS}, 5 × 20": _ours(5),
    "Langevin, 5 × 20": _langevin(5),
}
