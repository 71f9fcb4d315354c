"""What requests cost: exact counts and wall time of one interaction, and the bytes it keeps."""

import time
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

import dd_jax as dd
from dd_jax.baselines import base
from experiments.compare.contestant import Contestant
from experiments.compare.games import Board


class Costs(NamedTuple):
    """What one stream of deletions cost; see `row.Row`."""

    learn_gradients: float
    gradients: float
    hessians: float
    retrained: float
    seconds: float
    secret_bytes: int


def measure_costs(key: Array, contestant: Contestant, board: Board, requests: int) -> Costs:
    """One interaction that deletes rows 1, 2, … one at a time, on a host loop, metered."""
    clock = []

    def respond(request, release):
        jax.block_until_ready(release)
        clock.append(time.perf_counter())
        return dd.replacement([request], board.blank)

    shown = range(requests)
    metered = base.metered(contestant.system)
    curator, transcript = dd.drive(
        key, metered, respond, board.database, num_requests=requests, observe=shown
    )
    spent: Any = transcript.releases.cost
    mean = {name: float(np.mean(getattr(spent, name)[1:])) for name in ("gradients", "hessians")}
    return Costs(
        learn_gradients=float(spent.gradients[0]),
        retrained=float(np.mean(spent.retrained[1:])),
        # The first request is compiled.
        seconds=float(np.median(np.diff(clock)[1:])),
        secret_bytes=base.stored_bytes(contestant.system, curator.params.value),
        **mean,
    )
