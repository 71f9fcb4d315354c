"""A workload on a machine: does it fit, what does a step cost, how long would a sweep take.

The program is the one that `dd.over_seeds` runs, compiled for devices that need not be there. What
is said of time is an estimate: on TPUs the compiler's own cycles, elsewhere a bound by the
machine's peak rates (a roofline). Latencies of collectives are in neither.
"""

import importlib.metadata
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dd_jax import checks, ensemble, losses, noisy_gd, requesters, sharding
from dd_jax.databases import RowShard
from dd_jax.erm import Problem
from dd_jax.errors import InputError
from dd_jax.interaction import interact
from dd_jax.targets import compiled
from dd_jax.targets.machines import Chip, Machine
from dd_jax.types import Edit, Labelled

# The loop over steps as JAX names it: a run of `noisy_gd`.
_STEPS = "jit(_scanned_steps)/while"
# The search for the largest chunk aims at leaving this share of the memory free, and ends where the
# next guess gains less than a twentieth, or after so many compilations.
_SPARE, _CLOSE, _TRIES = 0.02, 1.05, 4


@dataclass(frozen=True)
class Workload:
    """Whole interactions over many seeds: learn, then serve deletions one by one.

    Attributes:
        problem: what is learned, on labelled records; the linear loss takes features alone.
        n: records. dim: features of each.
        seeds: interactions in all.
        requests: deletions that each of them serves.
        learn_steps: K_A. delete_steps: K_Ā.
        batches: m, cyclic batches of consecutive rows, one per step.
    """

    problem: Problem
    n: int
    dim: int
    seeds: int
    requests: int
    learn_steps: int
    delete_steps: int
    batches: int = 1

    def __post_init__(self):
        for name in ("n", "dim", "requests", "delete_steps"):
            checks.whole(name, getattr(self, name), least=1)
        checks.whole("batches", self.batches, least=1, most=self.n)
        checks.whole("seeds", self.seeds, least=1, most=ensemble.MOST_SEEDS)
        checks.whole("learn_steps", self.learn_steps, least=2)  # one step would be no loop

    @property
    def steps(self) -> int:
        """Steps of one interaction."""
        return self.learn_steps + self.requests * self.delete_steps


class Bound(NamedTuple):
    """Seconds that a device needs at its peak rates.

    The largest is a bound, and their sum is not: the units work side by side, a matrix unit on one
    block of rows while the slopes of another are computed and a third is read.

    Attributes:
        products: of the matrix products, whole tiles counted (`compiled.products`).
        elementwise: of all else, one operation each, where that rate is known.
        memory: to read and write main memory. link: to send what collectives carry.
    """

    products: float
    elementwise: float
    memory: float
    link: float


@dataclass(frozen=True)
class Answer:
    """What the compiler says of a chunk of seeds.

    Attributes:
        machine: its name. chip: name of one device. mesh: devices for (seeds, rows).
        chunk: seeds at once, over all devices.
        fits: whether a device's memory holds it. memory: what a device has, in bytes.
        need: bytes of a device at the peak; where the compiler gave up, what it said of
            temporaries, or None.
        bytes: by what they are for, None where the compiler gave up; temporaries need not all live
            at once.
        largest_chunk: the most seeds at once that were compiled and fit; None where it was not
            asked for, 0 where none fit.
        collectives: of each kind in a step of learning.
        kernels: instructions of a step that the device is started for.
        cycles: the compiler's, of a step of learning; None where programs carry none.
        product_cycles: those of instructions that hold a matrix product.
        bound: of a step, at peak rates.
        bound_by: what takes most: by cycles "products" or "other" instructions, else the largest
            of the bounds.
        share: of the roofline: the largest bound over the estimate (TPU).
        step_seconds: the estimate: by cycles (TPU), else the bound itself.
        chunk_seconds: of a whole chunk. seconds: of all seeds, chunk by chunk.
        seed_steps_per_second: over all devices.
        estimate: where the time comes from, in words.
        compile_seconds: what compiling took here. compiler: package and version; jax: version.
    """

    machine: str
    chip: str
    mesh: tuple[int, int]
    chunk: int
    fits: bool
    memory: int
    need: int | None
    bytes: Mapping[str, int] | None
    largest_chunk: int | None
    collectives: Mapping[str, float] | None
    kernels: float | None
    cycles: float | None
    product_cycles: float | None
    bound: Bound | None
    bound_by: str | None
    share: float | None
    step_seconds: float | None
    chunk_seconds: float | None
    seconds: float | None
    seed_steps_per_second: float | None
    estimate: str
    compile_seconds: float
    compiler: str
    jax: str


def answer(
    machine: Machine,
    workload: Workload,
    *,
    mesh: tuple[int, int] | None = None,
    chunk: int | None = None,
    search: bool = True,
) -> Answer:
    """Compile a workload for a machine and read what comes out.

    Args:
        machine: what to compile for (`dd_jax.targets.machine`).
        workload: what would be run.
        mesh: devices that share the seeds, devices that share the rows; by default all share the
            seeds.
        chunk: seeds at once over all devices; by default 1024 for each that shares seeds.
        search: look for the largest chunk that fits; takes up to five compilations more.
    """
    count = len(machine.devices)
    seeds_axis, rows_axis = mesh or (1 if machine.chip.platform == "cpu" else count, 1)
    devices = sharding.make_mesh(seeds_axis, rows_axis, devices=machine.devices)
    if chunk is None:
        chunk = ensemble.DEFAULT_CHUNK * seeds_axis
    chunk = sharding.round_up(min(checks.whole("chunk", chunk, least=1), workload.seeds), devices)
    first = _compile(machine.chip, workload, devices, chunk)
    largest = _largest(machine.chip, workload, devices, first) if search else None
    shared = {
        "machine": machine.name,
        "chip": machine.chip.name,
        "mesh": (seeds_axis, rows_axis),
        "chunk": chunk,
        "fits": first.fits,
        "memory": machine.chip.memory,
        "need": first.need,
        "bytes": first.bytes,
        "largest_chunk": largest,
        "compile_seconds": first.seconds,
        "compiler": machine.compiler,
        "jax": importlib.metadata.version("jax"),
    }
    return Answer(**shared, **_times(machine.chip, workload, first))


# --- compiling -----------------------------------------------------------------------------------


class _Compiled(NamedTuple):
    chunk: int
    fits: bool
    need: int | None
    bytes: Mapping[str, int] | None
    lowered: Any
    compiled: Any
    seconds: float


def _compile(chip: Chip, workload: Workload, mesh: Mesh, chunk: int) -> _Compiled:
    start = time.monotonic()
    lowered = program(workload, mesh, chunk)
    try:
        done = lowered.compile()
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return _Compiled(chunk, False, _said(error), None, lowered, None, time.monotonic() - start)
    found: Any = done.memory_analysis()
    parts = {
        "arguments": found.argument_size_in_bytes,
        "results": found.output_size_in_bytes - found.alias_size_in_bytes,
        "temporaries": found.temp_size_in_bytes,
        "program": found.generated_code_size_in_bytes,
    }
    # Temporaries need not all live at once: accelerators say what the peak is, results included.
    peak = found.peak_memory_in_bytes + parts["program"]
    need = sum(parts.values()) if chip.platform == "cpu" else peak
    seconds = time.monotonic() - start
    return _Compiled(chunk, need <= chip.memory, need, parts, lowered, done, seconds)


def _said(error: Exception) -> int | None:
    """Bytes that a compiler says a program would need, when it does not fit."""
    found = re.search(r"temporaries \(([\d.]+)([KMGT])\)", str(error))
    return found and int(float(found.group(1)) * 1024 ** ("KMGT".index(found.group(2)) + 1))


def program(workload: Workload, mesh: Mesh, chunk: int) -> jax.stages.Lowered:
    """The interaction as `dd.over_seeds` hands it to the compiler, on arrays of shapes alone."""
    problem, requests = workload.problem, workload.requests
    schedule = noisy_gd.Schedule(
        step_size=0.1,
        noise_variance=0.01,
        init_variance=0.01,
        learn_steps=workload.learn_steps,
        delete_steps=workload.delete_steps,
        batches=workload.batches,
    )
    mechanism = noisy_gd.mechanism(problem, schedule)
    one = _records(problem, 1, workload.dim)

    def first_and_last(key, database):
        # Made while tracing: a stream of constants would grow the program with the requests.
        blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), one)
        null = losses.null_records(problem.loss, blank, 1)
        rows = jnp.arange(requests, dtype=jnp.int32)[:, None] % workload.n
        stream = requesters.fixed_stream(jax.vmap(lambda index: Edit(index, null))(rows))
        _, transcript = interact(key, mechanism, stream, database, num_requests=requests)
        # Two slices: a gather would make TPUs copy all releases first.
        return jax.tree.map(lambda leaf: jnp.stack([leaf[0], leaf[-1]]), transcript.releases)

    def shape(dims, kind, spec) -> Any:
        return jax.ShapeDtypeStruct(dims, kind, sharding=NamedSharding(mesh, spec))

    devices = mesh.shape[sharding.DATA]
    split = PartitionSpec() if devices == 1 else PartitionSpec(sharding.DATA)
    rows = -(-workload.n // devices) * devices
    database: Any = jax.tree.map(
        lambda leaf: shape(leaf.shape, leaf.dtype, split), _records(problem, rows, workload.dim)
    )
    if devices > 1:
        weight = shape((rows,), jnp.int8, split)
        database = RowShard(database, weight, None, None, workload.n, sharding.DATA)
    key = jax.eval_shape(lambda: jax.random.key(0))
    return ensemble.program(
        first_and_last, shape(key.shape, key.dtype, PartitionSpec()), chunk, database, mesh=mesh
    )


def _records(problem: Problem, n: int, dim: int) -> Any:
    """Shapes of n records as the problem's loss takes them."""
    features = jax.ShapeDtypeStruct((n, dim), jnp.float32)
    if problem.loss.name == "linear":
        return features
    scores = problem.loss.scores
    label = jnp.float32 if scores is None or scores.num_scores is None else jnp.int32
    return Labelled(features, jax.ShapeDtypeStruct((n,), label))


def _largest(chip: Chip, workload: Workload, mesh: Mesh, first: _Compiled) -> int:
    """The most seeds at once that were compiled and fit; 0 if not even one for each device does.

    What grows is in proportion to the seeds, but layouts change with the size: so guess from the
    programs compiled so far, compile the guess, and go on until little is left to gain.
    """
    unit = mesh.shape[sharding.SEEDS]
    # An array's axis of 2³¹ is too long for a compiler.
    most = min(ensemble.MOST_SEEDS, (2**31 - 1) * unit)
    tried = [first]
    if not first.fits:
        tried.append(_compile(chip, workload, mesh, unit))
        if not tried[-1].fits:
            return 0
    for _ in range(_TRIES):
        best = max(one.chunk for one in tried if one.fits)
        worst = min((one.chunk for one in tried if not one.fits), default=most + 1)
        guess = _guess((1 - _SPARE) * chip.memory, tried)
        if guess >= worst:
            guess = (best + worst) / 2
        chunk = max(_rounded(int(guess) // unit), 1) * unit
        if chunk >= worst or chunk <= _CLOSE * best:
            break
        tried.append(_compile(chip, workload, mesh, chunk))
    return max(one.chunk for one in tried if one.fits)


def _guess(aim: float, tried: list[_Compiled]) -> float:
    """The chunk that would need `aim` bytes: on the line through the two programs nearest to it."""
    known = [(one.need, one.chunk, one.bytes) for one in tried if one.need is not None]
    known.sort(key=lambda one: abs(one[0] - aim))
    need, chunk, parts = known[0]
    if len(known) > 1:
        growth = (need - known[1][0]) / (chunk - known[1][1])
    else:  # of one program it is known that its arguments do not grow
        fixed = parts["arguments"] + parts["program"] if parts else 0
        growth = (need - fixed) / chunk
    return chunk + (aim - need) / growth if growth > 0 else 0.0


def _rounded(number: int) -> int:
    """Down to a multiple of 128, the width of a TPU's registers, where that loses little."""
    return number // 128 * 128 if number >= 1024 else number


# --- reading -------------------------------------------------------------------------------------


def _times(chip: Chip, workload: Workload, found: _Compiled) -> dict[str, Any]:
    estimate = "compiler's cycles" if chip.clock else "roofline bound"
    if not found.fits:
        empty = ("collectives", "kernels", "cycles", "product_cycles", "bound", "bound_by", "share")
        empty += ("step_seconds", "chunk_seconds", "seconds", "seed_steps_per_second")
        return dict.fromkeys(empty) | {"estimate": estimate}
    text = compiled.read(found.compiled.as_text())
    step, per_step = _one_step(text, workload)
    bound = _bound(chip, workload, found.lowered, text, step, per_step)
    limits = {"products": bound.products, "elementwise": bound.elementwise, "memory": bound.memory}
    peak = max(limits.values())
    cycles: dict[str, float] = {}
    if chip.clock:
        cycles = {kind: n * per_step for kind, n in compiled.cycles(text, step).items()}
        step_seconds = sum(cycles.values()) / chip.clock + bound.link
        whole = compiled.cycles(text, compiled.executed(text))
        chunk_seconds = sum(whole.values()) / chip.clock + bound.link * workload.steps
    else:
        step_seconds = peak + bound.link
        chunk_seconds = step_seconds * workload.steps
    chunks = -(-workload.seeds // found.chunk)
    most = cycles or limits
    return {
        "collectives": {
            kind: count * per_step for kind, count in compiled.collectives(step).items()
        },
        "kernels": compiled.kernels(step) * per_step,
        "cycles": sum(cycles.values()) if cycles else None,
        "product_cycles": cycles.get("products"),
        "bound": bound,
        "bound_by": max(most, key=lambda name: most[name]),
        "share": peak / step_seconds if cycles else None,
        "step_seconds": step_seconds,
        "chunk_seconds": chunk_seconds,
        "seconds": chunks * chunk_seconds,
        "seed_steps_per_second": found.chunk * workload.steps / chunk_seconds,
        "estimate": estimate,
    }


def _one_step(text: compiled.Program, workload: Workload) -> tuple[list, float]:
    """(what a turn of the learning loop executes, turns per step)."""
    loop = compiled.loops(text, _STEPS)[0].instruction
    turns = compiled.trips(text, loop) / workload.learn_steps
    return list(compiled.executed(text, compiled.body(loop))), turns


def _bound(chip: Chip, workload: Workload, lowered, text, step, per_step: float) -> Bound:
    """Seconds of one step at the chip's peak rates."""
    before = compiled.read(lowered.compiler_ir(dialect="hlo").as_hlo_text())
    flops = compiled.products(before, chip.tile)
    unknown = set(flops) - set(chip.products)
    if unknown:
        raise InputError(
            f"a product's arithmetic, {sorted(unknown)[0]}, is not one that {chip.name} has; "
            f"choose another precision."
        )
    # Nearly all work is in the steps, so all of it over all steps is that of one.
    products = sum(flop / chip.products[kind] for kind, flop in flops.items()) / workload.steps
    elementwise = 0.0
    if chip.elementwise:
        # As the program states them: the compiler repeats some to save memory.
        stated = compiled.elementwise(compiled.executed(before)) / workload.steps
        elementwise = stated / chip.elementwise
    memory = per_step * compiled.moved(text, step, chip.cache) / chip.bandwidth
    # A sum over devices is sent twice: to be added up, and to tell the result.
    link = per_step * 2 * compiled.sent(step) / chip.link
    return Bound(products, elementwise, memory, link)
