"""The settings that `dd-jax audit` knows: what is run, and the claims that are judged."""

import functools
from collections.abc import Callable

from dd_jax.audit.settings import linear, logistic
from dd_jax.audit.settings.base import AuditSetting
from dd_jax.errors import InputError

SETTINGS: dict[str, Callable[[float], AuditSetting]] = {
    "linear": linear.setting,
    "logistic": logistic.setting,
}
# Enough to see a certificate broken by half; the linear setting is cheap.
DEFAULT_SEEDS = {"linear": 100_000, "logistic": 15_000}


@functools.cache
def find(name: str, order: float) -> AuditSetting:
    """A setting by name, with its budgets at a Rényi order; one object, so that what it runs is
    compiled once.
    """
    if name not in SETTINGS:
        raise InputError(f"no setting {name!r}; choose one of {', '.join(sorted(SETTINGS))}.")
    return SETTINGS[name](order)
