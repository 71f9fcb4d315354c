"""`dd-jax sweep`: a grid of losses, budgets and requesters on one data set, over many seeds."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dd_jax.cli import options, reading
from dd_jax.cli.devices import ONE_DEVICE, DeviceOptions
from dd_jax.cli.options import Floats, Ints, Switch
from dd_jax.cli.output import count, number, print_json, print_table, progress, say
from dd_jax.cli.reading import AS_IT_IS, ReadingOptions
from dd_jax.constants import CatalogueLoss, Precision
from dd_jax.intervals import check_confidence

Reference = Literal["replaced", "null"]
Accountant = Literal["optimal", "unrelaxed", "paper", "sharp", "refined", "tuned"]


@dataclass(frozen=True)
class Config:
    """Sweep settings on one data set: what each costs, and the risk and accuracy it gives.

    Options that take several values span a grid. Every combination is planned; then, for each of
    --seeds seeds, a model is learned, records are deleted request by request, and the releases are
    judged. Excess risk is that of a released model on the current database, beside the certified
    bound on its mean; accuracy is measured on held-out records.

    Two regularisers and two privacy budgets, (ε, δ):
        dd-jax sweep --l2 0.01 0.05 --eps-dp 0.5 1 --delta 1e-5

    Your own file, three losses, an adaptive requester that sees 0, 2 or all 10 releases:
        dd-jax sweep --data my.csv --label y --unit-rows --loss logistic huber softmax \\
            --requester largest_loss --adaptivity 0 2 10

    More noise than privacy needs, which saves deletion steps:
        dd-jax sweep --noise-variance 0.01 0.1 --eps-dd 0.1 0.01 --results noise

    Writes results.csv, one row for every setting, and results.npz with the same columns and what
    each seed gave; chunks of seeds are kept under sweep/: a killed sweep continues where it stopped
    and ends with the same bytes; a sweep with other settings, data, library versions or devices
    never uses them. A setting that no plan can meet is listed with the reason. Exit status 1: a
    mean is above its certified risk bound by more than chance explains.
    """

    data: str = "digits-3-vs-8"
    """A task of `dd-jax data`, or a CSV (with header) or NPZ file of your own."""
    reading: ReadingOptions = AS_IT_IS
    intercept: Switch = False
    """Append a constant 1 to the scaled features."""
    records: Ints = ()
    """Use the first n records of the training set; all by default. Each n compiles once more."""
    loss: tuple[CatalogueLoss, ...] = ("logistic",)
    """Losses of the catalogue; tanh_margin and bounded_network get non-convex plans."""
    smoothing: Floats = ()
    """Width of the smoothed hinge's corner."""
    threshold: Floats = ()
    """The Huber loss is linear beyond this residual."""
    hidden: Ints = ()
    """Hidden units of the bounded network."""
    output_norm: Floats = ()
    """Norm of the bounded network's fixed output weights."""
    l2: tuple[float, ...] = (0.05,)
    """Constant λ of the regulariser (λ/2)‖θ‖²."""
    clip_norm: Floats = ()
    """Clip every record's gradient to this norm; no clipping by default."""
    precision: tuple[Precision, ...] = ("full",)
    """How matrix products are computed: in full, or in three bfloat16 passes on accelerators."""
    eps_dp: tuple[float, ...] = (1.0,)
    """Privacy budget of one release."""
    eps_dd: tuple[float, ...] = (0.1,)
    """Deletion budget: what may remain of one deleted record."""
    order: Floats = ()
    """Rényi order q of the budgets, 2 unless --delta is given."""
    delta: Floats = ()
    """The δ of (ε, δ), if the budgets are its ε."""
    accountant: tuple[Accountant, ...] = ()
    """Formulas of the plan; the tightest by default."""
    noise_variance: Floats = ()
    """Noise variance σ²; by default the smallest that the budgets allow."""
    step_size: Floats = ()
    """Step size η; that of the plan by default."""
    batches: tuple[int, ...] = (1,)
    """Cyclic batches m of consecutive rows, one per step; each number compiles once more."""
    reference: tuple[Reference, ...] = ("replaced",)
    """What --eps-dd is compared with: the record that replaced the deleted one, or an empty row."""
    requests: int = 10
    """Requests that are served."""
    edits_per_request: tuple[int, ...] = (1,)
    """Records r that one request deletes."""
    requester: tuple[Literal["in_order", "largest_loss"], ...] = ("in_order",)
    """Who asks: for the first records, or (adaptive) for those with the largest loss under the last
    model that was shown."""
    adaptivity: tuple[int, ...] = (0,)
    """Releases p that the requester may have seen; the first p are shown."""
    seeds: int = 100
    """Interactions of every setting."""
    confidence: float = 0.95
    """Confidence of all intervals of the table together."""
    chunk: int = 1024
    """Interactions in memory at once."""
    seed: int = 0
    """Seed of all randomness, and of a file's split."""
    results: Path = Path("results")
    """Folder to write to; made if it is missing."""
    resume: bool = True
    """Use the chunks that an earlier sweep kept."""
    json: Switch = False
    """Print one JSON object."""
    devices: DeviceOptions = ONE_DEVICE


# Options that span the grid, with their headings in the table.
_GRID = {
    "loss": "loss",
    "smoothing": "smoothing γ",
    "threshold": "threshold",
    "hidden": "hidden",
    "output_norm": "outputs V",
    "l2": "l2 λ",
    "clip_norm": "clip",
    "precision": "precision",
    "eps_dp": "stays ε_dp",
    "eps_dd": "deleted ε_dd",
    "order": "order q",
    "delta": "delta δ",
    "accountant": "accountant",
    "noise_variance": "noise σ²",
    "step_size": "step η",
    "batches": "batches m",
    "reference": "reference",
    "edits_per_request": "rows r",
    "requester": "requester",
    "adaptivity": "seen p",
}


def main(config: Config) -> int:
    """Sweep, save and print; returns the exit status."""
    _check(config)
    say("dd-jax sweep: starting JAX …")
    import jax  # here and below, so that help and refused options do not wait for JAX

    from dd_jax import processes, sweeps

    least = config.requests * max(config.edits_per_request) + 2
    data = reading.load(config.data, config.reading, seed=config.seed, least=least)
    if data.caveat:
        say(f"WARNING: {data.caveat}.")
    start = time.monotonic()
    found = sweeps.deletions(
        jax.random.key(config.seed),
        data,
        seeds=config.seeds,
        confidence=config.confidence,
        results=config.results / "sweep",
        chunk=config.chunk,
        resume=config.resume,
        mesh=config.devices.make_mesh(),
        name=Path(config.data).name,
        progress=lambda settings: progress(f"{count(settings, 'setting')} × {config.seeds} seeds"),
        **_axes(config),
    )
    written = found.save(config.results) if processes.is_first() else []
    seconds = time.monotonic() - start
    if config.json:
        about = {name: getattr(config, name) for name in ("data", "seeds", "seed", "confidence")}
        verdict = "refuted" if found.above_bound else "consistent"
        values = about | {"verdict": verdict, "rows": found.rows}
        print_json(values | {"seconds": round(seconds, 1), "files": written})
    else:
        _print(config, found.rows)
        print(f"{seconds:.0f} s; wrote {', '.join(written)}")
    return int(bool(found.above_bound))


def _check(config: Config) -> None:
    check_confidence(config.confidence)
    options.require_at_least(config, requests=1, seeds=2, chunk=1)
    options.require_folder("--results", config.results)


def _axes(config: Config) -> dict[str, Any]:
    """The options that are fields of a question, where they were given."""
    axes = {name: getattr(config, name) for name in _GRID if getattr(config, name)}
    if config.records:
        axes["n"] = config.records
    return axes | {"requests": config.requests, "intercept": config.intercept}


# --- the table ----------------------------------------------------------------------------------


def _print(config: Config, rows: list[dict]) -> None:
    columns = _varied(config) | {
        "noise σ²": "noise_variance",
        "learning K_L": "learn_steps",
        "deletion K_U": "delete_steps",
    }
    print_table(
        f"{config.data}: {config.seeds} seeds, {count(config.requests, 'request')}",
        (*columns, "risk learned", "risk edited", "bound", "accuracy", "edited"),
        [
            (
                *(row[key] for key in columns.values()),
                *(_mean(row, name) for name in ("risk_learned", "risk_edited")),
                row["risk_bound_request"],
                *(_mean(row, name) for name in ("accuracy_learned", "accuracy_edited")),
            )
            for row in rows
            if row["refused"] is None
        ],
    )
    asked = _varied(config) | {"noise σ²": "noise_variance"}
    for row in rows:
        if row["refused"] is not None:
            given = {name: row[key] for name, key in asked.items() if row[key] is not None}
            words = ", ".join(f"{name} = {number(value)}" for name, value in given.items())
            print(f"  refused: {words}: {row['refused']}")
    print(_legend(config))


def _varied(config: Config) -> dict[str, str]:
    """Heading and column of every option that spans the grid; σ² has a column in any case."""
    found = {"records n": "n"} if len(config.records) > 1 else {}
    for name, heading in _GRID.items():
        if len(getattr(config, name)) > 1 and name != "noise_variance":
            found[heading] = f"{name}_asked" if name.startswith("eps") else name
    return found


def _mean(row: dict, name: str) -> str | None:
    if row[name] is None:
        return None
    # The interval is cut at 0, and at 1 for an accuracy, so that its halves can differ.
    half = max(row[f"{name}_high"] - row[name], row[name] - row[f"{name}_low"])
    return f"{row[name]:.3g} ± {half:.1g}"


def _legend(config: Config) -> str:
    lines = (
        "risk: mean excess empirical risk of a release on its own database (convex losses); bound:",
        "  what the certificate allows the mean after the deletions; accuracy: held out",
        f"±: Student's t over seeds; all intervals together have confidence {config.confidence:g}",
        "a step takes n/m gradients of one record",
    )
    return "\n".join(lines)
