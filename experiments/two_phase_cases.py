"""Two losses whose law is Gaussian at every step, each with a record that is learned and deleted.

Both have λ, β and L of the same certificate, so that the same bounds hold for both. The worlds
differ along the first coordinate alone, which is therefore the best score of any test.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

import dd_jax as dd
from dd_jax import losses
from dd_jax.oracles import gaussian
from experiments.cache import Runner

DIM, ROW, CHUNK = 2, 0, 10_000


class Case(NamedTuple):
    """A problem, a database in the two worlds, and what both become when the record goes.

    Attributes:
        name: the loss, in words.
        problem: what is run.
        present, absent: databases that differ in row `ROW`.
        edited: both of them after the deletion.
        phase: (database, steps) ↦ the exact law's phase.
    """

    name: str
    problem: dd.Problem
    present: PyTree
    absent: PyTree
    edited: PyTree
    phase: Callable[[PyTree, float], gaussian.Phase]

    def exact(self, order, step_size, noise_variance, present_steps, delete_steps) -> float:
        """R_q of the present run from the absent one, both started at the model 0."""
        laws = []
        for database in (self.present, self.absent):
            phases = [self.phase(database, present_steps), self.phase(self.edited, delete_steps)]
            laws.append(gaussian.law_after(phases, step_size, noise_variance, np.zeros(DIM)))
        return gaussian.renyi(order, *laws)

    def scores(
        self,
        runner: Runner,
        key: Array,
        seeds: int,
        step_size: float,
        noise_variance: float,
        learn_steps: int,
        delete_steps: int,
    ) -> list[np.ndarray]:
        """θ₁ after every step, (seeds, steps), of runs in both worlds with independent noise."""
        numbers = {"step_size": step_size, "noise_variance": noise_variance}
        move = functools.partial(dd.noisy_gd.trajectory, problem=self.problem, **numbers)

        def run(key, database, edited):
            learn_key, delete_key = jax.random.split(key)
            learned = move(learn_key, jnp.zeros(DIM), database, num_steps=learn_steps)
            deleted = move(delete_key, learned[-1], edited, num_steps=delete_steps)
            return jnp.concatenate([learned, deleted])[:, 0]

        worlds = {"present": self.present, "absent": self.absent}
        keys = jax.random.split(key)
        return [
            runner.over_seeds(
                f"{self.name}, record {world}", run, key, seeds, database, self.edited, chunk=CHUNK
            )
            for key, (world, database) in zip(keys, worlds.items(), strict=True)
        ]


def linear(n: int, l2: float) -> Case:
    """-⟨θ, x⟩ with x = ±e₁ in one row: the loss that attains the optimal bound."""
    problem = dd.Problem(losses.linear(), l2)
    present = jnp.asarray(_unit_rows(n), jnp.float32).at[ROW].set(jnp.eye(DIM)[0])
    absent = present.at[ROW].set(-present[ROW])
    return Case(
        "linear",
        problem,
        present,
        absent,
        dd.apply_edit(present, dd.deletion(problem.loss, present, [ROW])),
        lambda records, steps: gaussian.linear_phase(np.asarray(records, np.float64), l2, steps),
    )


def ridge(n: int, l2: float) -> Case:
    """(⟨a, θ⟩ - y)²/2 with label ±1 in one row; half of the rows curve the loss along it."""
    problem = dd.Problem(losses.squared(label_bound=1.0), l2)
    features = jnp.eye(DIM, dtype=jnp.float32)[jnp.arange(n) % DIM]
    labels = jnp.asarray(_unit_rows(n)[:, 0], jnp.float32)

    def world(label: float) -> dd.Labelled:
        return dd.Labelled(features, labels.at[ROW].set(label))

    def phase(database: dd.Labelled, steps: float) -> gaussian.Phase:
        rows, marks = (np.asarray(part, np.float64) for part in database)
        return gaussian.ridge_phase(rows, marks, l2, steps)

    return Case("ridge", problem, world(1.0), world(-1.0), world(0.0), phase)


def _unit_rows(n: int) -> np.ndarray:
    """Records on the unit circle, spread evenly; they are the same in both worlds."""
    angles = 2.4 * np.arange(n)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)
