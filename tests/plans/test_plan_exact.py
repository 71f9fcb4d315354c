"""No certificate is below the exact divergence, and no risk bound below the exact risk.

Random streams of edits on neighbouring databases: label-ridge by the Gaussian oracle, logistic and
tanh margins in one dimension by the grid oracle. First and later requests, records that stay, that
go and that are inserted later, and several rows at once.
"""

import dataclasses

import numpy as np
import pytest
from problems import soak
from threadpoolctl import threadpool_limits

from dd_jax import constants as proved
from dd_jax.constants import ProblemConstants
from dd_jax.errors import InputError
from dd_jax.guarantees import adaptive, renyi
from dd_jax.guarantees import risk as risks
from dd_jax.guarantees.nonconvex import Bounded
from dd_jax.oracles import gaussian, grid, linear
from dd_jax.plans import plan_convex, plan_nonconvex

SLACK = 1 + 1e-7  # rounding of the oracles
TINY = 1e-9  # below this the grid oracle is rounding


@pytest.fixture(autouse=True)
def one_thread():
    """Small matrix products are quicker on one thread, above all on a busy machine."""
    with threadpool_limits(1):
        yield


def databases(rng, labels, request, rows, edits, inserted, draw):
    """Two streams of databases that differ in `rows` while those are present.

    Entry k is the labels after request k. The rows are inserted by request `inserted` (0: they were
    there) and are replaced by request `request`, in both streams by the same labels; each earlier
    request edits `edits` other rows. Entry `request + 1` on is the stream where the rows stay.
    """
    first, second = labels.copy(), labels.copy()
    streams = []
    for k in range(request + 1):
        if k:
            others = np.arange(len(rows), labels.size)
            chosen = rng.choice(others, size=min(edits, others.size), replace=False)
            first[chosen] = second[chosen] = draw(chosen.size)
        if k == inserted:
            first[: len(rows)], second[: len(rows)] = rows, -rows
        if k == request:
            stays = first.copy(), second.copy()
            first[: len(rows)] = second[: len(rows)] = draw(len(rows))
        streams.append((first.copy(), second.copy()))
    return streams, stays


def questions(rng, edits):
    request = int(rng.integers(1, 5))
    inserted = int(rng.integers(0, request)) if rng.random() < 0.4 else 0
    joint = int(rng.integers(2, edits + 1)) if edits > 1 and rng.random() < 0.4 else 1
    return request, inserted, joint


def covered(certificate, gone, stayed, renyi, advantage):
    """Both laws of a deleted and of a staying record are; how near to it the deleted ones come."""
    order, joint = certificate.order, certificate.records
    exact = renyi(order, *gone)
    assert exact <= certificate.eps_dd_records * SLACK + TINY
    assert renyi(order, *stayed) <= joint**2 * certificate.eps_dp_request * SLACK + TINY
    if joint > 1:
        return 0.0
    assert exact <= certificate.eps_dd_request * SLACK + TINY
    assert certificate.eps_dd_request <= certificate.eps_dd_adaptive * SLACK
    assert certificate.eps_dp_request <= certificate.eps_dp_adaptive * SLACK
    assert advantage(*gone) <= certificate.advantage_bound * SLACK + TINY
    return exact / certificate.eps_dd_request


# --- label-ridge -------------------------------------------------------------------------------


def ridge_case(seed):
    """A plan and two label streams; rows of one feature vector where several go at once."""
    rng = np.random.default_rng(seed)
    dim, n = int(rng.integers(1, 4)), int(rng.integers(4, 30))
    radius, label_bound = 10 ** rng.uniform(-0.5, 0.5, 2)
    l2 = radius**2 * 10 ** rng.uniform(-2, 0.5)
    edits = int(rng.integers(1, 4))
    accountant = str(rng.choice(["optimal", "unrelaxed", "paper"], p=[0.6, 0.2, 0.2]))
    problem = ProblemConstants(proved.squared(feature_norm=radius, label_bound=label_bound), l2)
    step_size = None
    if accountant == "optimal" and rng.random() < 0.5:
        step_size = rng.uniform(0.1, 1) * 2 / (2 * l2 + radius**2)
    plan = plan_convex(
        problem,
        n=n,
        dim=dim,
        order=float(rng.choice([1.5, 2, 8])),
        eps_dp=10 ** rng.uniform(-1, 1),
        eps_dd=10 ** rng.uniform(-2, 0),
        edits_per_request=edits,
        accountant=accountant,
        step_size=step_size,
        protects="label",
    )
    if rng.random() < 0.5:  # few steps, where every bound is near its limit
        plan = dataclasses.replace(
            plan,
            learn_steps=int(rng.integers(1, 6)),
            delete_steps=int(rng.integers(1, 4)),
            init_variance=0.0,
        )
    features = rng.normal(size=(n, dim))
    features *= radius / np.linalg.norm(features, axis=1, keepdims=True)
    if rng.random() < 0.5:  # little curvature, which is the worst case
        features[3:] *= 0.01
    return rng, plan, features, label_bound


def test_label_ridge():
    tightest = 0.0
    for seed in range(soak(60, 200)):
        rng, plan, features, label_bound = ridge_case(seed)
        request, inserted, joint = questions(rng, plan.edits_per_request)
        if joint > 1:
            features[:joint] = features[0]

        def draw(size, rng=rng, label_bound=label_bound):
            return rng.uniform(-label_bound, label_bound, size)

        rows = np.full(joint, label_bound)
        streams, stays = databases(
            rng, draw(plan.n), request, rows, plan.edits_per_request, inserted, draw
        )
        certificate = plan.certificate(request=request, first_inserted=inserted, records=joint)
        steps = [plan.learn_steps, *[plan.delete_steps] * request]
        runs = [
            phases(features, [labels[side] for labels in streams], plan, steps) for side in (0, 1)
        ]
        gone = [law(plan, run) for run in runs]
        staying = [
            [*run[:-1], gaussian.ridge_phase(features, labels, plan.problem.l2, steps[-1])]
            for run, labels in zip(runs, stays, strict=True)
        ]
        stayed = [law(plan, run) for run in staying]
        share = covered(certificate, gone, stayed, gaussian.renyi, gaussian.advantage)
        tightest = max(tightest, share)
        together = [law(plan, run, gaussian.joint_law) for run in staying]
        exact = gaussian.renyi(plan.order, *together)
        assert exact <= joint**2 * certificate.eps_dp_joint * SLACK
        for run, released in zip(runs, gone, strict=True):
            risk = gaussian.excess_risk(released, run[-1].hessian, run[-1].linear_term)
            assert risk <= certificate.risk_bound_request * SLACK
            assert risk <= certificate.risk_bound * SLACK
            learned = law(plan, run[:1])
            risk = gaussian.excess_risk(learned, run[0].hessian, run[0].linear_term)
            assert risk <= certificate.risk_bound_learned * SLACK
    assert tightest > 0.75  # the certificates are not merely loose


def phases(features, labels, plan, steps):
    return [
        gaussian.ridge_phase(features, row, plan.problem.l2, count)
        for row, count in zip(labels, steps, strict=True)
    ]


def law(plan, run, formula=gaussian.law_after):
    mean = np.zeros(plan.dim)
    return formula(run, plan.step_size, plan.noise_variance, mean, plan.init_variance)


# --- one dimension -----------------------------------------------------------------------------


def margin_gradient(features, slope, l2):
    """θ ↦ mean of a φ'(aθ) + λθ for records a = label · feature."""

    def gradient(models):
        return slope(features[:, None] * models).T @ features / features.size + l2 * models

    return gradient


def margin_objective(features, value, l2):
    def objective(models):
        return value(features[:, None] * models).mean(axis=0) + l2 / 2 * models**2

    return objective


def logistic_slope(margin):
    return -1 / (1 + np.exp(margin))


def logistic_value(margin):
    return np.logaddexp(0, -margin)


def tanh_slope(margin):
    return np.tanh(margin) ** 2 - 1


def tanh_value(margin):
    return -np.tanh(margin)


class Line:
    """Releases of a one-dimensional run as densities on one grid."""

    def __init__(self, plan, slope, value, fineness=0.4):
        self.plan, self.slope, self.value = plan, slope, value
        l2, noise = plan.problem.l2, plan.noise_variance
        spread = np.sqrt(max(noise / (l2 * (1 - plan.step_size * l2 / 2)), plan.init_variance))
        reach = plan.problem.lipschitz / l2 + (5 + 2 * plan.order) * spread
        self.grid = grid.grid_for(-reach, reach, plan.step_size, noise, fineness)
        self.start = grid.gaussian_density(self.grid, 0.0, plan.init_variance)

    def releases(self, stream):
        """The density after every database of the stream."""
        found = [self.next(stream[0], self.start, self.plan.learn_steps)]
        for features in stream[1:]:
            found.append(self.next(features, found[-1], self.plan.delete_steps))
        return found

    def next(self, features, density, steps):
        """The density after some steps on one database."""
        phase = grid.Phase(margin_gradient(features, self.slope, self.plan.problem.l2), steps)
        return grid.law_after(
            [phase], self.plan.step_size, self.plan.noise_variance, density, self.grid
        )

    def risk(self, features, density):
        objective = margin_objective(features, self.value, self.plan.problem.l2)
        least = objective(np.linspace(self.grid.low[0], self.grid.high[0], 20001)).min()
        return grid.expectation(objective, density) - least


def line_streams(rng, plan, radius, request, inserted, joint):
    def draw(size):
        return rng.uniform(-radius, radius, size)

    rows = np.full(joint, radius)
    return databases(rng, draw(plan.n), request, rows, plan.edits_per_request, inserted, draw)


def check_risks(line, streams, releases, certificate):
    last = line.risk(streams[-1], releases[-1])
    assert last <= certificate.risk_bound_request + 1e-9
    assert last <= certificate.risk_bound + 1e-9
    assert line.risk(streams[0], releases[0]) <= certificate.risk_bound_learned + 1e-9


@pytest.mark.slow
def test_logistic_streams():
    tightest = 0.0
    for seed in range(1000, 1000 + soak(20, 50)):
        rng = np.random.default_rng(seed)
        radius, l2 = 10 ** rng.uniform(-0.3, 0.5), 10 ** rng.uniform(-0.8, 0.5)
        plan = plan_convex(
            ProblemConstants(proved.logistic(feature_norm=radius), l2),
            n=int(rng.integers(4, 40)),
            dim=1,
            order=float(rng.choice([1.5, 2, 4])),
            eps_dp=10 ** rng.uniform(-1, 0.5),
            eps_dd=10 ** rng.uniform(-2, 0),
            edits_per_request=int(rng.integers(1, 4)),
            step_size=rng.uniform(0.2, 1) * 2 / (2 * l2 + radius**2 / 4),
        )
        if rng.random() < 0.5:
            plan = dataclasses.replace(
                plan, learn_steps=int(rng.integers(1, 6)), delete_steps=int(rng.integers(1, 4))
            )
        request, inserted, joint = questions(rng, plan.edits_per_request)
        streams, stays = line_streams(rng, plan, radius, request, inserted, joint)
        certificate = plan.certificate(request=request, first_inserted=inserted, records=joint)
        line = Line(plan, logistic_slope, logistic_value)
        gone = [line.releases([pair[side] for pair in streams]) for side in (0, 1)]
        last = [side[-1] for side in gone]
        stayed = [line.next(stays[side], gone[side][-2], plan.delete_steps) for side in (0, 1)]
        share = covered(certificate, last, stayed, grid.renyi, grid.total_variation)
        tightest = max(tightest, share)
        for side in (0, 1):
            check_risks(line, [pair[side] for pair in streams], gone[side], certificate)
    assert tightest > 0.02


@pytest.mark.slow
def test_tanh_streams():
    closest = 0.0
    for seed in range(2000, 2000 + soak(10, 20)):
        rng = np.random.default_rng(seed)
        l2, ratio = rng.uniform(2, 8), rng.uniform(0.1, 0.4)
        plan = plan_nonconvex(
            ProblemConstants(proved.tanh_margin(), l2),
            n=int(rng.integers(30, 100)),
            dim=1,
            order=float(rng.choice([1.3, 1.7])),
            eps_dp=2.0,
            eps_dd=rng.uniform(0.3, 1.5),
            edits_per_request=int(rng.integers(1, 4)),
            form=str(rng.choice(["sharp", "refined", "tuned"])),
            noise_variance=1 / ratio,
        )
        request, inserted, joint = questions(rng, plan.edits_per_request)
        streams, stays = line_streams(rng, plan, 1.0, request, inserted, joint)
        unseen = plan.certificate(request=request, first_inserted=inserted, records=joint)
        seen = plan.certificate(1, request, first_inserted=inserted, records=joint)
        line = Line(plan, tanh_slope, tanh_value, fineness=0.45)
        gone = [line.releases([pair[side] for pair in streams]) for side in (0, 1)]
        for side in (0, 1):
            for k, (pair, density) in enumerate(zip(streams, gone[side], strict=True)):
                objective = margin_objective(pair[side], tanh_value, l2)
                gibbs = grid.gibbs_density(line.grid, objective, plan.noise_variance)
                exact = grid.renyi(plan.order, density, gibbs)
                assert exact <= unseen.eps_dd + TINY
                if k == request:
                    assert exact <= unseen.eps_dd_request + TINY
                    closest = max(closest, exact / unseen.eps_dd_request)
            check_risks(line, [pair[side] for pair in streams], gone[side], unseen)
            check_risks(line, [pair[side] for pair in streams], gone[side], seen)
        last = [side[-1] for side in gone]
        stayed = [line.next(stays[side], gone[side][-2], plan.delete_steps) for side in (0, 1)]
        covered(seen, last, stayed, grid.renyi, grid.total_variation)
        if joint == 1:
            assert grid.total_variation(*last) <= unseen.advantage_bound + 1e-7
    assert 1e-3 < closest < 1


def test_the_risk_of_a_model_that_hardly_learned_is_covered():
    """With K_L = 0 the learned model is the start, however close later ones are to their law."""
    plan = plan_nonconvex(
        ProblemConstants(proved.tanh_margin(), 0.1),
        n=1000,
        dim=1,
        order=2.0,
        eps_dp=1e6,
        eps_dd=0.5,
        noise_variance=0.1,
        dtype="float64",
    )
    request_number = 2
    unlearned = dataclasses.replace(plan, learn_steps=0, delete_steps=plan.learn_steps)
    models = np.linspace(-40, 40, 400_001)
    objective = margin_objective(np.ones(1), tanh_value, 0.1)(models)
    start = np.exp(-(models**2) / 2)
    exact = start @ objective / start.sum() - objective.min()
    assert exact == pytest.approx(0.8438, abs=1e-4)
    for adaptivity in (0, 1):
        certificate = unlearned.certificate(adaptivity, request_number)
        assert exact <= certificate.risk_bound_learned <= certificate.risk_bound
        assert certificate.risk_bound_paper > 1e17
    found = unlearned.certificate(request=request_number)
    assert found.risk_bound_request < 0.4 < exact  # which holds after the request alone
    case = Bounded(2, 1.0, 0.1, plan.problem.loss.smoothness, 1.0, plan.n, 1)
    expected = risks.excess_risk_nonconvex(case, 0.1, plan.step_size, found.eps_dd_request)
    assert found.risk_bound_request == expected
    # The other way round, learning is what is good, and no request that follows.
    idle = dataclasses.replace(plan, delete_steps=0).certificate(request=request_number)
    assert idle.risk_bound_learned < 0.4 < idle.risk_bound
    assert idle.risk_bound_learned < idle.risk_bound_request <= idle.risk_bound


def test_the_risk_of_a_short_run_is_covered_whichever_phase_is_short():
    features = np.ones(30)
    plan = plan_nonconvex(
        ProblemConstants(proved.tanh_margin(), 2.0),
        n=30,
        dim=1,
        order=1.5,
        eps_dp=10.0,
        eps_dd=0.5,
        noise_variance=2.0,
    )
    for learn_steps in (0, 1, 20, plan.learn_steps):
        for delete_steps in (0, 1, plan.delete_steps):
            short = dataclasses.replace(plan, learn_steps=learn_steps, delete_steps=delete_steps)
            line = Line(short, tanh_slope, tanh_value)
            releases = line.releases([features, -features])
            for adaptivity in (0, 1):
                certificate = short.certificate(adaptivity)
                check_risks(line, [features, -features], releases, certificate)
                learned = line.risk(features, releases[0])
                assert learned <= certificate.risk_bound + 1e-9


def linear_plan(**options):
    settings = {"n": 100, "dim": 1, "order": 2, "eps_dp": 1.0, "eps_dd": 1e-3, "step_size": 0.5}
    return plan_convex(ProblemConstants(proved.linear(), 1.0), **(settings | options))


def recoded(plan, **steps):
    """R₂ that a recoding requester with one look at the learned model reaches."""
    constants = (2, 1.0, 1.0, plan.noise_variance, 100, plan.step_size, plan.learn_steps)
    return linear.recoding_renyi(*constants, **steps)


def test_what_an_adaptive_requester_reaches_is_covered():
    """The recoding requester: R₂ = 0.523 of a deleted and 1.523 of a staying record at ε_dp = 1."""
    plan = linear_plan(eps_dd=1e-6)
    unseen, seen = plan.certificate(), plan.certificate(1)
    leak = adaptive.recoding_leak(2, renyi.gdp_from_linear_renyi(2, unseen.eps_dp))
    assert leak == pytest.approx(0.523, abs=5e-4)
    assert unseen.eps_dd < leak <= seen.eps_dd_request <= seen.eps_dd_adaptive
    assert unseen.eps_dp < leak + 1 <= seen.eps_dp_adaptive


@pytest.mark.parametrize(
    ("adaptivity", "request_number", "observed"), [(1, 1, ()), (3, 4, (0,)), (1, 3, (7,))]
)
def test_an_adaptivity_above_the_listed_looks_is_refused(adaptivity, request_number, observed):
    """The list alone would certify less than a recoding requester with one look reaches."""
    plan = linear_plan()
    with pytest.raises(InputError, match="adaptivity"):
        plan.certificate(adaptivity, request_number, observed=observed)
    goes = recoded(plan, delete_steps=plan.delete_steps)
    stays = recoded(plan, present_steps=plan.delete_steps)
    blind, one_look = plan.certificate(observed=()), plan.certificate(observed=(0,))
    assert blind.eps_dd_request < 1e-3 < 0.5 < goes <= one_look.eps_dd_request
    assert blind.eps_dp_request < stays <= one_look.eps_dp_request
    number_only = plan.certificate(adaptivity, request_number)
    assert goes <= number_only.eps_dd_request
    assert stays <= number_only.eps_dp_request
    # The looks decide p where p is not stated, or stated too small.
    assert blind.adaptivity == 0
    assert one_look == plan.certificate(1, observed=(0,))
    assert plan.certificate(1, 3, observed=(0, 2)).adaptivity == 2


@pytest.mark.parametrize("accountant", ["unrelaxed", "paper"])
def test_accountants_without_intervals_cover_a_listed_look_as_an_unlisted_one(accountant):
    plan = linear_plan(step_size=0.1, accountant=accountant)
    stays = recoded(plan, present_steps=plan.delete_steps)
    goes = recoded(plan, delete_steps=plan.delete_steps)
    listed, counted = plan.certificate(observed=(0,)), plan.certificate(1)
    assert stays <= listed.eps_dp_request == counted.eps_dp_request
    assert goes <= listed.eps_dd_request == counted.eps_dd_request
    expected = min(counted.eps_dp_adaptive, counted.eps_dp_joint)
    assert listed.eps_dp_request == expected > plan.certificate().eps_dp_request
    if accountant == "unrelaxed":
        assert stays > plan.certificate().eps_dp_request
