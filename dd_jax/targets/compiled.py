"""What a program says of itself: loops, products, collectives, bytes and the compiler's cycles.

Reads XLA's text (HLO) of a lowered or compiled program. A loop's body is written once, so every
instruction is listed with how often it is executed: the product of the trip counts around it.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import prod
from typing import NamedTuple

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
# These name or regroup arrays and move nothing.
_FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "iota"}
_CONTROL = {"while", "call", "conditional", "async-start", "async-update", "async-done"}
# TPUs write products as convolutions; a kernel of one's own is a custom call.
_PRODUCTS = {"dot", "convolution", "custom-call"}
_ARITHMETIC = {"add", "subtract", "multiply", "divide", "negate", "abs", "maximum", "minimum"}
_ARITHMETIC |= {"clamp", "compare", "select", "sign", "floor", "round-nearest-even", "power", "erf"}
_ARITHMETIC |= {"exponential", "exponential-minus-one", "log", "log-plus-one", "logistic", "tanh"}
_ARITHMETIC |= {"convert", "reduce-precision"}
_ARITHMETIC |= {"sqrt", "rsqrt", "and", "or", "xor", "not", "shift-left", "shift-right-logical"}
_BYTES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4}
_BYTES |= {"s16": 2, "u16": 2, "s64": 8, "u64": 8, "f64": 8}
_ARRAY = re.compile(r"(\w+)\[([\d,]*)\](\{[^}]*\})?")


class Instruction(NamedTuple):
    """One line: name = shape opcode(operands), attributes."""

    name: str
    shape: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str


class Program(NamedTuple):
    """Computations by name, each with its instructions by name; where execution begins."""

    computations: Mapping[str, Mapping[str, Instruction]]
    entry: str


class Executed(NamedTuple):
    """An instruction with how often it runs.

    Attributes:
        instruction: the line. where: the computation that it stands in.
        times: how often it is executed.
        fused: it is part of a fusion, which reads and writes memory as a whole.
    """

    instruction: Instruction
    where: str
    times: int
    fused: bool


def read(text: str) -> Program:
    """The computations of a program's text."""
    computations: dict[str, dict[str, Instruction]] = {}
    entry = ""
    here: dict[str, Instruction] = {}
    for line in text.splitlines():
        if not line.startswith(" "):
            header = re.match(r"(ENTRY )?%?([\w.\-]+).*\{$", line)
            if header:
                here = computations[header.group(2)] = {}
                entry = header.group(2) if header.group(1) else entry
        elif " = " in line:
            found = _instruction(line)
            here[found.name] = found
    return Program(computations, entry)


def _instruction(line: str) -> Instruction:
    name, _, rest = line.strip().removeprefix("ROOT ").partition(" = ")
    end = _closing(rest) if rest.startswith("(") else rest.index(" ")
    shape, rest = rest[:end], rest[end:].lstrip()
    opcode, _, _ = rest.partition("(")
    rest = rest[len(opcode) :]
    end = _closing(rest)
    operands = tuple(
        re.findall(r"%?([\w.\-]+)(?:,|$)", re.sub(r"/\*.*?\*/", "", rest[1 : end - 1]))
    )
    return Instruction(name.lstrip("%"), shape, opcode, operands, rest[end:])


def _closing(text: str) -> int:
    """Where the parenthesis that a text begins with is closed."""
    depth = 0
    for place, letter in enumerate(text):
        depth += (letter == "(") - (letter == ")")
        if depth == 0:
            return place + 1
    raise ValueError(f"no end of {text[:40]!r}")


# --- loops ----------------------------------------------------------------------------------------


def executed(program: Program, start: str | None = None) -> Iterator[Executed]:
    """Everything that runs from a computation on (by default the whole program)."""
    return _executed(program, start or program.entry, 1, False)


def _executed(program: Program, where: str, times: int, fused: bool) -> Iterator[Executed]:
    for instruction in program.computations[where].values():
        yield Executed(instruction, where, times, fused)
        inside = fused or instruction.opcode == "fusion"
        turns = trips(program, instruction) if instruction.opcode == "while" else 1
        for called in _called(instruction):
            yield from _executed(program, called, times * turns, inside)


def _called(instruction: Instruction) -> list[str]:
    """The computations that an instruction runs; what a reduction does to two numbers is none."""
    key = {"while": "body", "fusion": "calls", "call": "to_apply", "async-start": "calls"}
    if instruction.opcode in key:
        return re.findall(rf"\b{key[instruction.opcode]}=%?([\w.\-]+)", instruction.attributes)
    if instruction.opcode == "conditional":
        inside = re.search(r"branch_computations=\{([^}]*)\}", instruction.attributes)
        return re.findall(r"%?([\w.\-]+)", inside.group(1)) if inside else []
    return []


def trips(program: Program, loop: Instruction) -> int:
    """How often a loop runs: what the compiler says, or the constant that its counter meets."""
    known = re.search(r'"known_trip_count":\{"n":"(\d+)"', loop.attributes)
    if known:
        return int(known.group(1))
    (condition,) = re.findall(r"\bcondition=%?([\w.\-]+)", loop.attributes)
    inside = program.computations[condition]
    for test in inside.values():
        if test.opcode == "compare" and "direction=LT" in test.attributes:
            return int(inside[test.operands[1]].operands[0])
    raise ValueError(f"the loop {loop.name} has no known trip count")


def loops(program: Program, name: str) -> list[Executed]:
    """Loops whose place in the source ends with this name, outermost and first ones first."""
    found = [
        item
        for item in executed(program)
        if item.instruction.opcode == "while"
        and re.search(rf'op_name="[^"]*{re.escape(name)}"', item.instruction.attributes)
    ]
    return sorted(found, key=lambda item: item.times)


def body(loop: Instruction) -> str:
    """The computation that a loop repeats."""
    return _called(loop)[0]


# --- what is executed ----------------------------------------------------------------------------


def cycles(program: Program, items: Iterable[Executed]) -> Counter[str]:
    """The compiler's estimates (TPUs), of instructions that hold a matrix product and of others."""
    total = Counter({"products": 0, "other": 0})
    for item in items:
        said = re.search(r'"estimated_cycles":"(\d+)"', item.instruction.attributes)
        if said and not item.fused and item.instruction.opcode not in _CONTROL:
            kind = "products" if _has_product(program, item.instruction) else "other"
            total[kind] += item.times * int(said.group(1))
    return total


def _has_product(program: Program, instruction: Instruction) -> bool:
    if instruction.opcode in _PRODUCTS:
        return True
    return instruction.opcode == "fusion" and any(
        _has_product(program, inner)
        for name in _called(instruction)
        for inner in program.computations[name].values()
    )


def kernels(items: Iterable[Executed]) -> int:
    """Instructions that a device is started for: on a GPU each is a kernel of its own."""
    return sum(
        item.times
        for item in items
        if not item.fused and item.instruction.opcode not in _FREE | _CONTROL
    )


def collectives(items: Iterable[Executed]) -> dict[str, int]:
    """How many of each kind are executed."""
    found: Counter[str] = Counter()
    for item in items:
        kind = item.instruction.opcode.removesuffix("-start")
        if kind in COLLECTIVES:
            found[kind] += item.times
    return dict(found)


def sent(items: Iterable[Executed]) -> int:
    """Bytes of all collectives' results."""
    return sum(
        item.times * _size(item.instruction.shape, fast=True)
        for item in items
        if item.instruction.opcode.removesuffix("-start") in COLLECTIVES
    )


def elementwise(items: Iterable[Executed]) -> int:
    """Operations on single numbers, products left out."""
    return sum(
        item.times * sum(prod(_dims(dims)) for _, dims, _ in _ARRAY.findall(item.instruction.shape))
        for item in items
        if item.instruction.opcode in _ARITHMETIC
    )


def arithmetic(product: Instruction, dtype: str) -> str:
    """How a product's numbers are multiplied: an algorithm's name, "default" or "high"."""
    algorithm = re.search(r"\balgorithm=dot_(\w+)", product.attributes)
    if algorithm:
        return algorithm.group(1)
    if dtype != "f32":
        return f"{dtype}_{dtype}_f32"
    precision = re.search(r"operand_precision=\{(\w+)", product.attributes)
    legacy = precision.group(1) if precision else "default"
    return "f32_f32_f32" if legacy == "highest" else legacy


def products(program: Program, tile: int = 1) -> Counter[str]:
    """Flop of all matrix products of a lowered program, by their arithmetic.

    A matrix unit holds a square `tile` of one operand while the other operand's rows pass through
    it. The held operand fills whole tiles, so its sides are rounded up; of the two ways to choose
    it, the cheaper one counts.
    """
    flops: Counter[str] = Counter()
    for item in executed(program):
        dot = item.instruction
        if dot.opcode != "dot":
            continue
        left = program.computations[item.where][dot.operands[0]]
        ((dtype, dims, _),) = _ARRAY.findall(left.shape)
        (axes,) = re.findall(r"lhs_contracting_dims=\{([\d,]*)\}", dot.attributes)
        batch = re.search(r"lhs_batch_dims=\{([\d,]*)\}", dot.attributes)
        copies = prod(_dims(dims)[axis] for axis in _dims(batch.group(1) if batch else ""))
        shared = prod(_dims(dims)[axis] for axis in _dims(axes))
        ((_, out, _),) = _ARRAY.findall(dot.shape)
        rows = prod(_dims(dims)) // (copies * shared)
        columns = prod(_dims(out)) // (copies * rows)
        held = min(rows * _filled(columns, tile), _filled(rows, tile) * columns)
        flops[arithmetic(dot, dtype)] += item.times * 2 * copies * _filled(shared, tile) * held
    return flops


def _filled(side: int, tile: int) -> int:
    return -(-side // tile) * tile


# --- bytes ---------------------------------------------------------------------------------------


def moved(program: Program, items: Iterable[Executed], cache: int = 0) -> int:
    """Bytes that instructions read from and write to the device's main memory.

    An instruction, or a fusion as a whole, reads its operands and writes its result. Where it takes
    a slice of an operand or overwrites a part of one, the part counts. An array of up to a quarter
    of the cache is taken to stay there from one instruction to the next.
    """
    return sum(
        item.times * sum(size for size in _traffic(program, item) if 4 * size > cache)
        for item in items
        if not item.fused and item.instruction.opcode not in _FREE | _CONTROL
    )


def _traffic(program: Program, item: Executed) -> list[int]:
    """Sizes of the arrays that an instruction reads and writes."""
    here, instruction = program.computations[item.where], item.instruction
    inside, names = {instruction.name: instruction}, instruction.operands
    if instruction.opcode == "fusion":
        inside = program.computations[_called(instruction)[0]]
        names = _parameters(inside)
    sizes = [
        _read(program, inside, name, _size(here[operand].shape))
        for operand, name in zip(instruction.operands, names, strict=True)
        if operand in here
    ]
    last = list(inside.values())[-1]
    if last.opcode != "dynamic-update-slice":
        return [*sizes, _size(instruction.shape)]
    update = inside.get(last.operands[1], here.get(last.operands[1]))
    return [*sizes, 0 if update is None else _size(update.shape)]


def _read(program: Program, inside: Mapping[str, Instruction], name: str, whole: int) -> int:
    """Bytes of an operand that are read: slices of it, or all."""
    total = 0
    for one in inside.values():
        if name not in one.operands:
            continue
        place = one.operands.index(name)
        if one.opcode in ("dynamic-slice", "slice"):
            total += _size(one.shape)
        elif one.opcode == "bitcast":
            total += _read(program, inside, one.name, whole)
        elif one.opcode == "fusion":
            called = program.computations[_called(one)[0]]
            total += _read(program, called, _parameters(called)[place], whole)
        elif one.opcode != "dynamic-update-slice" or place:
            return whole  # an array that is overwritten in part stays where it is
    return min(whole, total)


def _parameters(inside: Mapping[str, Instruction]) -> list[str]:
    """Names of a computation's parameters, in their order."""
    found = [one for one in inside.values() if one.opcode == "parameter"]
    return [one.name for one in sorted(found, key=lambda one: int(one.operands[0]))]


def _size(shape: str, *, fast: bool = False) -> int:
    """Bytes in main memory; TPUs mark what lies in the `fast` memory beside the cores as S(1)."""
    return sum(
        _BYTES.get(dtype, 0) * prod(_dims(dims))
        for dtype, dims, layout in _ARRAY.findall(shape)
        if fast or "S(1)" not in layout
    )


def _dims(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]
