"""The accuracy that a stream of deletions ends with, by real runs.

Accuracy belongs to the law of the last model. Systems that share their steps (θ ← θ - ηg +
√(2ησ²)N with the same η and σ²) share that law once learning has converged: more steps per request
leave it where it is. So each kind of step is run once per noise, over the whole stream with one
pass per request, and not again for every accountant.
"""

import jax
import jax.numpy as jnp
import numpy as np

import dd_jax as dd
from dd_jax import noisy_gd
from dd_jax.baselines import pnsgd
from dd_jax.baselines.projected import descend
from dd_jax.data import Dataset
from dd_jax.requesters import fixed_stream, stack_edits
from experiments import short_programs
from experiments.sequential_rows import Setting


def stream(setting: Setting, train: dd.Labelled) -> dd.Edit:
    """Row after row is blanked, one per request."""
    loss = setting.problem.loss
    return stack_edits([dd.deletion(loss, train, [row]) for row in range(setting.deletions)])


def accuracy(model: jax.Array, test: dd.Labelled) -> jax.Array:
    """Share of held-out records on the right side."""
    return jnp.mean(test.features @ model * test.label > 0)


def full_batch(setting: Setting, data: Dataset, noises, steps: int, seeds: int, key) -> np.ndarray:
    """Noisy-GD through `dd.interact`, one pass per request: accuracy (noises, seeds)."""
    requester = fixed_stream(stream(setting, data.train))
    l2 = setting.problem.constants.l2

    def one(key, noise, train, test):
        start = noise / (l2 * (1 - setting.step_size * l2 / 2))
        schedule = noisy_gd.Schedule(setting.step_size, noise, start, steps, 1)
        curator, _ = dd.interact(
            key,
            noisy_gd.mechanism(setting.problem, schedule),
            requester,
            train,
            num_requests=setting.deletions,
        )
        return accuracy(curator.params, test)

    return _over(one, key, noises, seeds, data)


def mini_batch(
    setting: Setting, data: Dataset, noises, batch_size: int, epochs: int, seeds: int, key
) -> np.ndarray:
    """PNSGD, learning and then one pass per request: accuracy (noises, seeds)."""
    edits = stream(setting, data.train)

    def one(key, noise, train, test):
        order_key, learn_key, serve_key = jax.random.split(key, 3)
        order = pnsgd.draw_order(order_key, setting.n, batch_size)
        numbers = {"step_size": setting.step_size, "noise_variance": noise}

        def passes(key, model, records, epochs):
            problem = setting.problem
            return pnsgd.run(key, model, records, problem, order, epochs=epochs, **numbers)

        def serve(carry, xs):
            model, records = carry
            number, edit = xs
            records = dd.apply_edit(records, edit)
            return (passes(jax.random.fold_in(serve_key, number), model, records, 1), records), None

        model = passes(learn_key, setting.problem.loss.template(train), train, epochs)
        xs = (jnp.arange(setting.deletions), edits)
        (model, _), _ = jax.lax.scan(serve, (model, train), xs)
        return accuracy(model, test)

    return _over(one, key, noises, seeds, data)


def perturbed(setting: Setting, data: Dataset, made, seeds: int, key) -> np.ndarray:
    """The last request of Perturbed-GD: accuracy (seeds,).

    T_i steps leave γ^{T_i} of the noise that they start from, so the model before the last request
    is taken as learned on its database instead of after all the requests before.
    """
    edits = stream(setting, data.train)
    numbers = {"step_size": made.step_size, "radius": made.radius}

    def move(model, records, steps):
        return descend(model, records, setting.problem, num_steps=steps, **numbers)

    def one(key, noise, train, test):
        first_key, last_key = jax.random.split(key)
        rows = jax.tree.map(lambda leaf: leaf[:, 0], edits)
        before = dd.apply_edit(train, jax.tree.map(lambda leaf: leaf[:-1], rows))
        after = dd.apply_edit(train, rows)
        model = move(setting.problem.loss.template(train), before, made.learn_steps)
        model = model + noise * jax.random.normal(first_key, model.shape)
        model = move(model, after, made.delete_steps)
        return accuracy(model + noise * jax.random.normal(last_key, model.shape), test)

    return _over(one, key, np.array([made.noise_deviation]), seeds, data)[0]


def _over(one, key, noises, seeds: int, data: Dataset) -> np.ndarray:
    """`one(key, noise, train, test)` over all noises and seeds in one program."""
    noises = np.asarray(noises, np.float32)
    keys = jax.random.split(key, (len(noises), seeds))
    over_seeds = jax.vmap(one, (0, None, None, None))
    run = short_programs.jit(jax.vmap(over_seeds, (0, 0, None, None)), data.train.features.size)
    return np.asarray(run(keys, jnp.asarray(noises), data.train, data.test))
