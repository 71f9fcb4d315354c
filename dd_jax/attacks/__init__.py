"""The paper's violations, and ours, as programs (`sec:deletion_vs_unlearn` and its appendix).

`find("median").run(key, step=6)` plays one attack. Each is a mechanism or a requester, an adversary
that sees post-deletion releases only (`dd_jax.attacks.game`), the claims it tests, and an estimate
over seeds with an exact interval (`dd_jax.intervals`). Importing this package does not import JAX:
an attack's file is imported when the attack is first used.
"""

import importlib
from collections.abc import Iterator, Mapping

from dd_jax.attacks.base import Attack, AttackResult
from dd_jax.claims import Claim, Finding
from dd_jax.errors import InputError
from dd_jax.intervals import Estimate

__all__ = ["ATTACKS", "Attack", "AttackResult", "Claim", "Estimate", "Finding", "find"]

# To add an attack, write its file and a line here: name -> file and object.
_PLACES = {
    "sum": "sum_example.ATTACK",
    "median": "median.ATTACK",
    "secret-count": "secret_count.ATTACK",
    "fixed-model": "incompleteness.FIXED_MODEL",
    "two-outputs": "incompleteness.TWO_OUTPUTS",
    "password": "password.ATTACK",
    "re-encoding": "re_encoding.ATTACK",
    "reconstruction": "reconstruction.ATTACK",
    "sisa": "sisa.ATTACK",
    "clipping": "clipping.ATTACK",
    "recoding": "recoding.ATTACK",
    "necessity": "necessity.ATTACK",
    "low-bits": "low_bits.ATTACK",
    "exact-bits": "exact_bits.ATTACK",
    "stall": "stall.ATTACK",
    "coarse-products": "coarse_products.ATTACK",
    "early-release": "early_release.ATTACK",
    "noisy-gd": "against_noisy_gd.ATTACK",
}


class _Attacks(Mapping[str, Attack]):
    """The attacks by name, in the order of `_PLACES`; a look-up imports the attack's file."""

    def __getitem__(self, name: str) -> Attack:
        module, attribute = _PLACES[name].split(".")
        return getattr(importlib.import_module(f"dd_jax.attacks.{module}"), attribute)

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


ATTACKS: Mapping[str, Attack] = _Attacks()


def find(name: str) -> Attack:
    """The attack of that name.

    Raises:
        InputError: no attack has this name.
    """
    if name not in _PLACES:
        raise InputError(f"no attack {name!r}; choose one of {', '.join(sorted(ATTACKS))}.")
    return ATTACKS[name]
