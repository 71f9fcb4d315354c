"""Peers and Noisy-GD for one promise: gradients and noise, by their own accountant and by ours.

PNSGD, Langevin unlearning and Noisy-GD take the same noisy steps; they differ in batches and in
what proves the promise. A family of rows shares its batches, its step and its noise, the least for
which the optimal accountant calls one release (ε_dp, δ)-private; its rows differ only in
who counts the steps of a request. Two notions are counted apart:

    replaced    each deleted record against the run that held its replacement all along (or, for
                the reference "null", an empty row)
    retraining  the whole stream of edits against retraining on the records that are left

The first does not grow with the number of requests. For the second all edits add up; it is what the
published accountants count.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple, get_args

import numpy as np

import dd_jax as dd
from dd_jax.baselines import langevin, pnsgd
from dd_jax.guarantees import convex, renyi, risk, schedules
from dd_jax.plans import conditions
from dd_jax.plans.settings import Reference

REPLACED, NULL, RETRAINING = "replaced", "null", "retraining"
PUBLISHED, OPTIMAL = "published", "optimal"
# What learning leaves of its start, taken as converged.
CONVERGED = 1e-12


class Promise(NamedTuple):
    """What every row promises.

    Attributes:
        problem: the loss and λ. n, dim: records and parameters.
        eps_dp: of one release, for records that stay. eps_dd: after every request.
        delta: of both. requests: single deletions, one after another.
    """

    problem: dd.Problem
    n: int
    dim: int
    eps_dp: float
    eps_dd: float
    delta: float
    requests: int

    @property
    def mu_dp(self) -> float:
        """The μ of (ε_dp, δ)."""
        return renyi.gdp_from_epsilon_delta(self.eps_dp, self.delta)

    @property
    def mu_dd(self) -> float:
        """The μ of (ε_dd, δ)."""
        return renyi.gdp_from_epsilon_delta(self.eps_dd, self.delta)

    def run(self, batches: int, places: int | None = None) -> convex.Descent:
        """Steps of η = 1/(λ+β) over m batches at the least noise that is private.

        PNSGD fills its last batch with null records: its number of places is at least n.
        """
        smoothness = conditions.require_constant(self.problem.constants, "smoothness")
        l2 = self.problem.l2
        run = convex.Descent(
            order=2,
            lipschitz=self.problem.constants.lipschitz,
            l2=l2,
            smoothness=smoothness,
            noise_variance=1.0,
            n=places or self.n,
            step_size=1 / (l2 + smoothness),
            batches=batches,
        )
        noise = convex.least_noise(convex.privacy_optimal, run, self.mu_dp**2)
        return replace(run, noise_variance=noise)


class Account(NamedTuple):
    """One system by one accountant.

    Attributes:
        system, accountant, notion: which, by whom, compared with what.
        batches: m. noise: σ². spread: variance that noise gives a model at rest, per coordinate.
        passes: over the data, of the mean request.
        learning, requests: gradients of learning, and of all requests together.
    """

    system: str
    accountant: str
    notion: str
    batches: int
    noise: float
    spread: float
    passes: float
    learning: float
    requests: float

    @property
    def gradients(self) -> float:
        """All of them."""
        return self.learning + self.requests


def accounts(
    promise: Promise, *, batch_sizes: Iterable[int] = (), batches: Iterable[int] = (1,)
) -> list[Account]:
    """Every row: PNSGD with these batch sizes and full batches, Langevin, Noisy-GD.

    Args:
        promise: what all rows promise.
        batch_sizes: b of PNSGD, besides full batches.
        batches: numbers m of batches of Noisy-GD.
    """
    rows = []
    for size in (*batch_sizes, promise.n):
        rows += _pnsgd(promise, size)
    rows += _langevin(promise)
    for count in batches:
        rows += _noisy_gd(promise, count)
    return rows


def _account(promise, system, accountant, notion, run: convex.Descent, passes) -> Account:
    """A row from the passes of each request, or of every one."""
    total = float(np.sum(passes)) if np.ndim(passes) else float(passes) * promise.requests
    spread = risk.stationary_variance(run.l2, run.noise_variance, run.step_size)
    return Account(
        system=system,
        accountant=accountant,
        notion=notion,
        batches=int(run.batches),
        noise=float(run.noise_variance),
        spread=float(spread),
        passes=total / promise.requests,
        learning=_plan(promise, int(run.batches)).learn_gradients,
        requests=total * promise.n,
    )


def _plan(promise: Promise, batches: int, reference: Reference = "replaced") -> dd.Plan:
    """Noisy-GD's plan; learning by the same steps takes the same gradients in every system."""
    return dd.plan_convex(
        promise.problem,
        n=promise.n,
        dim=promise.dim,
        eps_dp=promise.eps_dp,
        eps_dd=promise.eps_dd,
        delta=promise.delta,
        batches=batches,
        reference=reference,
    )


def _pnsgd(promise: Promise, batch_size: int) -> list[Account]:
    count = -(-promise.n // batch_size)
    run = promise.run(count, count * batch_size)
    made = pnsgd.calibrate(
        promise.problem,
        n=promise.n,
        epsilon=promise.eps_dd,
        delta=promise.delta,
        noise_variance=run.noise_variance,
        batch_size=batch_size,
        learn_epochs=1,
        requests=promise.requests,
    )
    steps = convex.fewest_steps(convex.deletion_optimal, run, promise.mu_dd**2)
    name = f"PNSGD, batches of {batch_size}" if count > 1 else "PNSGD, full batch"
    return [
        _account(promise, name, PUBLISHED, RETRAINING, run, made.request_steps),
        _account(promise, name, OPTIMAL, RETRAINING, run, retraining_passes(promise, run)),
        _account(promise, name, OPTIMAL, REPLACED, run, max(1, math.ceil(steps / count))),
    ]


def _langevin(promise: Promise) -> list[Account]:
    run = promise.run(1)

    def steps(accountant):
        return langevin.calibrate(
            promise.problem,
            n=promise.n,
            epsilon=promise.eps_dd,
            delta=promise.delta,
            noise_variance=run.noise_variance,
            learn_steps=1,
            requests=promise.requests,
            accountant=accountant,
        ).request_steps

    counted = (
        (PUBLISHED, RETRAINING, steps(PUBLISHED)),
        (OPTIMAL, RETRAINING, retraining_passes(promise, run)),
        (OPTIMAL, REPLACED, steps(OPTIMAL)),
    )
    return [_account(promise, "Langevin", who, notion, run, k) for who, notion, k in counted]


def _noisy_gd(promise: Promise, batches: int) -> list[Account]:
    run, rows = promise.run(batches), []
    for reference in get_args(Reference):
        passes = _plan(promise, batches, reference).delete_steps / batches
        rows.append(_account(promise, "Noisy-GD", OPTIMAL, reference, run, passes))
    return rows


# --- the whole stream against retraining ----------------------------------------------------------


def retraining_mu_squared(run: convex.Descent, passes: int, requests: int) -> float:
    """μ² of the last release against retraining on what is left, K passes per request.

    The two runs differ in all records of the stream while the model is learned, and in one fewer
    after each request: a schedule for `schedules.pooled`. The worst is that all of them are in the
    batch that ends a pass: a shift that enters earlier, or is smaller, can be hidden at the
    same steps by no more.

    Assumes: what `convex.deletion_optimal` assumes; whole passes; learning has converged (it is cut
    where 1e-12 of its start is left).
    """
    run.stable()
    batches, contraction = int(run.batches), 1 - run.step_size * run.l2
    gap = 2 * run.step_size * run.lipschitz / (int(run.n) // batches)
    learn = math.ceil(math.log(CONVERGED) / (batches * math.log(contraction)))
    different = [requests] * learn
    for request in range(1, requests + 1):
        different += [requests - request] * passes
    gaps = np.zeros((len(different), batches))
    gaps[:, -1] = gap * np.array(different)
    noise = 2 * run.step_size * run.noise_variance
    return schedules.pooled(contraction, gaps.ravel(), noise).mu_squared


def retraining_passes(promise: Promise, run: convex.Descent) -> int:
    """The least K ≥ 1, the same for all requests, that meets ε_dd against retraining."""

    def fits(passes: int) -> bool:
        return retraining_mu_squared(run, passes, promise.requests) <= promise.mu_dd**2

    high = 1
    while not fits(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def as_text(rows: Iterable[Account]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| system | accountant | against | m | σ² | spread | passes each | learning | total |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row.system} | {row.accountant} | {row.notion} | {row.batches} | {row.noise:.3g} | "
        f"{row.spread:.3g} | {row.passes:,.4g} | {row.learning:.3g} | {row.gradients:.3g} |"
        for row in rows
    ]
    return "\n".join(lines)
