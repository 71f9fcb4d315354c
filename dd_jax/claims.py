"""A claim that samples can refute, and what they found; used by every audit and attack.

Host-side, no JAX.
"""

from dataclasses import dataclass
from typing import Literal

Owner = Literal["paper", "prior work", "ours", "control", "stated"]


@dataclass(frozen=True)
class Claim:
    """A sentence that samples can refute; `dd_jax.audit.claims` has those that state a number.

    Attributes:
        sentence: the claim in words.
        source: the paper's label, an erratum, or the function that makes it.
        owner: whose claim it is. Only a refuted claim of "ours" is a failure of this library; a
            "control" is false by design and shows whether the samples have power; a "stated" claim
            is one that a user wrote down.
    """

    sentence: str
    source: str
    owner: Owner


@dataclass(frozen=True)
class Finding:
    """A claim, whether the samples refute it, and the numbers behind that answer."""

    claim: Claim
    refuted: bool
    evidence: str
