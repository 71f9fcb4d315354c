"""What the table of a stream of deletions shows, in words and with the numbers of the run."""

import math
from collections.abc import Iterator

from experiments.sequential.passes import LAZY_REQUESTS
from experiments.sequential.rows import LAZY, OURS, PNSGD
from experiments.sequential.table import Entry


def verdict(deletions: int, entries: list[Entry]) -> Iterator[str]:
    """Whether Noisy-GD costs less than every other system that serves single deletions."""
    named = {entry.name: entry for entry in entries}
    ours, lazy = named[OURS], named[LAZY]
    others = [entry for entry in entries if entry.single and entry.name not in (OURS, LAZY)]
    level = "" if ours.within else ", NOT within the margin"
    yield (
        f"Noisy-GD with the optimal accountant takes {ours.passes:,.0f} passes "
        f"({ours.gradients:.3g} gradients) and ends at {ours.interval}{level}."
    )
    dearer = [entry for entry in others if entry.within and entry.passes > ours.passes]
    if dearer:
        times = (f"{e.name} {e.passes / ours.passes:.3g}× at {e.interval}" for e in dearer)
        yield f"Dearer: {'; '.join(times)}."
    for entry in others:
        if not entry.within:
            yield f"{entry.name} is never within the margin, at best {entry.interval}."
        elif entry.passes <= ours.passes:
            compared = "the same" if entry.passes == ours.passes else "LESS"
            yield (
                f"{entry.name} costs {compared}, {entry.passes:,.0f} passes at {entry.interval}"
                f"{_reason(deletions, entry)}."
            )
    yield _waiting(lazy, others)


def _waiting(lazy: Entry, others: list[Entry]) -> str:
    """What Noisy-GD pays that takes a pass for several requests, where its noise allows that."""
    if not lazy.within:
        return (
            f"At the noise that makes a release (ε, δ)-DP by itself, so that requests could wait "
            f"for a common pass, it is not within the margin, {lazy.interval}."
        )
    rivals = [entry.passes for entry in others if entry.within]
    least = lazy.passes < min(rivals, default=math.inf)
    compared = "less than every other system within the margin" if least else "NOT less than others"
    return (
        f"With enough noise every release of Noisy-GD is (ε, δ)-DP by itself: it may then answer "
        f"requests by the model as it is and take one pass for {LAZY_REQUESTS}, {lazy.passes:,.0f} "
        f"passes at {lazy.interval}, {compared}. The others' calibrations take at least one pass "
        f"per request."
    )


def _reason(deletions: int, entry: Entry) -> str:
    if entry.name != PNSGD:
        return ""
    least = ", and one per request is the fewest that both take"
    return (
        f": its pass is many steps, each of which contracts, where a full-batch pass is one"
        f"{least * (entry.passes == deletions)}; in return it keeps the order of its batches and "
        f"takes learning as converged"
    )
