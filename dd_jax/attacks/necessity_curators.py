"""The three curators of `dd_jax.attacks.necessity`, and what every test against them achieves."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array
from scipy import special

from dd_jax.types import Mechanism

RETRAINS, REMEMBERS, TRACKS = "retrains", "remembers", "tracks"
CURATORS = (RETRAINS, REMEMBERS, TRACKS)


def noise_scale(n: int, order: float, epsilon: float) -> float:
    """s such that mean(𝒟) + N(0, s²), records in [-1, 1], is (q, ε): s² = q(2/n)²/(2ε)."""
    return 2 / n * math.sqrt(order / (2 * epsilon))


def mechanism(curator: Array, n: int, scale) -> Mechanism:
    """A(𝒟) = mean(𝒟) + N(0, s²); `curator`, a place in `CURATORS`, may be traced.

    "retrains": Ā = A(𝒟 ∘ u). For the other two the deletion of the last row releases
    mean(𝒟 ∘ u) - sign(θ)/n + N(0, s²), and an edit of another row keeps the model ("remembers") or
    releases the sum of the other rows over n ("tracks"): θ is then what was written.
    """

    def learn(key, database):
        return jnp.mean(database) + scale * jax.random.normal(key)

    def delete(key, before, edit, after, state):
        fresh = learn(key, after)
        leaning = fresh - jnp.sign(state) / n
        last = edit.index[0] == n - 1
        written = jnp.sum(after[:-1]) / n
        answers = [fresh, jnp.where(last, leaning, state), jnp.where(last, leaning, written)]
        return jnp.stack(answers)[curator]

    return Mechanism(learn, delete)


class Exact(NamedTuple):
    """The exact advantages, and P[Test̄ = 1 | D̄] from θ = 1 and from θ = -1."""

    learner: float
    deleter: float
    rates: tuple[float, float]
    attack: float
    swapped: float


def exact(curator: str, n: int, scale: float) -> Exact:
    """With t = 1/(ns): Adv(Test) = 2Φ(t) - 1.

    Retraining has P[Test̄ = 1 | D̄] = Φ(t) from every θ, and Adv(MI) = ±(2Φ(t) - 1)². The one that
    remembers has Φ(t(1 - sign θ)): Φ(2t) - 1/2 = Adv(Test̄) from every θ, and yet Adv(MI) = 0
    with the requester and -2·Adv(Test)·Adv(Test̄) with the swapped one. The one that tracks has the
    same tests, but leans against what was written whoever wrote it: Adv(MI) = 0 with both.
    """
    lead = 1 / (n * scale)
    learner = 2 * _phi(lead) - 1
    if curator == RETRAINS:
        rate = _phi(lead)
        return Exact(learner, learner, (rate, rate), learner**2, -(learner**2))
    twice = _phi(2 * lead)
    swapped = -learner * (2 * twice - 1) if curator == REMEMBERS else 0.0
    return Exact(learner, twice - 0.5, (0.5, twice), 0.0, swapped)


def _phi(x: float) -> float:
    return float(special.ndtr(x))
