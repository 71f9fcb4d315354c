"""The adaptive users of Gupta et al. (2021) against SISA, as `dd-jax attack sisa` plays them.

They need an even number of shards and models that remember, so they are played at the attack's own
settings (`SETTING`), not at those of the table's rows.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from jaxtyping import Array

from dd_jax.attacks.catalogue import find as find_attack
from dd_jax.intervals import Estimate
from experiments.compare.row import Row

SEEDS = 150
DATA = "digits-3-vs-8"
SETTING = f"`dd-jax attack sisa` at its own settings (cosine features), {SEEDS} seeds"
# Rows of the attack's result: plain SISA and SISA with noise, both with users who look.
PLACES = {"sisa": 0, "sisa-private": 1}
# Curators that the attack plays, all with one confidence together.
PLAYED = 4

NO_SHARDS = "the attack drains shards, and this system has none"
ELSEWHERE = f"played on {DATA} only"


def with_gupta(key: Array, rows: Sequence[Row], each: float, say: Callable) -> list[Row]:
    """The rows with the rate at which drained shards are named, or the reason why there is none.

    Args:
        key: of the attack. rows: of one data set.
        each: confidence of one interval.
        say: told of progress.
    """
    found = {}
    if any(row.system in PLACES and row.data == DATA for row in rows):
        result = find_attack("sisa").run(key, seeds=SEEDS, confidence=1 - PLAYED * (1 - each))
        say(f"{DATA}: the drained shards of Gupta et al.")
        for system, place in PLACES.items():
            line = result.rows[place]
            estimate = Estimate(line["success"], line["low"], line["high"], SEEDS, each)
            found[system] = estimate
    return [_with(row, found.get(row.system)) for row in rows]


def _with(row: Row, drained: Estimate | None) -> Row:
    if drained is not None:
        return replace(row, drained=drained)
    why = ELSEWHERE if row.system in PLACES else NO_SHARDS
    return replace(row, reasons={**row.reasons, "drained": why})
