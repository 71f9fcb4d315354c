"""What runs on a mesh, beside the same on one device: numbers, communication, memory.

`python mesh_runs.py` uses the devices of one process, `python mesh_runs.py PORT INDEX` those of two
over loopback. Prints a JSON object.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from problems import signed

import dd_jax as dd
from dd_jax import ensemble, interaction, processes, sharding

if len(sys.argv) > 1:  # before any array is made
    jax.distributed.initialize(f"127.0.0.1:{sys.argv[1]}", 2, int(sys.argv[2]))

ROWS = signed(21, 3)
REPEATED = jax.tree.map(lambda leaf: jnp.concatenate([leaf, leaf[:10]]), ROWS)
COUNTED = dd.compress(REPEATED)
PROBLEM = dd.Problem(dd.losses.logistic(), 0.1, 0.4, row_chunk=2)
CURATOR = dd.noisy_gd.mechanism(PROBLEM, dd.noisy_gd.Schedule(0.5, 0.01, 1.0, 3, 2))
ADAPTIVE = dd.requesters.largest_loss(PROBLEM.loss, ROWS)
# A row that is written twice, beside one that another device holds.
STREAM = dd.requesters.stack_edits(
    [dd.deletion(PROBLEM.loss, ROWS, rows) for rows in ([3, 17], [3, 20])]
)
FIXED = dd.requesters.fixed_stream(STREAM)
EDIT = dd.deletion(PROBLEM.loss, ROWS, [5])
KEY = jax.random.key(0)
SEEDS = 6
COLLECTIVES = ("all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter")


def adaptive(key, database):
    """Edits that depend on the seed; served by an overlay, since the database is counted."""
    _, seen = dd.interact(key, CURATOR, ADAPTIVE, database, num_requests=2, observe=(0, 1))
    return seen.releases, seen.edits.index, seen.projected_initially


def fixed(key, database):
    _, seen = dd.interact(key, CURATOR, FIXED, database, num_requests=2)
    return seen.releases


def descend(key, database):
    return dd.noisy_gd.run(
        key, jnp.zeros(3), database, PROBLEM, step_size=0.5, noise_variance=0.01, num_steps=3
    )


def one_interaction(database, mesh):
    """Twice, to see that plain calls on one mesh are one program."""
    for key in (jax.random.key(1), KEY):
        seen = dd.interact(key, CURATOR, FIXED, database, num_requests=2, mesh=mesh)[1]
    return seen.releases


def outputs(mesh, names) -> dict:
    rows, counted = (sharding.spread(database, mesh) for database in (ROWS, COUNTED))
    cases = {
        "adaptive": lambda: dd.over_seeds(adaptive, KEY, SEEDS, counted, chunk=4, mesh=mesh),
        "pairs": lambda: dd.neighbours(fixed, KEY, SEEDS, rows, EDIT, shared=True, mesh=mesh),
        "arms": lambda: dd.neighbours(descend, KEY, SEEDS, rows, EDIT, mesh=mesh),
        "one": lambda: one_interaction(ROWS, mesh),
    }
    return {name: cases[name]() for name in names}


def collectives(fn, database, mesh) -> dict[str, int]:
    """How often each kind stands in the compiled program."""
    rows = sharding.spread(database, mesh)
    text = ensemble.program(fn, KEY, SEEDS, rows, mesh=mesh).compile().as_text()
    counts = {name: text.count(f" {name}(") for name in COLLECTIVES}
    return {name: count for name, count in counts.items() if count}


def largest_share(mesh) -> int:
    """The most rows that one device holds."""
    rows = sharding.spread(ROWS, mesh)
    leaves = [leaf for leaf in jax.tree.leaves(rows) if leaf.ndim]
    return max(shard.data.shape[0] for leaf in leaves for shard in leaf.addressable_shards)


def refused(attempts) -> dict[str, str]:
    """What is refused, with its message."""
    said = {}
    for name, attempt in attempts.items():
        try:
            attempt()
        except dd.InputError as error:
            said[name] = str(error)
    return said


def edited() -> dict:
    """Two interactions on split rows, the second on what the first left, beside plain rows."""
    mesh, found = sharding.make_mesh(1, 4), {}
    rng = np.random.default_rng(0)
    new = jax.tree.map(np.asarray, signed(21, 3, seed=4))

    def edit(first, second):
        chosen = rng.integers(0, 21, 2)
        return dd.replacement([first, second], jax.tree.map(lambda leaf: leaf[chosen], new))

    # Row 13 has a record of its own; rows come back, also within one stream.
    streams = [
        [edit(*pair) for pair in pairs]
        for pairs in (((13, 30), (0, 5), (30, 2)), ((13, 29), (30, 20), (29, 5)))
    ]

    @jax.jit
    def serve(key, stream, split):
        requester = dd.requesters.fixed_stream(stream)
        return dd.interact(key, CURATOR, requester, split, num_requests=3, mesh=mesh)[0]

    def without_mesh(function, *state):
        return lambda: function(KEY, CURATOR, lambda *_: None, *state, num_requests=0)

    for form, database in {"plain": REPEATED, "counted": COUNTED}.items():
        split, plain, differ = sharding.split_rows(database, mesh), REPEATED, []
        before = numbers_found(split, 13)
        for number, stream in enumerate(streams):
            state = serve(jax.random.key(number), dd.requesters.stack_edits(stream), split)
            split = state.database
            for each in stream:
                plain = dd.apply_edit(plain, each)
            pairs = zip(sharding.join_rows(split).features, plain.features, strict=True)
            differ += [row for row, (a, b) in enumerate(pairs) if (a != b).any()]
        attempts = {
            "drive": without_mesh(dd.drive, split),
            "expand": lambda split=split: dd.expand(split),
            "resume": without_mesh(dd.resume, state),
        }
        found[form] = {
            "rows differ": differ,
            "rows counted": int(np.sum(np.asarray(split.weight))),
            "before": before,
            "after": numbers_found(state, 13),
            "others": numbers_found(state, 14),
            "refused": list(refused(attempts)),
        }
    return found


def numbers_found(tree, index) -> list[bool]:
    """Which features of a record occur, byte by byte, in any array of the tree."""
    held = b"|".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree))
    return [number.tobytes() in held for number in np.asarray(REPEATED.features[index])]


def difference(found, expected) -> float:
    """The largest over all leaves; they must have the same shapes."""
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    return max(float(np.max(np.abs(np.subtract(a, b, dtype=float)))) for a, b in pairs)


def measure(cases: dict[tuple[int, int], tuple[str, ...]]) -> dict:
    alone = outputs(None, {name for names in cases.values() for name in names})
    found = {}
    for shape, names in cases.items():
        mesh = sharding.make_mesh(*shape)
        meshed = outputs(mesh, names)
        found["x".join(map(str, shape))] = {
            "differences": {name: difference(meshed[name], alone[name]) for name in names},
            "per step": collectives(descend, ROWS, mesh),
            "largest share": largest_share(mesh),
        }
    return found


def main() -> None:
    if len(sys.argv) == 1:
        many = ("adaptive", "pairs")
        found = measure({(4, 1): many, (1, 4): ("one", "arms"), (2, 2): many})
        found["plain calls"] = interaction._interact_split._cache_size()
        found["edited"] = edited()
        found["per interaction"] = collectives(adaptive, COUNTED, sharding.make_mesh(2, 2))
        print(json.dumps(found))
        return
    attempts = {
        "mesh": lambda: sharding.make_mesh(1, 1),
        "inputs": lambda: processes.require_same("the rows", f"{jax.process_index():064x}"),
    }
    found = measure({(4, 1): (), (2, 2): ("adaptive",)}) | {"refused": refused(attempts)}
    found["broadcast"] = processes.from_first(np.arange(3) * (1 - jax.process_index())).tolist()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
