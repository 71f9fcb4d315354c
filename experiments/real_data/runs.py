"""Real runs on one data set: a stream of deletions, learning from scratch, and an audit."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import dd_jax as dd
from dd_jax import erm, noisy_gd, requesters
from dd_jax.audit import claims
from dd_jax.audit.settings import base as audits
from dd_jax.audit.settings.base import (
    GAUSSIAN,
    TARGET_ROW,
    AuditedClaim,
    AuditSetting,
    Interaction,
)
from dd_jax.audit.settings.logistic import along, worst_record
from experiments.cache import Runner

CHECKPOINTS = 24
_RELEASES = (0, 1)
_CHUNK = 100


def stream(problem: dd.Problem, train: dd.Labelled, deletions: int) -> dd.Edit:
    """Row after row is blanked, one per request."""
    rows = range(deletions)
    return requesters.stack_edits([dd.deletion(problem.loss, train, [row]) for row in rows])


def releases(
    runner: Runner, name: str, problem: dd.Problem, plan: dd.Plan, train, edits, seeds: int, key
) -> np.ndarray:
    """φ_0, φ_1, … of the whole stream: (seeds, deletions + 1, d)."""
    curator = noisy_gd.mechanism(problem, plan)
    num_requests = len(edits.index)

    def run(key, train, edits):
        requester = requesters.fixed_stream(edits)
        return dd.interact(key, curator, requester, train, num_requests=num_requests)[1].releases

    return runner.over_seeds(f"{name}-stream", run, key, seeds, train, edits, chunk=_CHUNK)


def learning(
    runner: Runner, name: str, problem: dd.Problem, plan: dd.Plan, train, seeds: int, key
) -> np.ndarray:
    """Learning from scratch, looked at after `checkpoints` steps: (seeds, checkpoints, d)."""
    kept = checkpoints(plan.learn_steps) - 1

    def run(key, train):
        start_key, run_key = jax.random.split(key)
        start = noisy_gd.standard_normal_like(start_key, problem.loss.template(train))
        models = noisy_gd.trajectory(
            run_key,
            start * jnp.sqrt(jnp.float32(plan.init_variance)),
            train,
            problem,
            step_size=plan.step_size,
            noise_variance=plan.noise_variance,
            num_steps=plan.learn_steps,
        )
        return models[kept]

    return runner.over_seeds(f"{name}-learning", run, key, seeds, train, chunk=_CHUNK)


def checkpoints(learn_steps: int) -> np.ndarray:
    """About `CHECKPOINTS` numbers of steps from 1 to K_L, ever further apart."""
    spaced = np.geomspace(1, learn_steps, min(CHECKPOINTS, learn_steps))
    return np.unique(np.round(spaced).astype(int))


def judged_requests(deletions: int, count: int) -> np.ndarray:
    """At most so many releases, evenly spaced, the first and the last among them."""
    return np.unique(np.linspace(0, deletions, count).round().astype(int))


_minimise = jax.jit(lambda problem, database, start: erm.minimise(problem, database, start).params)


@jax.jit
def _excess_risks(problem, models, database, optimum):
    return jax.lax.map(lambda model: erm.excess_risk(problem, model, database, optimum), models)


def stream_risks(
    problem: dd.Problem, models: np.ndarray, train, edits: dd.Edit, judged: np.ndarray
) -> np.ndarray:
    """Excess risk of the judged releases on their own databases: (seeds, judged)."""
    optimum, found = problem.loss.template(train), []
    for request in judged:
        database = _edited(train, edits, request)
        optimum = _minimise(problem, database, optimum)
        found.append(np.asarray(_excess_risks(problem, models[:, request], database, optimum)))
    return np.stack(found, axis=1)


def _edited(train: dd.Labelled, edits: dd.Edit, request: int) -> dd.Labelled:
    """The database after so many edits, on the host: slices of ever new shapes compile anew."""
    rows = np.asarray(edits.index)[:request, 0]

    def leaf(records, new):
        records = np.array(records)
        records[rows] = np.asarray(new)[:request, 0]
        return records

    return jax.tree.map(leaf, train, edits.record)


def learning_risks(problem: dd.Problem, models: np.ndarray, train) -> np.ndarray:
    """Excess risk of every checkpoint: (seeds, checkpoints)."""
    optimum = _minimise(problem, train, problem.loss.template(train))
    risks = _excess_risks(problem, models.reshape(-1, models.shape[-1]), train, optimum)
    return np.asarray(risks).reshape(models.shape[:2])


def accuracies(models: np.ndarray, test: dd.Labelled) -> np.ndarray:
    """Share of held-out records that each model gets right, over the leading axes."""
    return np.mean(models @ np.asarray(test.features).T * np.asarray(test.label) > 0, axis=-1)


def audit_setting(
    name: str, problem: dd.Problem, plan: dd.Plan, train, config: Any
) -> AuditSetting:
    """A record made to be told from its neighbour: in release 0 it stays, before release 1 it goes.

    Both claims of the certificate are judged on the same interactions.
    """
    target = worst_record(problem, train)
    database = dd.apply_edit(train, dd.replacement([TARGET_ROW], target.record))
    alternative = dd.replacement([TARGET_ROW], target.other)
    delete = requesters.stack_edits([dd.deletion(problem.loss, train, [TARGET_ROW])])
    plain = (noisy_gd.mechanism(problem, plan), requesters.fixed_stream)
    interaction = Interaction(*plain, database, alternative, _RELEASES, 1, (delete,), _CHUNK)
    certificate = plan.certificate(request=1)
    score = along(target.direction)

    def case(kind: claims.Which, words, release):
        claim = claims.of_certificate(certificate, kind)
        # The paper's theorems need a smaller step size than the plan's.
        return AuditedClaim(
            kind, words, "deleted", (release,), claim, math.nan, None, score, GAUSSIAN
        )

    cases = (case("dp", "stays", 0), case("deletion", "deleted", 1))
    return AuditSetting(
        f"{name}-audit", name, dict(config or {}), plan, {"deleted": interaction}, cases
    )


def audit(
    setting: AuditSetting, key: Array, seeds: int, confidence: float, runner: Runner
) -> list[audits.Judged]:
    """Whether samples contradict the certificate; at one confidence for both claims together."""
    keep = audits.Keep(runner.folder)
    return audits.run(setting, key, seeds, confidence=confidence, keep=keep, say=runner.say)
