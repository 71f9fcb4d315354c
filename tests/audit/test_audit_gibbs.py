"""Draws of the Gibbs law against densities and a Markov chain, and the one-sided audit on them."""

from dataclasses import replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from problems import signed, soak
from scipy import stats

import dd_jax as dd
from dd_jax.audit import (
    RenyiClaim,
    audit,
    gibbs_samples,
    gibbs_setting,
    of_certificate,
    quadratic,
)
from dd_jax.audit.settings import base as audits
from dd_jax.audit.settings import find
from dd_jax.audit.settings import nonconvex as audit_nonconvex
from dd_jax.errors import InputError
from dd_jax.oracles import grid

L2, NOISE = 0.77, 1.0
DRAWS = soak(500, 15_000)
SEEDS = soak(20_000, 200_000)
only_soak = pytest.mark.skipif(soak(True, False), reason="long runs, in `make soak`")


def mean_loss(database, models):
    """The mean of -tanh(y⟨a, θ⟩) at models (m, d), without JAX."""
    margins = np.asarray(database.label)[:, None] * np.asarray(database.features, np.float64)
    return -np.tanh(models @ margins.T).mean(axis=1)


def density(database, noise_variance):
    """The Gibbs law on a grid that resolves it."""
    dim = database.features.shape[1]
    line = grid.make_grid(*([end] * dim for end in (-9.0, 9.0)), [1201 if dim == 1 else 241] * dim)

    def objective(models):
        models = models.reshape(-1, dim)
        return mean_loss(database, models) + L2 / 2 * np.sum(models**2, axis=1)

    return grid.gibbs_density(line, objective, noise_variance)


def test_draws_on_the_line_have_the_density_and_no_other():
    database, problem = signed(7, 1), dd.Problem(dd.losses.tanh_margin(), L2)
    drawn = np.asarray(gibbs_samples(jax.random.key(0), problem, database, NOISE, SEEDS))[
        :, 0
    ].astype(np.float64)

    def fits(law):
        ends = law.grid.models + law.grid.cell / 2
        masses = np.cumsum(law.values) * law.grid.cell
        return stats.kstest(drawn, lambda model: np.interp(model, ends, masses)).pvalue

    assert fits(density(database, NOISE)) > 1e-3
    assert fits(density(database, 1.2 * NOISE)) < 1e-4


def test_draws_in_the_plane_have_the_moments_of_the_density():
    database, problem = signed(6, 2), dd.Problem(dd.losses.tanh_margin(), L2)
    drawn = np.asarray(gibbs_samples(jax.random.key(0), problem, database, NOISE, SEEDS))
    moments = {
        "loss": lambda models: mean_loss(database, models),
        "first": lambda models: models[:, 0],
        "second": lambda models: models[:, 1],
        "product": lambda models: models[:, 0] * models[:, 1],
        "norm": lambda models: np.sum(models**2, axis=1),
    }
    law, wrong = density(database, NOISE), density(database, 1.2 * NOISE)
    off = []
    for moment in moments.values():
        values = moment(drawn)
        error = values.std() / np.sqrt(len(values))
        assert abs(values.mean() - grid.expectation(moment, law)) < 4 * error
        off.append(abs(values.mean() - grid.expectation(moment, wrong)) / error)
    assert max(off) > 8


@pytest.fixture(scope="module")
def network():
    """A network of six weights on eight records, and draws of its Gibbs law."""
    problem = dd.Problem(dd.losses.bounded_network(hidden=3, output_norm=1.0), 0.5)
    database = signed(8, 2)
    drawn = gibbs_samples(jax.random.key(1), problem, database, NOISE, SEEDS)
    return problem, database, drawn


def walker(problem, database, count=4, draws=DRAWS):
    """σ² ↦ draws of blackjax's NUTS, (chains, draws, d), from overdispersed starts."""
    import blackjax

    template, unravel = ravel_pytree(problem.loss.template(database))

    def chain(key, noise_variance):
        def log_density(model):
            return -dd.erm.objective(problem, unravel(model), database) / noise_variance

        sampler = blackjax.nuts(log_density, 0.5, jnp.ones(template.size))
        start_key, run_key = jax.random.split(key)
        state = sampler.init(3 * jax.random.normal(start_key, template.shape))

        def move(state, key):
            state, _ = sampler.step(key, state)
            return state, state.position

        return jax.lax.scan(move, state, jax.random.split(run_key, draws + 200))[1][200:]

    chains = jax.jit(jax.vmap(chain, in_axes=(0, None)))

    def walk(noise_variance):
        with jax.debug_key_reuse(False):  # the checker does not follow blackjax's keys
            return chains(jax.random.split(jax.random.key(2), count), jnp.float32(noise_variance))

    return walk


@only_soak
def test_draws_of_a_network_agree_with_a_markov_chain_that_has_mixed(network):
    """NUTS with R-hat and effective sample size, on the loss, the norm and every weight's square.

    Weights themselves say nothing: the law is symmetric.
    """
    from blackjax import diagnostics

    problem, database, drawn = network
    walk = walker(problem, database)
    flat = np.asarray(jax.vmap(lambda model: ravel_pytree(model)[0])(drawn))

    def looks(models):
        """Numbers of models (…, d) that are compared."""
        unravel = ravel_pytree(problem.loss.template(database))[1]
        flat = models.reshape(-1, models.shape[-1])
        values = jax.vmap(lambda m: dd.erm.objective(problem, unravel(m), database))(flat)
        found = jnp.concatenate([values[:, None], flat**2], axis=1)
        return np.asarray(found.reshape(*models.shape[:-1], -1), np.float64)

    def distance(noise_variance):
        """The largest difference of means in standard errors; refused where chains did not mix."""
        walked = looks(walk(noise_variance))
        scale = np.asarray(diagnostics.potential_scale_reduction(walked))
        effective = np.asarray(diagnostics.effective_sample_size(walked))
        assert np.all(scale < 1.03), scale
        assert np.all(effective > 200), effective
        ours = looks(jnp.asarray(flat))
        error = np.sqrt(
            ours.var(axis=0) / len(ours)
            + walked.reshape(-1, walked.shape[-1]).var(axis=0) / effective
        )
        return np.max(np.abs(ours.mean(axis=0) - walked.mean(axis=(0, 1))) / error)

    assert distance(NOISE) < 4.5
    assert distance(1.3 * NOISE) > 6


def test_bad_input_is_refused():
    database = signed(6, 2)
    for loss, noise, word in (
        (dd.losses.logistic(), 1.0, "bound"),
        (dd.losses.tanh_margin(), 0.1, "noise_variance"),
    ):
        with pytest.raises(InputError, match=word):
            gibbs_samples(jax.random.key(0), dd.Problem(loss, L2), database, noise, 10)


# --- claims ---------------------------------------------------------------------------------------


def test_the_claim_is_one_sided_and_only_for_histories_that_nobody_saw():
    plan = find("nonconvex", 2.0).plan
    claim = of_certificate(plan.certificate(request=1), "deletion-gibbs")
    assert isinstance(claim, RenyiClaim)
    assert (claim.eps, claim.two_sided, claim.mu) == (plan.certificate().eps_dd, False, None)
    assert claim.linear_in_order
    papers = dd.plan_nonconvex(
        dd.Problem(dd.losses.tanh_margin(), L2),
        n=1000,
        dim=1,
        order=4,
        eps_dp=1,
        eps_dd=0.5,
        noise_variance=20.0,
        form="paper",
        dtype="float64",
    )
    # The paper's bound is for its own order, and is judged there.
    at_its_order = of_certificate(papers.certificate(), "deletion-gibbs")
    assert {gate.route for gate in at_its_order.gates().values()} == {""}
    at_request = of_certificate(plan.certificate(request=1), "deletion-gibbs", at_request=True)
    assert at_request.claimed <= claim.claimed
    with pytest.raises(InputError, match="deletion-adaptive"):
        of_certificate(plan.certificate(1, 1), "deletion-gibbs")
    problem = dd.Problem(dd.losses.logistic(), 0.1)
    convex = dd.plan_convex(problem, n=10, dim=1, order=2, eps_dp=1, eps_dd=0.1)
    with pytest.raises(InputError, match="Gibbs"):
        of_certificate(convex.certificate(), "deletion-gibbs")


def test_two_sets_of_draws_are_not_told_apart():
    """A claim of no difference at all, over replays: false alarms at 95% are at most 5%."""
    replays, seeds = soak(100, 1000), 400
    problem, database = dd.Problem(dd.losses.tanh_margin(), L2), signed(7, 1)
    arms = [
        np.split(np.asarray(gibbs_samples(key, problem, database, NOISE, replays * seeds)), replays)
        for key in jax.random.split(jax.random.key(3))
    ]
    claim = RenyiClaim(2.0, 0.0, two_sided=False)
    alarms = sum(
        audit(pair, claim, scores=quadratic(), independent=True).refuted
        for pair in zip(*arms, strict=True)
    )
    assert stats.binomtest(alarms, replays, 0.05, alternative="greater").pvalue > 1e-3


def test_the_control_compares_with_draws_of_the_edited_database(monkeypatch):
    """In its null both arms are such draws, with keys of their own."""
    asked = []

    def draws(key, problem, database, noise_variance, seeds):
        asked.append((jax.random.key_data(key).tolist(), database))
        return np.zeros((seeds, 10))

    monkeypatch.setattr(gibbs_setting, "gibbs_samples", draws)
    null = gibbs_setting.GibbsSetting(same_record=True)
    null.sample(jax.random.key(0), 5)
    (first_key, first), (second_key, second) = asked
    assert first_key != second_key
    for left in (first, second):
        chex.assert_trees_all_equal(left, dd.apply_edit(null.database, null.edit))


# --- the audit's setting --------------------------------------------------------------------------

# Runs of thousands of steps; the controls judge short ones end to end.


def judged(setting, seeds, names=None):
    found = audits.run(
        setting,
        jax.random.key(0),
        seeds,
        confidence=0.95,
        keep=audits.Keep(None),
        say=lambda text: None,
        names=names,
    )
    return {one.audited.name: one for one in found}


@pytest.fixture(scope="module")
def setting():
    return find("nonconvex", 2.0)


def test_the_gibbs_law_is_claimed_where_nobody_saw_a_release_and_run_sums_elsewhere(setting):
    cases = {case.name: case for case in setting.audited}
    plan = setting.plan
    assert cases["adaptive-1"].claim.claimed == plan.certificate(1, 1).eps_dd_adaptive
    run_sum = 2 * plan.step_size * plan.learn_steps / (plan.noise_variance * plan.n**2)
    assert cases["adaptive-1"].claim.claimed == pytest.approx(run_sum)
    for case in cases.values():
        seen = setting.interactions[case.interaction].observe
        assert (case.comparator is None) or not seen
        assert bool(seen) == (case.name == "adaptive-1")
    for name in ("gibbs-learned", "gibbs-1", "gibbs-2"):
        assert 0 < cases[name].exact < cases[name].claim.claimed <= audit_nonconvex.EPS_DD


@pytest.fixture(scope="module")
def short(setting):
    """The plan with too few steps of a request."""
    return replace(setting.plan, delete_steps=setting.plan.delete_steps // 500)


def test_a_request_moves_the_law_by_more_than_is_certified(short):
    learned, truth, _ = audit_nonconvex.exact_divergences(short)
    assert learned < audit_nonconvex.EPS_DD < truth / 1.7


@only_soak
def test_requests_with_too_few_steps_are_found_out_and_nothing_else_is(setting, short):
    """The same learning, so its claims stand; so do the run sums, which count learning alone."""
    problem = dd.Problem(dd.losses.tanh_margin(), audit_nonconvex.L2)
    _, truth, _ = audit_nonconvex.exact_divergences(short)
    broken = setting._replace(interactions=audit_nonconvex.interactions(problem, short))
    names = ["gibbs-learned", "gibbs-1", "dp", "adaptive-1"]
    found = judged(broken, 20_000, names)
    assert [name for name in names if found[name].verdict.refuted] == ["gibbs-1"]
    assert found["gibbs-1"].numbers.lower_bound.value < truth


@only_soak
def test_the_planned_steps_are_within_every_certificate(setting):
    for found in judged(setting, 5_000).values():
        assert found.verdict.consistent


def test_batches_are_refused():
    with pytest.raises(InputError, match="batches"):
        find("nonconvex", 2.0, 3)
