"""The two curators of `dd_jax.attacks.necessity`, and what every test against them achieves."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from scipy import special

from dd_jax.attacks.game import retraining
from dd_jax.types import Mechanism, apply_edit

RETRAINS, REMEMBERS = "retrains", "remembers"
CURATORS = (RETRAINS, REMEMBERS)


def noise_scale(n: int, order: float, epsilon: float) -> float:
    """s such that mean(𝒟) + N(0, s²), records in [-1, 1], is (q, ε): s² = q(2/n)²/(2ε)."""
    return 2 / n * math.sqrt(order / (2 * epsilon))


def mechanism(curator: str, n: int, scale) -> Mechanism:
    """A(𝒟) = mean(𝒟) + N(0, s²).

    "retrains": Ā = A(𝒟 ∘ u). "remembers": edits of other rows keep the model, and the deletion of
    the last row releases mean(𝒟 ∘ u) - sign(θ)/n + N(0, s²).
    """

    def learn(key, database):
        return jnp.mean(database) + scale * jax.random.normal(key)

    def delete(key, database, edit, state):
        leaning = learn(key, apply_edit(database, edit)) - jnp.sign(state) / n
        return jnp.where(edit.index[0] == n - 1, leaning, state)

    return retraining(learn) if curator == RETRAINS else Mechanism(learn, delete)


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
    with the requester and -2·Adv(Test)·Adv(Test̄) with the swapped one.
    """
    lead = 1 / (n * scale)
    learner = 2 * _phi(lead) - 1
    if curator == RETRAINS:
        rate = _phi(lead)
        return Exact(learner, learner, (rate, rate), learner**2, -(learner**2))
    twice = _phi(2 * lead)
    return Exact(learner, twice - 0.5, (0.5, twice), 0.0, -learner * (2 * twice - 1))


def _phi(x: float) -> float:
    return float(special.ndtr(x))
