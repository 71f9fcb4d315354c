"""What the compilers of TPUs and GPUs say of our programs, and how their text is read.

The compilers are an extra (`make test-targets`); what needs one is skipped where it is missing.
They run as users run them, in a process of their own, without the suite's settings of XLA.
"""

import functools
import json
import os
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import pytest
from test_products import PROGRAMS

import dd_jax as dd
from dd_jax import targets
from dd_jax.cli import main
from dd_jax.constants import CATALOGUE, OF_CLASSES
from dd_jax.errors import InputError
from dd_jax.targets import compiled, sizing

needs_tpu = pytest.mark.skipif(
    not targets.installed("tpu"), reason=f"no compiler for TPUs: {targets.INSTALL}"
)
needs_cuda = pytest.mark.skipif(
    not targets.installed("cuda"), reason=f"no compiler for GPUs: {targets.INSTALL}"
)
# The size of a program depends on none of these.
STEPS = {"requests": 1000, "learn_steps": 200, "delete_steps": 30}


def workload(**changes) -> targets.Workload:
    problem = dd.Problem(dd.losses.logistic(), l2=0.01, clip_norm=0.5)
    asked = {"problem": problem, "n": 300, "dim": 20, "seeds": 64, **STEPS}
    return targets.Workload(**asked | changes)


def asked(*options: str) -> list[dict]:
    """The answers of `dd-jax targets` in a process of its own."""
    own = ("XLA_", "JAX_", "TPU_", "LIBTPU_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(own)}
    done = subprocess.run(
        [sys.executable, "-m", "dd_jax.cli", "targets", *options, "--json"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)["answers"]


# --- reading -------------------------------------------------------------------------------------


TEXT = """HloModule example

%fused_slice (parameter.1: f32[64,10], parameter.2: s32[]) -> f32[8,10] {
  %parameter.1 = f32[64,10]{1,0} parameter(0)
  %parameter.2 = s32[] parameter(1)
  ROOT %slice = f32[8,10]{1,0} dynamic-slice(%parameter.1, %parameter.2), dynamic_slice_sizes={8,10}
}

%body (state: (s32[], f32[64,10])) -> (s32[], f32[64,10]) {
  %state = (s32[], f32[64,10]{1,0:T(8,128)}) parameter(0)
  %count = s32[] get-tuple-element(%state), index=0
  %rows = f32[64,10]{1,0:T(8,128)} get-tuple-element(%state), index=1
  %cut = f32[8,10]{1,0} fusion(%rows, %count), kind=kLoop, calls=%fused_slice, CYCLES(7)
  %near = f32[8,10]{1,0:T(8,128)S(1)} negate(%cut)
  %sum = f32[8,10]{1,0:T(8,128)S(1)} all-reduce-start(%near), to_apply=%add
  %done = f32[8,10]{1,0} all-reduce-done(%sum)
  %product = f32[8,8]{1,0} dot(%done, %done), lhs_contracting_dims={1}, HIGHEST, CYCLES(11)
  ROOT %next = (s32[], f32[64,10]{1,0}) tuple(%count, %rows)
}

%condition (state.1: (s32[], f32[64,10])) -> pred[] {
  %limit = s32[] constant(5)
  %state.1 = (s32[], f32[64,10]{1,0}) parameter(0)
  %count.1 = s32[] get-tuple-element(%state.1), index=0
  ROOT %less = pred[] compare(%count.1, %limit), direction=LT
}

ENTRY %main (start: (s32[], f32[64,10])) -> (s32[], f32[64,10]) {
  %start = (s32[], f32[64,10]{1,0}) parameter(0)
  ROOT %loop = (s32[], f32[64,10]{1,0}) while(%start), condition=%condition, body=%body, NAME
}
"""
for short, long in {
    r"CYCLES\((\d+)\)": r'backend_config={"estimated_cycles":"\1"}',
    "HIGHEST": "operand_precision={highest,highest}",
    "NAME": 'metadata={op_name="jit(run)/while"}',
}.items():
    TEXT = re.sub(short, long, TEXT)


def test_text_is_read_with_what_loops_repeat():
    program = compiled.read(TEXT)
    (loop,) = compiled.loops(program, "jit(run)/while")
    assert compiled.trips(program, loop.instruction) == 5
    items = list(compiled.executed(program))
    assert compiled.cycles(program, items) == {"other": 5 * 7, "products": 5 * 11}
    assert compiled.collectives(items) == {"all-reduce": 5}
    assert compiled.sent(items) == 5 * 8 * 10 * 4
    assert compiled.elementwise(items) == 5 * 8 * 10
    assert compiled.products(program) == {"f32_f32_f32": 5 * 2 * 8 * 8 * 10}
    assert compiled.kernels(items) == 5 * 5


def test_bytes_of_slices_and_of_fast_memory():
    program = compiled.read(TEXT)
    block, count = 8 * 10 * 4, 4
    cut = block + count + block  # the slice is read, not all rows, and written
    near = block  # its result stays beside the cores
    done = block  # as does what is summed
    product = 2 * block + 8 * 8 * 4
    items = list(compiled.executed(program, "body"))
    assert compiled.moved(program, items) == cut + near + done + product
    assert compiled.moved(program, items, cache=4 * block) == 0
    assert compiled.moved(program, items, cache=4 * block - 1) == cut - count + near + done + (
        2 * block
    )


def test_a_loop_that_takes_two_steps_in_a_turn_is_read_as_such():
    program = compiled.read(TEXT.replace("jit(run)/while", "jit(_scanned_steps)/while"))
    step, turns = sizing._one_step(program, workload(learn_steps=10))
    assert turns == 0.5
    assert compiled.collectives(step) == {"all-reduce": 1}


@pytest.mark.parametrize(
    ("precision", "name"),
    [
        (None, "default"),
        (jax.lax.Precision.HIGH, "high"),
        (jax.lax.Precision.HIGHEST, "f32_f32_f32"),
        (jax.lax.DotAlgorithmPreset.BF16_BF16_F32_X3, "bf16_bf16_f32_x3"),
    ],
)
def test_a_product_says_its_arithmetic(precision, name):
    def run(matrix):
        def body(state, _):
            return jnp.dot(state, matrix, precision=precision), None

        return jax.lax.scan(body, matrix, length=7)[0]

    lowered = jax.jit(run).lower(jax.ShapeDtypeStruct((6, 6), jnp.float32))
    text = lowered.compiler_ir(dialect="hlo").as_hlo_text()
    assert compiled.products(compiled.read(text)) == {name: 7 * 2 * 6**3}


@pytest.mark.parametrize(
    ("shapes", "dimensions", "flop"),
    [
        # Held: 60 → 128 by 1024 → 1024; the 1000 rows pass through.
        (((1000, 60), (60, 1024)), (((1,), (0,)), ((), ())), 2 * 1000 * 128 * 1024),
        # Held: 1000 → 1024 by 1024; holding 1024 by 30 → 128 would take four times as long.
        (((1000, 30), (1000, 1024)), (((0,), (0,)), ((), ())), 2 * 30 * 1024 * 1024),
        # Held: the left operand, 200 → 256 by 10 → 128; one column passes through, seven times.
        (((7, 10, 200), (7, 200, 1)), (((2,), (1,)), ((0,), (0,))), 7 * 2 * 256 * 128),
    ],
)
def test_a_matrix_unit_is_filled_by_whole_tiles(shapes, dimensions, flop):
    lowered = jax.jit(lambda a, b: jax.lax.dot_general(a, b, dimensions)).lower(
        *(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    )
    program = compiled.read(lowered.compiler_ir(dialect="hlo").as_hlo_text())
    assert list(compiled.products(program, tile=128).values()) == [flop]


# --- this machine --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cpu() -> targets.Machine:
    return targets.machine("cpu")


def test_the_work_of_a_step_is_two_products(cpu):
    found = targets.answer(cpu, workload(), search=False)
    flop = 4 * 300 * 20 * 64
    assert found.bound.products == pytest.approx(flop / cpu.chip.products["default"])
    assert found.fits
    assert found.collectives == {}
    assert found.cycles is None
    assert found.seconds >= (200 + 1000 * 30) * found.step_seconds * 0.999


@pytest.mark.parametrize("loss", CATALOGUE)
def test_every_loss_of_the_catalogue_can_be_asked_for(loss, cpu):
    options = {"num_classes": 3} if loss in OF_CLASSES else {}
    options |= {"hidden": 2} if loss == "bounded_network" else {}
    problem = dd.Problem(getattr(dd.losses, loss)(**options), l2=0.01, clip_norm=0.5)
    mesh = dd.sharding.make_mesh(1, 1, devices=cpu.devices)
    lowered = targets.program(workload(problem=problem), mesh, 4).as_text()
    assert "300x20xf32" in lowered


def test_the_last_chunk_takes_as_long_as_a_full_one(cpu):
    found = targets.answer(cpu, workload(seeds=150), chunk=64, search=False)
    assert found.seconds == pytest.approx(3 * found.chunk_seconds)
    assert found.seed_steps_per_second == pytest.approx(64 * 30_200 / found.chunk_seconds)
    assert found.bytes["arguments"] >= 4 * 300 * 20
    assert found.need == sum(found.bytes.values())


def test_a_program_does_not_grow_with_requests_or_steps(cpu):
    mesh = dd.sharding.make_mesh(1, 1, devices=cpu.devices)

    def size(**changes):
        text = targets.program(workload(**changes), mesh, 64).as_text()
        return len(text.splitlines())

    assert size() == size(requests=10) == size(learn_steps=20, delete_steps=3)


def test_what_does_not_fit_is_told_what_would(cpu):
    # A machine with little memory: the same compiler, another limit.
    chip = cpu.chip
    small = cpu._replace(chip=targets.Chip(**{**vars(chip), "memory": 2**26}))
    found = targets.answer(small, workload(seeds=10**6), chunk=4096)
    assert not found.fits
    assert found.need > 2**26
    assert found.seconds is None
    fits = targets.answer(small, workload(seeds=10**6), chunk=found.largest_chunk, search=False)
    assert fits.fits
    assert fits.need > 2**25  # and is no fraction of what is there


@pytest.mark.parametrize("silent", [False, True])
@pytest.mark.parametrize("first", [1, 1024, 100_000])
@pytest.mark.parametrize(
    ("fixed", "layout", "growth"),
    [(10, 0, 1e-3), (10, 600, 2e-3), (800, 0, 1e-4), (400, 400, 1e-2), (10, 2000, 1), (1100, 0, 1)],
)
def test_the_largest_chunk_is_found_whatever_was_asked_first(
    fixed, layout, growth, first, silent, monkeypatch, cpu
):
    """A compiler that lays out one seed otherwise than many, and may not say what is too much."""

    def compiles(chip, workload, mesh, chunk):
        need = int(1e6 * (fixed + layout * (chunk > 1) + growth * chunk))
        size = {"arguments": int(1e6 * fixed), "program": 0}
        if need <= chip.memory:
            return sizing._Compiled(chunk, True, need, size, None, None, 0.0)
        return sizing._Compiled(chunk, False, None if silent else need, None, None, None, 0.0)

    monkeypatch.setattr(sizing, "_compile", compiles)
    chip = targets.Chip(**{**vars(cpu.chip), "memory": 10**9})
    mesh = dd.sharding.make_mesh(1, 1, devices=cpu.devices)
    found = sizing._largest(chip, workload(), mesh, compiles(chip, None, mesh, first))
    most = max((1000 - fixed - layout) / growth, fixed < 1000)
    assert found <= most
    assert found >= (min(most, 1) if silent else 0.8 * most)


# --- refusals ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["tpu", "v5e", "v5e:2", "v5e:0x1", "v5e:2x2x2", "v5e:16x17", "v5p:2x2", "v9:2x2", "cpu:2"],
)
def test_unknown_machines(name):
    with pytest.raises(InputError, match="v5e:1x1"):
        targets.machine(name)


@pytest.mark.parametrize("name", ["v5e:1x1", "h100:8"])
def test_without_the_extra_one_line_says_how_to_get_it(name, monkeypatch, capsys):
    monkeypatch.setattr("dd_jax.targets.machines.installed", lambda platform: False)
    monkeypatch.setenv("JAX_ENABLE_COMPILATION_CACHE", "false")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert main(["targets", name]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "dd-jax[targets]" in line


@pytest.mark.parametrize("changes", [{"n": 0}, {"learn_steps": 1}, {"requests": 0}, {"seeds": 0}])
def test_workloads_that_are_none(changes):
    with pytest.raises(InputError, match=next(iter(changes))):
        workload(**changes)


# --- other machines ------------------------------------------------------------------------------

SEEDS_ONLY = [
    pytest.param(("v5e:1x1", "v5e:16x16", "v5p:16x16x16"), marks=needs_tpu, id="tpu"),
    pytest.param(("h100:1", "h100:8"), marks=needs_cuda, id="cuda"),
]
ROWS_TOO = [
    pytest.param("v5e:2x4", marks=needs_tpu, id="tpu"),
    pytest.param("h100:8", marks=needs_cuda, id="cuda"),
]


@pytest.mark.slow
@pytest.mark.parametrize("machines", SEEDS_ONLY)
def test_seeds_need_no_collective_and_a_thousand_requests_fit(machines):
    found = asked(*machines, "--no-search")
    assert [answer["machine"] for answer in found] == list(machines)
    for answer in found:
        assert answer["fits"]
        assert answer["collectives"] == {}
        assert 0 < answer["need"] < answer["memory"]
        assert answer["seconds"] > 0
        if answer["chip"] == "h100":
            assert answer["cycles"] is None
            assert answer["estimate"] == "roofline bound"
        else:
            assert 0 < answer["share"] < 1
            assert answer["product_cycles"] <= answer["cycles"]


@pytest.mark.slow
@pytest.mark.parametrize("machine", ROWS_TOO)
def test_a_data_axis_costs_one_all_reduce_per_step(machine):
    (answer,) = asked(machine, "--mesh", "2", "4", "--no-search")
    assert answer["collectives"] == {"all-reduce": 1.0}
    # The sums of 1,024 models, there and back; layouts may add some.
    link = {"v5e": 200e9, "h100": 450e9}[answer["chip"]]
    assert 1 <= answer["bound"]["link"] / (2 * 4 * 1024 * 50 / link) < 1.3


@pytest.mark.slow
@pytest.mark.parametrize(
    "machine",
    [pytest.param("v5e:1x1", marks=needs_tpu), pytest.param("h100:1", marks=needs_cuda)],
)
def test_a_chunk_that_does_not_fit(machine):
    asks = (machine, "--n", "200", "--dim", "20", "--requests", "1000")
    (answer,) = asked(*asks, "--chunk", "4000000", "--seeds", "4000000")
    assert not answer["fits"]
    assert 0 < answer["largest_chunk"] < 4_000_000
    (smaller,) = asked(*asks, "--chunk", str(answer["largest_chunk"]), "--no-search")
    assert smaller["fits"]


@needs_tpu
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "precision", "arithmetic"),
    [
        ("v5e:1x1", jnp.bfloat16, None, "bf16_bf16_f32"),
        ("v5p:1x1x1", jnp.bfloat16, None, "bf16_bf16_f32"),
        ("v6e:1x1", jnp.bfloat16, None, "bf16_bf16_f32"),
        ("v5e:1x1", jnp.float32, jax.lax.Precision.HIGHEST, "f32_f32_f32"),
    ],
)
def test_a_large_product_takes_about_the_time_of_its_peak(name, kind, precision, arithmetic):
    """So the clock is the one that the compiler counts in, and the passes are those it makes."""
    made = targets.machine(name)
    place = jax.sharding.SingleDeviceSharding(made.devices[0])
    matrix = jax.ShapeDtypeStruct((4096, 4096), kind, sharding=place)
    product = jax.jit(functools.partial(jnp.dot, precision=precision))
    program = compiled.read(product.lower(matrix, matrix).compile().as_text())
    cycles = sum(compiled.cycles(program, compiled.executed(program)).values())
    share = 2 * 4096**3 / made.chip.products[arithmetic] * made.chip.clock / cycles
    assert 0.6 < share < 1.05


@needs_tpu
@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_no_compiled_product_is_a_single_bfloat16_pass(name):
    """Full float32, or the parts that six passes are made of, which carry their scope's name."""
    device = targets.machine("v5e:2x4").devices[0]

    def given(leaf):
        sharding = jax.sharding.SingleDeviceSharding(device)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    fn, database = PROGRAMS[name]
    keys = jax.random.split(jax.random.key(0), 4)
    args = jax.tree.map(given, (keys, database))
    text = jax.jit(jax.vmap(fn, in_axes=(0, None))).lower(*args).compile().as_text()
    found = re.findall(r"^.* (?:convolution|dot)\(.*$", text, re.MULTILINE)
    assert found
    for line in found:
        assert "operand_precision={highest,highest}" in line or "product_of_parts" in line
