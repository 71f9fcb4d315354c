"""Requesters that see releases before they choose an edit: what the certificates then say.

A p-adaptive requester saw p releases between the record's first insertion and its last deletion (or
up to now, for a record that stays). Releases before and after cost nothing here, because
both worlds coincide until the record is inserted; they do count for closeness to the Gibbs law,
which needs a history without any adaptivity (`nonconvex`). Every sound form here assumes that the
requester is one fixed map of its observed releases, its own edits and coins independent of the
noise; that it did not itself insert the record; and that the replacement does not depend on the
record it replaces. It may know all other rows and the record's index. The same numbers cover an
observer who also holds the p old releases.

Release i follows request i; release 0 follows learning. `first_inserted` is 0 for a record of the
initial database, else the request that FIRST inserted it; `request` is the LAST one that deletes
it. A record that left and came back counts as present from the one to the other.

The paper's reduction theorem (`thm:reduction`) is the source of the sums; erratum E2 repairs it.
"""

import numpy as np
from scipy import special

from dd_jax import checks
from dd_jax.errors import InputError
from dd_jax.guarantees import floats, renyi
from dd_jax.guarantees.convex import Descent, privacy_lipschitz, privacy_optimal
from dd_jax.guarantees.streams import Stream

# --- records that go ----------------------------------------------------------------------------


def deletion_adaptive_as_stated(eps_dd, eps_dp, adaptivity):
    """The paper's reduction, for comparison only: ε = ε_dd + p ε_dp. False in general.

    The reduction theorem, `thm:reduction`, claims this for every mechanism that has ε_dd for non-
    adaptive requesters and is (q, ε_dp)-Rényi DP. Conditioning on the edits changes the law of the
    previous model, so the non-adaptive bound does not apply: see erratum E2 for a counterexample.
    The number itself is sound where `deletion_adaptive` applies; for non-convex losses use
    `deletion_run_sum`.
    """
    eps_dd = checks.nonnegative("eps_dd", eps_dd)
    eps_dp = checks.nonnegative("eps_dp", eps_dp)
    adaptivity = checks.steps("adaptivity", adaptivity)
    seen = np.where(adaptivity == 0, 0.0, floats.product(adaptivity, eps_dp))
    return floats.plain(eps_dd + seen)


def deletion_adaptive(eps_dd, eps_dp, adaptivity):
    """What remains of a deleted record against a p-adaptive requester, convex losses.

    ε = ε_dd + p ε_dp

    Guarantee: (q, ε)-data-deletion for every p-adaptive requester.
    Assumes: eps_dd and eps_dp hold from any fixed start, as every convex bound here does; the
    module's conditions on the requester. Erratum E2; repairs `thm:reduction`.
    """
    return deletion_adaptive_as_stated(eps_dd, eps_dp, adaptivity)


def deletion_adaptive_mu(mu_dd, mu_dp, adaptivity):
    """`deletion_adaptive` in Gaussian DP: μ = √(μ_dd² + p μ_dp²)."""
    mu_dd = checks.nonnegative("mu_dd", mu_dd)
    mu_dp = checks.nonnegative("mu_dp", mu_dp)
    adaptivity = checks.steps("adaptivity", adaptivity)
    seen = np.where(adaptivity == 0, 0.0, floats.product(np.sqrt(adaptivity), mu_dp))
    return floats.plain(np.hypot(mu_dd, seen))


def deletion_adaptive_intervals(
    run: Descent, learn_steps, delete_steps, request, observed, *, first_inserted=0
):
    """What remains after request i, when it is known which releases the requester saw.

    ε = Σ_k ε_dp (1 - c^{T_k})/(1 + c^{T_k}) + ε_dd(K_I, K_U),  K_I = (i - 1 - s_p) K_U

    Between one observed release and the next lie T_k steps with the record, after the last one K_I
    steps; the last term vanishes when the release just before the deletion was seen.

    Guarantee: (q, ε)-data-deletion for every requester that saw at most the releases `observed`;
    never above `deletion_adaptive`, and linear in the order (μ-GDP with μ = √(2ε/q)).
    Assumes: what `deletion_optimal` assumes; the module's conditions on the requester. Erratum E2.

    Args:
        request: i ≥ 1, the last request that deletes the record.
        observed: the releases seen, as whole numbers; those outside [first_inserted, request - 1]
            are free.
        first_inserted: 0, or the request j < i that first inserted the record.
    """
    stream = Stream(run, learn_steps, delete_steps)
    request, first_inserted = _one_window(request, first_inserted)
    seen = checks.steps("observed", observed)
    return stream.deletion_at(request, np.ravel(seen), first_inserted=first_inserted)


def deletion_run_sum(run: Descent, learn_steps, delete_steps, request, *, first_inserted=0):
    """What remains of a record deleted by request i, for any loss and any requester.

    ε = q L² η (K_L + (i-1) K_U) / (σ² n²),  or q L² η (i-j) K_U / (σ² n²) from request j on

    Guarantee: (q, ε)-data-deletion between neighbouring runs for requesters of any adaptivity, also
    jointly with all releases, and μ-GDP with μ = √(2ε/q).
    Assumes: L-Lipschitz (or clipped) gradients; replace-one; the module's conditions on the
    requester.
    Erratum E2: for non-convex losses this replaces `thm:reduction`.
    """
    total = steps_with_record(learn_steps, delete_steps, request, first_inserted)
    return privacy_lipschitz(run, total)


def deletion_runs(eps_dp, request, *, first_inserted=0):
    """`deletion_run_sum` when only the privacy (q, ε_dp) of each run is known: (i - j) ε_dp.

    Guarantee: (q, ε)-data-deletion for requesters of any adaptivity, i·ε_dp for a record of the
    initial database. Assumes: eps_dp bounds one run of learning or deletion from any fixed start.
    Erratum E2.
    """
    request, first_inserted = _window(request, first_inserted)
    eps_dp = checks.nonnegative("eps_dp", eps_dp)
    return floats.plain(floats.product(request - first_inserted, eps_dp))


# --- records that stay --------------------------------------------------------------------------


def privacy_adaptive(eps_dp, adaptivity):
    """One release, when the requester has seen p releases since the record's insertion.

    ε = (p + 1) ε_dp

    Guarantee: (q, ε)-Rényi DP of the next release against p-adaptive requesters, convex losses; it
    covers an observer who also holds the p releases seen.
    Assumes: eps_dp bounds one release from any fixed start (every convex bound here does).
    Erratum E9: ε_dp alone is false for p ≥ 1.
    """
    eps_dp = checks.nonnegative("eps_dp", eps_dp)
    adaptivity = checks.steps("adaptivity", adaptivity)
    return floats.plain(floats.product(adaptivity + 1, eps_dp))


def privacy_adaptive_intervals(
    run: Descent, learn_steps, delete_steps, requests, observed, *, first_inserted=0
):
    """Release i and the observed ones before it jointly, for a record that stays, convex losses.

    ε = Σ_k ε_dp (1 - c^{T_k})/(1 + c^{T_k}), one term for each interval between observed releases
    and one from the last of them to release i.

    Guarantee: (q, ε)-Rényi DP against every requester that saw at most the releases `observed`;
    never above `privacy_adaptive`.
    Assumes: what `privacy_optimal` assumes; the module's conditions on the requester. Erratum E9.
    """
    stream = Stream(run, learn_steps, delete_steps)
    request, first_inserted = _one_window(checks.steps("requests", requests) + 1, first_inserted)
    seen = checks.steps("observed", observed)
    return stream.privacy_at(request - 1, np.ravel(seen), first_inserted=first_inserted)


def privacy_all_releases(run: Descent, learn_steps, delete_steps, requests):
    """All i+1 releases jointly, for a record that stays through i requests.

    ε = ε_dp [(1 - c^{K_L}) / (1 + c^{K_L}) + i (1 - c^{K_U}) / (1 + c^{K_U})],  ε_dp = sup_K

    Guarantee: (q, ε)-Rényi DP of (θ̂₀, …, θ̂_i) jointly, against requesters of any adaptivity, and
    μ-GDP with μ = √(2ε/q).
    Assumes: what `privacy_optimal` assumes. Attained by the linear loss from a fixed start.
    """
    requests = checks.steps("requests", requests)
    learned = privacy_optimal(run, learn_steps)
    per_request = privacy_optimal(run, delete_steps)
    later = np.where(requests == 0, 0.0, floats.product(requests, per_request))
    return floats.plain(learned + later)


def privacy_run_sum(run: Descent, learn_steps, delete_steps, requests, *, first_inserted=0):
    """All releases up to i jointly, for a record that stays, any loss and any requester.

    ε = q L² η (K_L + i K_U) / (σ² n²),  or q L² η (i-j+1) K_U / (σ² n²) from request j on

    Guarantee: (q, ε)-Rényi DP of release i and of all releases jointly, and μ-GDP with μ = √(2ε/q).
    Assumes: L-Lipschitz (or clipped) gradients; replace-one; the module's conditions on the
    requester.
    Erratum E9.
    """
    requests = checks.steps("requests", requests)
    return deletion_run_sum(
        run, learn_steps, delete_steps, requests + 1, first_inserted=first_inserted
    )


def steps_with_record(learn_steps, delete_steps, request, first_inserted):
    """How many steps saw a record before request i deleted it: K_L + (i-1)K_U, or (i-j)K_U."""
    learn_steps = checks.steps("learn_steps", learn_steps)
    delete_steps = checks.steps("delete_steps", delete_steps)
    request, first_inserted = _window(request, first_inserted)
    initial = np.where(first_inserted == 0, learn_steps, delete_steps)
    later = request - 1 - first_inserted
    return floats.plain(initial + np.where(later == 0, 0.0, floats.product(later, delete_steps)))


# --- why p matters: the recoding requester of erratum E2 ----------------------------------------


def recoding_leak(order, mu_dp):
    """Exactly what E2's recoding requester leaves of a deleted record, however many steps follow.

    The requester sees one release, in which the record shifts the model by μ standard deviations,
    and recodes all other rows by the sign it sees. The later model then shows a coin of bias
    Φ(±μ/2):

    R_q = log(p^q (1-p)^{1-q} + (1-p)^q p^{1-q}) / (q-1),  p = Φ(μ/2)

    For q = 2 and ε_dp = qμ²/2 = 1 it is 0.523 for every ε_dd: so ε_dd alone is false for p ≥ 1.
    """
    order = checks.order(order)
    half = checks.nonnegative("mu_dp", mu_dp) / 2
    likely, unlikely = special.log_ndtr(half), special.log_ndtr(-half)
    with np.errstate(all="ignore"):
        first = order * likely + (1 - order) * unlikely
        second = order * unlikely + (1 - order) * likely
        value = np.logaddexp(first, second) / (order - 1)
    value = np.where(np.isnan(value), np.inf, value)
    return floats.plain(np.clip(value, 0.0, 0.5 * floats.product(order, 2 * half, 2 * half)))


def recoding_leak_staying(order, mu_dp):
    """The same requester against a record that stays: `recoding_leak` + ε_dp, exactly.

    For q = 2 and ε_dp = 1 it is 1.523: so ε_dp alone is false for p ≥ 1, and (p + 1)ε_dp = 2 holds.
    Erratum E9.
    """
    return renyi.compose_renyi(recoding_leak(order, mu_dp), renyi.renyi_from_gdp(order, mu_dp))


def _window(request, first_inserted):
    request = checks.steps("request", request)
    first_inserted = checks.steps("first_inserted", first_inserted)
    if np.any(~(first_inserted < request)):
        raise InputError(
            f"request = {np.min(request):g} is not after first_inserted = "
            f"{np.max(first_inserted):g}; count requests from 1, and give first_inserted=0 for a "
            f"record of the initial database."
        )
    return request, first_inserted


def _one_window(request, first_inserted) -> tuple[int, int]:
    request, first_inserted = _window(request, first_inserted)
    if request.ndim or first_inserted.ndim:
        raise InputError(
            "request and first_inserted are not single numbers; give one interaction at a time."
        )
    return int(request), int(first_inserted)
