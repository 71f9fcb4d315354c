"""How far a report is, and about how long the rest will take."""

import time
from collections.abc import Callable, Mapping


class Schedule:
    """Figures in their order, and the time that is left by what each took in an earlier run.

    A figure that never ran is taken to last as long as the mean of those that did.
    """

    def __init__(
        self, expected: Mapping[str, float | None], clock: Callable[[], float] = time.monotonic
    ):
        """Start the clock.

        Args:
            expected: seconds by figure, 0 where nothing is computed, None where nothing is known.
            clock: seconds since some moment.
        """
        self._expected, self._clock = dict(expected), clock
        self._taken: dict[str, float] = {}
        self._first = self._last = clock()

    @property
    def total(self) -> int:
        """How many figures there are."""
        return len(self._expected)

    @property
    def done(self) -> int:
        """How many are finished."""
        return len(self._taken)

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._first

    def finish(self, name: str) -> None:
        """The figure that was being made is done, and the next one begins."""
        now = self._clock()
        self._taken[name] = now - self._last
        self._last = now

    def left(self) -> float | None:
        """Seconds that the rest will take; None where nothing is known yet."""
        known = [seconds for seconds in self._expected.values() if seconds]
        measured = [taken for name, taken in self._taken.items() if self._expected[name] != 0]
        mean = _mean(known) or _mean(measured)
        ahead = [seconds for name, seconds in self._expected.items() if name not in self._taken]
        if mean is None and None in ahead:
            return None
        pace = self._pace()
        guesses = [pace * (mean or 0.0) if s is None else pace * s for s in ahead]
        running = self._clock() - self._last
        return max(guesses[0] - running, 0.0) + sum(guesses[1:]) if guesses else 0.0

    def _pace(self) -> float:
        """Seconds taken for each that was expected, over the figures where both are known."""
        known = [name for name in self._taken if self._expected[name]]
        expected = sum(self._expected[name] or 0.0 for name in known)
        return sum(self._taken[name] for name in known) / expected if expected else 1.0

    def words(self) -> str:
        """Which figure it is, the time so far and the time left, for people."""
        left = round(self.left() or 0.0)
        rest = f", about {clock(left)} left" if left else ""
        return f"{min(self.done + 1, self.total)}/{self.total}, {clock(self.elapsed)}{rest}"


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None


def clock(seconds: float) -> str:
    """Minutes and seconds, and hours where there are any."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
