"""dd_jax: certified data deletion in JAX.

After `import dd_jax as dd` every public name below is available. Names are resolved on first use,
so that host-side accounting (`dd_jax.guarantees`, `dd_jax.plans`) does not import JAX.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the same names, for type checkers and editors
    from dd_jax import (
        attacks,
        audit,
        baselines,
        constants,
        curator,
        data,
        ensemble,
        erm,
        guarantees,
        interaction,
        intervals,
        losses,
        noisy_gd,
        oracles,
        plans,
        requesters,
        sweeps,
        types,
    )
    from dd_jax.ensemble import neighbours, over_seeds
    from dd_jax.erm import Problem
    from dd_jax.errors import CertificateRefused, EditRefused, InputError, MissingData
    from dd_jax.interaction import Observation, Requester, adversary_view, drive, interact, resume
    from dd_jax.keys import secret_key
    from dd_jax.losses import deletion
    from dd_jax.plans import (
        Certificate,
        Plan,
        plan_composition,
        plan_convex,
        plan_nonconvex,
    )
    from dd_jax.saving import load, save
    from dd_jax.types import (
        CuratorState,
        Domain,
        Edit,
        Labelled,
        Mechanism,
        Transcript,
        apply_edit,
        check_edit,
        replacement,
    )

_SUBMODULES = (
    "attacks",
    "audit",
    "baselines",
    "constants",
    "curator",
    "data",
    "databases",
    "ensemble",
    "erm",
    "guarantees",
    "interaction",
    "intervals",
    "losses",
    "noisy_gd",
    "oracles",
    "plans",
    "requesters",
    "sharding",
    "sweeps",
    "types",
)

_NAMES = {
    "Certificate": "plans",
    "CertificateRefused": "errors",
    "CuratorState": "types",
    "Domain": "types",
    "Edit": "types",
    "EditRefused": "errors",
    "InputError": "errors",
    "Labelled": "types",
    "Mechanism": "types",
    "MissingData": "errors",
    "Observation": "interaction",
    "Plan": "plans",
    "Problem": "erm",
    "Requester": "interaction",
    "Transcript": "types",
    "adversary_view": "interaction",
    "apply_edit": "types",
    "check_edit": "types",
    "compress": "databases",
    "counted": "databases",
    "deletion": "losses",
    "drive": "interaction",
    "expand": "databases",
    "interact": "interaction",
    "load": "saving",
    "neighbours": "ensemble",
    "over_seeds": "ensemble",
    "plan_composition": "plans",
    "plan_convex": "plans",
    "plan_nonconvex": "plans",
    "replacement": "types",
    "resume": "interaction",
    "save": "saving",
    "secret_key": "keys",
}

__all__ = [*_SUBMODULES, *_NAMES]


def __getattr__(name: str):
    """Import a public name when it is first used (PEP 562)."""
    if name in _SUBMODULES:
        return importlib.import_module(f"dd_jax.{name}")
    if name in _NAMES:
        return getattr(importlib.import_module(f"dd_jax.{_NAMES[name]}"), name)
    raise AttributeError(f"module 'dd_jax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
