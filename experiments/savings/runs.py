"""Runs of the systems of `tab:comparision`: their meters, their risk, and slopes through them.

The database is the worst of the class: Huber records whose residuals stay in the linear part, all
alike, so that the minimiser is as far from the start as it can be, an edit moves it as far as one
can, and gradient steps contract no faster than the bounds say.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

import dd_jax as dd
from dd_jax.baselines.base import metered
from dd_jax.requesters import fixed_stream
from experiments import short_programs
from experiments.savings.cases import Case, Target

# A residual that no model within reach can bring below Huber's threshold.
FAR = 100.0


def database(target: Target) -> dd.Labelled:
    """N equal records: the minimiser is at distance L/λ, the farthest that there is."""
    return _alike((target.n,), target.dim, FAR)


def edits(target: Target, served: int) -> dd.Edit:
    """Requests that turn r records round, each of which moves the minimiser by 2L/(λn)."""
    shape = (served, target.edits)
    rows = np.arange(served * target.edits, dtype=np.int32).reshape(shape)
    return dd.Edit(jnp.asarray(rows), _alike(shape, target.dim, -FAR))


def _alike(shape: tuple[int, ...], dim: int, label: float) -> dd.Labelled:
    # Made on the host: a jax.numpy call would be compiled anew for every size.
    features = np.zeros((*shape, dim), np.float32)
    features[..., 0] = 1.0
    return dd.Labelled(jnp.asarray(features), jnp.asarray(np.full(shape, label, np.float32)))


def excess_risk(target: Target, model, records: dd.Labelled):
    """(λ/2)‖θ - θ*‖² with θ* = (1/(λn)) Σ ±a, exact while all residuals are in the linear part."""
    optimum = jnp.mean(records.features * jnp.sign(records.label)[:, None], axis=0) / target.l2
    return target.l2 / 2 * jnp.sum((model - optimum) ** 2)


class Measured(NamedTuple):
    """What runs of a case cost and reached; means over seeds (and requests, for edits).

    Attributes:
        retrain: gradients of single records that learning from scratch took.
        edit, edit_low, edit_high: gradients of one request, and the mean's 95% t-interval over
            seeds, of no width where a cost is the same in every run.
        target: α. learned, edited: excess risk from scratch, and after the last request.
    """

    retrain: float
    edit: float
    edit_low: float
    edit_high: float
    target: float
    learned: float
    edited: float

    @property
    def saving(self) -> float:
        """What one edit saves."""
        return self.retrain - self.edit


def measure(case: Case, target: Target, key: jax.Array, seeds: int, served: int) -> Measured:
    """Run the system over seeds through `dd.interact` and read its meters.

    Seeds run one after another, so that a system which skips work really does.

    Args:
        case, target: what is run. key: of all seeds. seeds: how many.
        served: how many requests are served, at most the target's.
    """
    stream = fixed_stream(edits(target, served))
    apart = case.retraining is not case.serving

    def one(key, records):
        learn_key, publish_key, serve_key = jax.random.split(key, 3)
        curator, transcript = dd.interact(
            serve_key, metered(case.serving), stream, records, num_requests=served
        )
        releases, spent = transcript.releases.value, transcript.releases.cost.gradients
        learned, again = releases[0], spent[0]
        if apart:
            state, cost = case.retraining.learn(learn_key, records)
            learned, again = case.retraining.publish(publish_key, state), cost.gradients
        return (
            again,
            spent[1:],
            excess_risk(target, learned, records),
            excess_risk(target, releases[-1], curator.database),
        )

    run = short_programs.jit(one, target.n * target.dim)
    records = database(target)
    runs = [
        jax.tree.map(np.asarray, run(jax.random.fold_in(key, seed), records))
        for seed in range(seeds)
    ]
    found = (np.stack(leaves) for leaves in zip(*runs, strict=True))
    retrain, requests, learned, edited = found
    low, high = _interval(requests.mean(axis=1))
    return Measured(
        float(retrain.mean()),
        float(requests.mean()),
        low,
        high,
        target.excess_risk,
        float(learned.mean()),
        float(edited.mean()),
    )


def _interval(values: np.ndarray) -> tuple[float, float]:
    """The mean's 95% t-interval."""
    mean, spread = float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else 0.0
    half = spread / math.sqrt(len(values)) * float(stats.t.isf(0.025, max(len(values) - 1, 1)))
    return mean - half, mean + half


class Slope(NamedTuple):
    """A least-squares slope with its 95% t-interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.value:.3g} [{self.low:.3g}, {self.high:.3g}]"


def fit(x: np.ndarray, y: np.ndarray) -> Slope:
    """The slope of y on x."""
    degrees = len(x) - 2
    centred = x - x.mean()
    slope = float(centred @ y / (centred @ centred))
    residual = y - y.mean() - slope * centred
    error = math.sqrt(float(residual @ residual) / degrees / float(centred @ centred))
    half = float(stats.t.isf(0.025, degrees)) * error
    return Slope(slope, slope - half, slope + half)
