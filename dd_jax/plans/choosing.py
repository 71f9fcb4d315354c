"""λ from what is public: sizes, constants and budgets, never a record.

A small λ lets models be good and makes noise large; a large one the other way round. Both sides
have a bound before anything is run, and the choice is the least sum of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dd_jax import checks
from dd_jax.constants import LossConstants, ProblemConstants
from dd_jax.errors import InputError
from dd_jax.plans.convex import plan_convex

# The values of λ that are tried, and the norm of the models that are hoped for: with rows of norm
# 1, a model of norm 10 can give a record a probability of 0.99995.
CANDIDATES = tuple(10 ** (-quarter / 4) for quarter in range(20, -1, -1))
LARGEST_NORM = 10.0


@dataclass(frozen=True)
class Chosen:
    """A value of λ and why it was chosen.

    Attributes:
        l2: λ.
        noise: the certified excess risk of the learned model at this λ.
        bias: (λ/2)B², what the regulariser can cost a model of norm B.
        norm: B.
    """

    l2: float
    noise: float
    bias: float
    norm: float

    def __str__(self) -> str:
        return (
            f"λ = {self.l2:.4g} was chosen from sizes, constants and budgets alone: of "
            f"{len(CANDIDATES)} values it has the least sum of the certified risk of the noise "
            f"({self.noise:.3g}) and of what the regulariser can cost a model of norm "
            f"{self.norm:g} ({self.bias:.3g}); assumed: a good model has at most this norm"
        )


def choose_l2(
    loss: LossConstants,
    *,
    n: int,
    dim: int,
    norm: float = LARGEST_NORM,
    candidates: Sequence[float] = CANDIDATES,
    **budgets: Any,
) -> Chosen:
    """The λ with the least bound on the risk above the best model of norm at most B.

    Guarantee: for every θ with ‖θ‖ ≤ B, the mean loss of the learned model is at most that of θ
    plus noise + bias, in expectation: ℒ_λ(θ_K) ≤ ℒ_λ(θ*) + noise ≤ ℒ_λ(θ) + noise.
    Assumes: as `plan_convex`, with full batches, whose risk has a bound.

    Args:
        loss: constants of the loss.
        n, dim: sizes, which are public.
        norm: B.
        candidates: values of λ.
        **budgets: of `plan_convex`.

    Raises:
        InputError: no candidate has a plan with a risk bound; the first reason is given.
    """
    checks.positive("norm", norm)
    found, refused = [], None
    for l2 in candidates:
        try:
            plan = plan_convex(ProblemConstants(loss, l2), n=n, dim=dim, **budgets)
        except InputError as error:
            refused = refused or error
            continue
        noise = plan.certificate().risk_bound_learned
        if noise is not None:
            found.append(Chosen(l2, noise, l2 * norm**2 / 2, norm))
    if not found:
        reason = refused or InputError("no plan has a risk bound; give a λ yourself.")
        raise reason
    return min(found, key=lambda chosen: chosen.noise + chosen.bias)
