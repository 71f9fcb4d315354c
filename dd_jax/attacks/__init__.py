"""The paper's violations, and ours, as programs (`sec:deletion_vs_unlearn` and its appendix).

`find("median").run(key, step=6)` plays one attack. Each is a mechanism or a requester, an adversary
that sees post-deletion releases only (`dd_jax.attacks.game`), the claims it tests, and an estimate
over seeds with an exact interval (`dd_jax.intervals`). Importing this package does not
import JAX.
"""

from dd_jax.attacks.catalogue import ATTACKS, Attack, find
from dd_jax.attacks.result import AttackResult
from dd_jax.claims import Claim, Finding
from dd_jax.intervals import Estimate

__all__ = ["ATTACKS", "Attack", "AttackResult", "Claim", "Estimate", "Finding", "find"]
