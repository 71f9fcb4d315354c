"""A curator's whole life as a schedule: learning, then the steps of every request, by batch.

Steps are counted from 0 through all requests: learning takes the steps before K_L, request i those
from K_L + (i-1)K_U on, and step k uses batch k mod m. The counter is public and goes on from one
request to the next. (Restarting it at batch 0 would use the first batches far more often, and the
numbers here would be false.) A record's batch follows from its row number, which is public too.

Every number is a Rényi divergence of the descent's order; linear in the order, so that μ = √(2ε/q).
"""

import collections
import itertools
import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dd_jax import checks
from dd_jax.errors import CertificateRefused, InputError
from dd_jax.guarantees import floats, lattice, schedules
from dd_jax.guarantees.convex import Descent, of_uses

Factors = tuple[tuple[float, float], ...]
# The supremum over all requests is searched until what is left of the past is this share of it.
_NEGLIGIBLE = 1e-12
# More steps than this would take minutes to pool.
_MOST_STEPS = 10_000_000
# Longer histories than this, which takes seconds, get the supremum over all histories.
_LONG = 1_000_000


def pairs(name: str, factors, steps: int | None = None) -> Factors | None:
    """Factors of η and σ² as plain tuples, refused unless they are one pair for each step."""
    if factors is None:
        return None
    given = checks.positive(name, factors)
    if given.shape != (given.size // 2 if steps is None else steps, 2):
        many = "each step" if steps is None else f"each of the {steps} steps"
        raise InputError(f"{name} have shape {given.shape}; give a pair of factors for {many}.")
    return tuple(map(tuple, given.tolist()))


@dataclass(frozen=True)
class Stream:
    """Noisy-GD through learning and requests.

    Attributes:
        run: the descent, with its number of batches. Where step sizes and noise vary, its own
            multiply the factors below.
        learn_steps: K_L. delete_steps: K_U.
        learn, delete: for each of these steps a pair of factors, of η and of σ²; None for ones.
        rounding: g, a gap that rounding adds to every step (`guarantees.lattice`); 0 for the run in
            real numbers. Numbers are then linear in the order, but not Gaussian DP.
    """

    run: Descent
    learn_steps: int
    delete_steps: int
    learn: Factors | None = None
    delete: Factors | None = None
    rounding: float = 0.0

    def __post_init__(self):
        for name in ("learn_steps", "delete_steps"):
            steps = checks.steps(name, getattr(self, name), endless=False)
            object.__setattr__(self, name, int(steps))
        for name in ("learn", "delete"):
            steps = getattr(self, f"{name}_steps")
            factors = pairs(f"{name}_factors", getattr(self, name), steps)
            object.__setattr__(self, name, factors)
        if self.varies and self.rounding:
            raise CertificateRefused(
                "rounding is counted for steps of one size and noise; give no factors."
            )
        if self.varies:
            sizes = [size for f in (self.learn, self.delete) for size, _ in f or ((1.0, 1.0),)]
            largest = self.run.step_size * max(sizes)
            checks.step_size_optimal(largest, self.run.l2, self.run.smoothness)

    @property
    def varies(self) -> bool:
        """Whether step sizes or noise differ between steps."""
        return self.learn is not None or self.delete is not None

    def _counted(self, eps, steps=np.inf):
        """A bound of real numbers with the rounding of these steps counted."""
        if self.rounding == 0:
            return eps
        run = self.run
        deviation = math.sqrt(2 * run.step_size * run.noise_variance)
        floor = lattice.floor(self.rounding, deviation, run.step_size, run.l2, steps)
        return lattice.counted(run.order, eps, floor)

    @property
    def batches(self) -> int:
        """The number m of batches."""
        return int(self.run.batches)

    def end(self, request: int) -> int:
        """How many steps were taken when request i was served; K_L for i = 0."""
        return self.learn_steps + int(request) * self.delete_steps

    # --- one record -------------------------------------------------------------------------------

    def left(self, place, start: int, stop: int, end: int):
        """What step `end` shows of a record of this batch that steps start ≤ k < stop used.

        Both runs have the same model before step `start`: the record was not there yet, or the
        model was observed and is conditioned on. All three are ends of learning or of requests, or
        0.
        """
        if not self.varies:
            uses, since = schedules.uses_of(place, self.batches, start, stop)
            return self._counted(of_uses(self.run, uses, since + float(end - stop)), end - start)
        if np.size(place) * (end - start) > _LONG:
            return np.full(np.shape(place), self.deletion if end > stop else self.privacy)
        found = [self._pool(int(p), start, stop, end).mu_squared for p in np.ravel(place)]
        return self.run.order / 2 * np.reshape(found, np.shape(place))

    def deletion_at(self, request: int, observed=(), *, first_inserted=0, batch=None) -> float:
        """What remains after request i deleted a record, when it is known which releases were seen.

        Given a release that was seen, both runs have the same model, so every interval between
        seen releases is judged alone; the last one ends at the deletion, K_U steps before release
        i.

        Guarantee: (q, ε)-data-deletion for every requester that saw at most these releases, for a
        record of this batch (None: of any batch). Assumes: as `adaptive`.
        """
        ends = self.end(request - 1), self.end(request)
        return self._worst(self._over_intervals, first_inserted, observed, *ends, batch=batch)

    def privacy_at(self, request: int, observed=(), *, first_inserted=0, batch=None) -> float:
        """Release i and the observed ones before it jointly, for a record that stays."""
        ends = self.end(request), self.end(request)
        return self._worst(self._over_intervals, first_inserted, observed, *ends, batch=batch)

    def joint(self, request: int, *, first_inserted=0, batch=None) -> float:
        """All releases up to i jointly, for a record that stays, against any requester."""
        return self._worst(self._over_runs, first_inserted, request, batch=batch)

    def _worst(self, number, *args, batch) -> float:
        places = np.arange(self.batches) if batch is None else np.asarray([batch])
        return floats.plain(np.max(number(places, *args)))

    def _over_intervals(self, place, first_inserted, observed, stop, end):
        start = self._inserted(first_inserted)
        seen = sorted({self.end(release) for release in observed})
        cuts = [start, *(cut for cut in seen if start < cut <= stop)]
        total = self.left(place, cuts[-1], stop, end)
        # A curator that publishes everything has thousands of intervals of very few kinds.
        kinds = collections.Counter(map(self._kind, itertools.pairwise(cuts)))
        for (first, last), times in kinds.items():
            total = total + times * self.left(place, first, last, last)
        return total

    def _kind(self, interval: tuple[int, int]) -> tuple[int, int]:
        """The first interval that shows as much: of the same length, from the same batch on."""
        first, last = interval
        shift = 0 if self.varies else first - first % self.batches
        return first - shift, last - shift

    def _inserted(self, first_inserted: int) -> int:
        """The step at which a record came in: 0 for one of the initial database."""
        return 0 if first_inserted == 0 else self.end(first_inserted - 1)

    def _over_runs(self, place, first_inserted, request):
        total, first = np.zeros(np.shape(place)), max(int(first_inserted), 1)
        if first_inserted == 0:
            total = total + self.left(place, 0, self.end(0), self.end(0))
        # The pattern of batches repeats after some requests.
        period = self.batches // math.gcd(self.batches, max(self.delete_steps, 1))
        for run in range(first, min(request, first + period - 1) + 1):
            times = 1 + (request - run) // period
            steps = self.end(run - 1), self.end(run), self.end(run)
            total = total + times * self.left(place, *steps)
        return total

    # --- suprema over all requests ----------------------------------------------------------------

    @cached_property
    def privacy(self) -> float:
        """ε_dp: any one release, any batch, however many requests came before."""
        if not self.varies:
            return floats.plain(self._counted(of_uses(self.run, np.inf, 0.0)))
        return self._suprema[0]

    @cached_property
    def deletion(self) -> float:
        """ε_dd: a deleted record of any batch, whenever it is deleted."""
        if not self.varies:
            eps = of_uses(self.run, np.inf, float(self.delete_steps))
            return floats.plain(self._counted(eps))
        return self._suprema[1]

    @cached_property
    def _suprema(self) -> tuple[float, float]:
        """(ε_dp, ε_dd) of a varying schedule: every request until the past no longer matters.

        A shift z that is left of the past moves μ by at most z times the contraction since then,
        over the deviation of the last step's noise (μ is convex and homogeneous in the gaps). A
        later request ends like the last one that was searched, for a record of another batch. So
        the largest value over finitely many requests and all batches, and that remainder, bound
        all of them.
        """
        if self.delete_steps < 1:
            raise CertificateRefused(
                "delete_steps = 0 leaves a varying schedule without a bound for all requests; "
                "take at least one step per request."
            )
        contraction, _, noise = (np.asarray(part) for part in self._numbers(0, self.end(1)))
        per_request = float(np.sum(np.log(np.maximum(contraction[self.end(0) :], 1e-300))))
        run = self.run
        # A step adds s = 2ηLr/b to the shift and takes 1 - c = ηλ of it away.
        largest_shift = 2 * run.lipschitz * run.records / (run.n // run.batches * run.l2)
        remainder = largest_shift / math.sqrt(float(np.min(noise[noise > 0])))
        # No μ is above the remainder at request 0, so that fewer requests are never enough.
        self._check_steps(math.log(_NEGLIGIBLE) / min(per_request, -1e-300))
        dp = dd = 0.0
        for place in range(self.batches):
            pool, request = schedules.Pool(), 0
            self._extend(pool, place, 0, self.end(0))
            while True:
                dp = max(dp, pool.mu_squared)
                after = pool.copy()
                stop = self.end(request)
                self._extend(after, None, stop, self.end(request + 1))
                dd = max(dd, after.mu_squared)
                rest = math.log(remainder) + per_request * request
                if rest < math.log(_NEGLIGIBLE) + math.log(max(dd, 1e-300)) / 2:
                    break
                request += 1
                self._check_steps(request)
                self._extend(pool, place, stop, self.end(request))
        up = 1 + 4 * _NEGLIGIBLE  # (μ + remainder)², remainder ≤ 1e-12 μ
        return self.run.order / 2 * dp * up, self.run.order / 2 * dd * up

    def _check_steps(self, requests: float) -> None:
        """Refuse to follow so many requests for every batch."""
        if self.batches * (self.learn_steps + requests * self.delete_steps) > _MOST_STEPS:
            raise CertificateRefused(
                f"the schedule contracts too slowly to be followed for all batches, through more "
                f"than {_MOST_STEPS:,} steps; take larger step sizes, or constant ones."
            )

    # --- steps ------------------------------------------------------------------------------------

    def _pool(self, place: int, start: int, stop: int, end: int) -> schedules.Pool:
        pool = schedules.Pool()
        self._extend(pool, place, start, stop)
        self._extend(pool, None, stop, end)
        return pool

    def _extend(self, pool: schedules.Pool, place: int | None, start: int, stop: int) -> None:
        """Add steps start ≤ k < stop, on which a record of this batch acts; None for no record."""
        for k, step in enumerate(zip(*self._numbers(start, stop), strict=True), start):
            contraction, gap, noise = step
            pool.add(contraction, gap if place == k % self.batches else 0.0, noise)

    def _numbers(self, start: int, stop: int):
        """(c, s, ς²) of steps start ≤ k < stop, s as if each used the record's batch."""
        run = self.run
        size = np.array([self._factors(k) for k in range(start, stop)]).reshape(-1, 2)
        step, noise = run.step_size * size[:, 0], run.noise_variance * size[:, 1]
        rows = run.n // run.batches
        gap = 2 * step * run.lipschitz * run.records / rows
        contraction = np.maximum(1 - step * run.l2, 0.0)
        return contraction.tolist(), gap.tolist(), (2 * step * noise).tolist()

    def _factors(self, k: int) -> tuple[float, float]:
        """The factors of step k."""
        if k < self.learn_steps:
            return self.learn[k] if self.learn else (1.0, 1.0)
        if self.delete is None:
            return 1.0, 1.0
        return self.delete[(k - self.learn_steps) % self.delete_steps]
