"""The vocabulary of the audit: a lower bound that holds with confidence."""

from typing import NamedTuple


class LowerBound(NamedTuple):
    """A number that the truth exceeds, with at least the stated confidence.

    Attributes:
        quantity: what is bounded: "advantage", "epsilon", "hockey_stick", "renyi" or "mu".
        value: the truth is at least this, with probability at least `confidence` over the seeds.
        confidence: 1 - α of this statement.
        seeds: seeds per arm that it was tested on (the fitting seeds do not count).
        method: how it was obtained, in a few words.
    """

    quantity: str
    value: float
    confidence: float
    seeds: int
    method: str
