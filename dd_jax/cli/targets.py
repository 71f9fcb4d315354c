"""`dd-jax targets`: does a sweep fit a TPU pod or GPUs, and what would it cost there?"""

import contextlib
import datetime
import importlib
import json
import math
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from dd_jax import checks, files, sealed
from dd_jax.cli import compile_cache, options
from dd_jax.cli.options import Switch
from dd_jax.cli.output import count, json_text, number, print_json, print_table, say
from dd_jax.constants import CatalogueLoss, Precision
from dd_jax.errors import InputError


@dataclass(frozen=True)
class Config:
    """Size a sweep for accelerators that are not here: their compilers run on any machine.

    Compiles whole interactions (learn, then serve deletions one by one) over a chunk of seeds for
    each machine, runs nothing, and prints what the compiler says: whether a device's memory holds
    it, the largest chunk that fits, collectives and cycles of a step, and how long all seeds would
    take. On TPUs the time is the compiler's own estimate; GPU programs carry none, so theirs is a
    roofline bound, and a run takes longer.

    One chip, a slice of a pod, a whole pod, a host with eight GPUs:
        dd-jax targets v5e:1x1 v5e:16x16 v5p:16x16x16 h100:8

    Larger records, eight chips of which two share the seeds and four the rows:
        dd-jax targets v5e:2x4 --n 1000000 --dim 785 --mesh 2 4

    Three passes in place of six, where a plan's arithmetic allows it:
        dd-jax targets v5e:1x1 --precision bfloat16x3

    Needs the extra `targets`, best in an environment of its own: `make targets`.
    """

    machines: tyro.conf.Positional[
        Annotated[tuple[str, ...], tyro.conf.arg(metavar="MACHINE")]
    ] = ()
    """v5e:AxB, v6e:AxB, v5p:AxBxC, h100:COUNT or cpu; one chip and pods by default."""
    n: int = 10_000
    """Records in the database."""
    dim: int = 50
    """Features of a record."""
    seeds: int = 1_000_000
    """Interactions in all."""
    requests: int = 1000
    """Deletions that each interaction serves."""
    learn_steps: int = 200
    """K_L, steps of learning."""
    delete_steps: int = 30
    """K_U, steps of one deletion."""
    batches: int = 1
    """Cyclic batches m of consecutive rows, one per step; not for rows that devices share."""
    loss: CatalogueLoss = "logistic"
    """A loss of the catalogue."""
    num_classes: int = 10
    """Classes of the losses softmax and one_vs_rest."""
    hidden: int = 32
    """Hidden units of the bounded network."""
    clip_norm: float | None = 0.5
    """Clip every record's gradient to this norm; None for no clipping."""
    precision: Precision = "full"
    """How matrix products are computed: in single precision, or in three bfloat16 passes."""
    mesh: tuple[int, int] | None = None
    """Devices that share the seeds, and devices that share the rows; all share the seeds by
    default."""
    chunk: int | None = None
    """Seeds at once, over all devices; by default 1024 for each device that shares seeds."""
    search: bool = True
    """Look for the largest chunk that fits: up to five compilations more."""
    save: Path | None = None
    """File to write the JSON object to as well."""
    json: Switch = False
    """Print one JSON object."""


DEFAULT = ("v5e:1x1", "v5e:16x16", "v6e:16x16", "v5p:16x16x16", "h100:1", "h100:8")


def main(config: Config) -> int:
    """Compile for every machine and print; returns the exit status."""
    for size in config.mesh or ():
        checks.whole("--mesh", size, least=1)
    options.require_at_least(config, chunk=1)
    # Programs for other machines are compiled here and run on none, so none is worth keeping; the
    # devices that JAX itself may use are this machine's CPU alone.
    compile_cache.disable()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # Read when JAX is loaded: what does not fit is told in the table, and not by a library's log.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with _quiet():
        from dd_jax import targets  # not before help was asked for, and options were refused
    names = _names(config, targets)
    with _quiet():
        machines = [targets.machine(name) for name in names]
        importlib.import_module("jax").devices()  # the last platforms are loaded here
    workload = _workload(config)
    answers = []
    for machine in machines:
        say(f"dd-jax targets: compiling for {machine.name} …")
        answers.append(
            targets.answer(
                machine, workload, mesh=config.mesh, chunk=config.chunk, search=config.search
            )
        )
    values = _values(config, answers)
    if config.save is not None:
        config.save.parent.mkdir(parents=True, exist_ok=True)
        files.place(config.save, sealed.pack_json(json.loads(json_text(values))))
    if config.json:
        print_json(values)
    else:
        _print(config, answers)
    return 0


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Drop what JAX's libraries write past Python to standard error: that there is no GPU here."""
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _names(config: Config, targets) -> tuple[str, ...]:
    """The machines that were asked for, or those of the default whose compiler is installed."""
    if config.machines:
        return config.machines
    found = tuple(
        name
        for name in DEFAULT
        if targets.installed(targets.CHIPS[name.partition(":")[0]].platform)
    )
    if not found:
        raise InputError(f"no compiler for TPUs or GPUs is installed: {targets.INSTALL}")
    for name in DEFAULT:
        if name not in found:
            say(f"dd-jax targets: {name} is left out, its compiler is not installed")
    return found


def _workload(config: Config):
    from dd_jax import losses, targets
    from dd_jax.erm import Problem

    extra: dict[str, Any] = {
        "softmax": {"num_classes": config.num_classes},
        "one_vs_rest": {"num_classes": config.num_classes},
        "bounded_network": {"hidden": config.hidden},
    }.get(config.loss, {})
    loss = getattr(losses, config.loss)(**extra)
    problem = Problem(loss, l2=0.01, clip_norm=config.clip_norm, precision=config.precision)
    return targets.Workload(
        problem,
        n=config.n,
        dim=config.dim,
        seeds=config.seeds,
        requests=config.requests,
        learn_steps=config.learn_steps,
        delete_steps=config.delete_steps,
        batches=config.batches,
    )


def _values(config: Config, answers: list) -> dict[str, Any]:
    asked = asdict(config)
    for name in ("machines", "mesh", "chunk", "search", "save", "json"):
        del asked[name]
    return {
        "made": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "workload": asked,
        "answers": [
            asdict(answer) | {"bound": answer.bound and answer.bound._asdict()}
            for answer in answers
        ],
    }


# --- the table -----------------------------------------------------------------------------------


def _print(config: Config, answers: list) -> None:
    print_table(
        f"{config.loss}, {config.n:,} × {config.dim}: {config.learn_steps} steps, then "
        f"{count(config.requests, 'deletion')} of {config.delete_steps}; {config.precision}",
        ("machine", "mesh", "chunk", "on a device", "of its memory", "fits", "largest chunk"),
        [_sizes(answer) for answer in answers],
    )
    for answer in answers:
        if not answer.fits:
            print(_does_not_fit(config, answer))
    costs = [_costs(answer) for answer in answers if answer.seconds is not None]
    if costs:
        print_table(
            f"A step of learning, and all {config.seeds:,} seeds",
            ("machine", "collectives", "cycles", "roofline", "most in", "seed-steps/s", "seeds"),
            costs,
        )
    print("\n".join(_legend(answers)))


def _sizes(answer) -> tuple:
    return (
        answer.machine,
        f"{answer.mesh[0]} × {answer.mesh[1]}",
        answer.chunk,
        None if answer.need is None else _gib(answer.need),
        _gib(answer.memory),
        "yes" if answer.fits else "NO",
        answer.largest_chunk,
    )


def _costs(answer) -> tuple:
    kinds = answer.collectives.items()
    bound = answer.cycles is None
    return (
        answer.machine,
        ", ".join(f"{number:.3g} {kind}" for kind, number in kinds) or "0",
        None if bound else round(answer.cycles),
        None if bound else f"{answer.share:.1%}",
        answer.bound_by,
        f"{'≤ ' * bound}{answer.seed_steps_per_second:.3g}",
        f"{'≥ ' * bound}{_duration(answer.seconds)}",
    )


def _gib(size: float) -> str:
    return f"{size / 2**30:.3g} GiB"


def _duration(seconds: float) -> str:
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.3g} {unit}"
    return f"{seconds:.3g} s"


def _does_not_fit(config: Config, answer) -> str:
    if answer.largest_chunk:
        would = f"--chunk {answer.largest_chunk} does"
    elif answer.largest_chunk is None:
        would = "give a smaller --chunk, or leave out --no-search to be told which"
    else:  # so it is the rows that do not fit, with the copies that a program makes of them
        rows = 4 * config.n * config.dim
        need = answer.mesh[1] * (answer.need or 8 * rows)
        would = (
            f"no chunk does: the rows take {_gib(rows)}, and more in the form that the products "
            f"take; let about {math.ceil(need / answer.memory)} devices share them (--mesh)"
        )
    return f"  {answer.machine}: {answer.chunk:,} seeds at once do not fit; {would}."


def _legend(answers: list) -> list[str]:
    lines = [
        "Nothing was run. chunk: seeds at once, over all devices; cycles and collectives: of one",
        "  device in one step of learning; most in: what takes the most of it",
    ]
    if any(answer.cycles is not None for answer in answers):
        lines += [
            "TPU: times are the compiler's own estimate; roofline: the share of the cycles that",
            "  products in whole tiles, elementwise work or bytes would take at peak rates",
        ]
    bounds = [answer for answer in answers if answer.cycles is None and answer.kernels]
    if bounds:
        lines += ["≤, ≥: a roofline bound from counted flop and bytes; a run takes longer"]
    lines += [
        f"  {answer.machine} starts {number(round(answer.kernels))} kernels in a step, which the "
        f"bound does not count"
        for answer in bounds
        if answer.chip != "cpu"
    ]
    made = sorted({f"jax {answer.jax}" for answer in answers} | {a.compiler for a in answers})
    return [*lines, f"compiled by {', '.join(made)}"]
