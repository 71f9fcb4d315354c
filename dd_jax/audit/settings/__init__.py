"""The settings that `dd-jax audit` knows: what is run, and the claims that are judged."""

import functools
from collections.abc import Callable

from dd_jax import checks
from dd_jax.audit.settings import linear, logistic, nonconvex
from dd_jax.audit.settings.base import AuditSetting
from dd_jax.errors import InputError

SETTINGS: dict[str, Callable[[float, int], AuditSetting]] = {
    "linear": linear.setting,
    "logistic": logistic.setting,
    "nonconvex": nonconvex.setting,
}
# Enough to see a certificate broken by half; the linear setting is cheap.
DEFAULT_SEEDS = {"linear": 100_000, "logistic": 15_000, "nonconvex": 20_000}
# Batches of a few of the digits still have rows of both classes.
MOST_BATCHES = 50


@functools.cache
def find(name: str, order: float, batches: int = 1) -> AuditSetting:
    """A setting by name, with its budgets at a Rényi order and m batches; one object, so that what
    it runs is compiled once.
    """
    if name not in SETTINGS:
        raise InputError(f"no setting {name!r}; choose one of {', '.join(sorted(SETTINGS))}.")
    return SETTINGS[name](order, checks.whole("batches", batches, least=1, most=MOST_BATCHES))
