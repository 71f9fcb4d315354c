"""The accuracy that a stream of deletions ends with, by real runs.

Accuracy belongs to the law of the last model. Systems that share their steps (θ ← θ - ηg +
√(2ησ²)N with the same η and σ²) share that law once learning has converged: more steps per request
leave it where it is. So each kind of step is run once per noise, over the whole stream with one
pass per request (or per several), and not again for every accountant.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import dd_jax as dd
from dd_jax import noisy_gd
from dd_jax.baselines import pnsgd
from dd_jax.baselines.base import descend
from dd_jax.data import Dataset
from dd_jax.requesters import fixed_stream, stack_edits
from experiments import short_programs
from experiments.sequential.passes import LAZY_REQUESTS, Setting, perturbed_calibration
from experiments.sequential.rows import FORMS, FULL_BATCH, LONG, MINI_BATCH, SELDOM


def accuracies(config, setting: Setting, loaded: Dataset, noises, say) -> dict[str, np.ndarray]:
    """Arrays "accuracy: kind of step" over the noises and the seeds.

    Args:
        config: a `figures.sequential.Config`: seeds, and the batches of PNSGD.
        setting, loaded, noises: what is run, on what, at which σ².
        say: told what is being done.
    """
    key = jax.random.key(config.seed)
    names = ("full", "seldom", "mini", *FORMS)
    keys = dict(zip(names, jax.random.split(key, len(names)), strict=True))
    sizes = (max(setting.learn_steps(float(s), setting.step_size) for s in noises), config.seeds)
    long = np.full_like(noises, setting.long_step)
    short = np.full_like(noises, setting.step_size)
    both = Steps(np.concatenate([short, long]), np.concatenate([noises, noises]))
    say(f"{config.deletions} deletions, full batches")
    full = full_batch(setting, loaded, both, *sizes, keys["full"])
    results = {
        f"accuracy: {FULL_BATCH}": full[: len(noises)],
        f"accuracy: {LONG}": full[len(noises) :],
    }
    say(f"{config.deletions} deletions, one pass for {LAZY_REQUESTS}")
    results[f"accuracy: {SELDOM}"] = full_batch(
        setting, loaded, Steps(long, noises), *sizes, keys["seldom"], rows=LAZY_REQUESTS
    )
    say(f"{config.deletions} deletions, batches of {config.batch_size}")
    batches = (config.batch_size, config.batch_epochs, config.batch_seeds)
    results[f"accuracy: {MINI_BATCH}"] = mini_batch(setting, loaded, noises, *batches, keys["mini"])
    for name, form in FORMS.items():
        say(name)
        made = perturbed_calibration(setting, form)
        found = perturbed(setting, loaded, made, config.seeds, keys[name])
        results[f"accuracy: {name}"] = found[None]
    return results


def stream(setting: Setting, train: dd.Labelled, rows: int = 1) -> dd.Edit:
    """Row after row is blanked, so many per request."""
    loss = setting.problem.loss
    starts = range(0, setting.deletions, rows)
    return stack_edits([dd.deletion(loss, train, list(range(k, k + rows))) for k in starts])


def accuracy(model: jax.Array, test: dd.Labelled) -> jax.Array:
    """Share of held-out records on the right side."""
    return jnp.mean(test.features @ model * test.label > 0)


class Steps(NamedTuple):
    """Noisy steps to run: η and σ² of each."""

    step_size: jax.Array | np.ndarray
    noise: jax.Array | np.ndarray


def full_batch(
    setting: Setting, data: Dataset, chosen: Steps, steps: int, seeds: int, key, *, rows: int = 1
) -> np.ndarray:
    """Noisy-GD through `dd.interact`, one pass per `rows` deletions: accuracy (choices, seeds)."""
    requester = fixed_stream(stream(setting, data.train, rows))
    l2 = setting.problem.constants.l2

    def one(key, chosen, train, test):
        start = chosen.noise / (l2 * (1 - chosen.step_size * l2 / 2))
        schedule = noisy_gd.Schedule(chosen.step_size, chosen.noise, start, steps, 1)
        curator, _ = dd.interact(
            key,
            noisy_gd.mechanism(setting.problem, schedule),
            requester,
            train,
            num_requests=setting.deletions // rows,
        )
        return accuracy(curator.params, test)

    return _over(one, key, chosen, seeds, data)


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


def _over(one, key, choices, seeds: int, data: Dataset) -> np.ndarray:
    """`one(key, choice, train, test)` over all choices (noises, say) and seeds in one program."""
    choices = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float32), choices)
    count = len(jax.tree.leaves(choices)[0])
    keys = jax.random.split(key, (count, seeds))
    over_seeds = jax.vmap(one, (0, None, None, None))
    run = short_programs.jit(jax.vmap(over_seeds, (0, 0, None, None)), data.train.features.size)
    return np.asarray(run(keys, choices, data.train, data.test))
