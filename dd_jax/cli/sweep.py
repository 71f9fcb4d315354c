"""`dd-jax sweep`: a grid of budgets, regularisers and noise on one data set, over many seeds."""

import csv
import io
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dd_jax import files
from dd_jax.cli import options
from dd_jax.cli.devices import ONE_DEVICE, DeviceOptions
from dd_jax.cli.options import Switch
from dd_jax.cli.output import count, json_text, number, print_json, print_table, progress, say
from dd_jax.errors import InputError
from dd_jax.intervals import check_confidence, mean_over_seeds, simultaneous


@dataclass(frozen=True)
class Config:
    """Sweep settings on one data set: what each costs, and the risk and accuracy it gives.

    Options that take several values span a grid. The optimal accountant plans every combination;
    then, for each of --seeds seeds, a model is learned, the first records are deleted one by one,
    and the releases are judged. Excess risk is that of a released model on the current database,
    beside the certified bound on its mean; accuracy is measured on held-out records.

    Two regularisers and two privacy budgets, (ε, δ):
        dd-jax sweep --l2 0.01 0.05 --eps-dp 0.5 1 --delta 1e-5

    More noise than privacy needs, which saves deletion steps:
        dd-jax sweep --noise-variance 0.01 0.1 --eps-dd 0.1 0.01 --results noise

    Writes sweep.csv and sweep.json, and chunks of seeds under sweep/: a killed sweep continues
    where it stopped and ends with the same bytes; a sweep with other settings, data, library
    versions or devices never uses them. A setting that no plan can meet is listed with the reason.
    Exit status 1: a mean is above its certified risk bound by more than chance explains.
    """

    data: str = "digits-3-vs-8"
    """A task of `dd-jax data`."""
    l2: tuple[float, ...] = (0.05,)
    """Constant λ of the regulariser (λ/2)‖θ‖²."""
    eps_dp: tuple[float, ...] = (1.0,)
    """Privacy budget of one release."""
    eps_dd: tuple[float, ...] = (0.1,)
    """Deletion budget: what may remain of one deleted record."""
    noise_variance: tuple[float, ...] = ()
    """Noise variance σ²; by default the smallest that the budgets allow."""
    clip_norm: tuple[float, ...] = ()
    """Clip every record's gradient to this norm; no clipping by default."""
    step_size: tuple[float, ...] = ()
    """Step size η; 1/(λ+β) by default."""
    records: tuple[int, ...] = ()
    """Use the first n records of the training set; all by default. Each n compiles once more."""
    order: float | None = None
    """Rényi order q of the budgets, 2 unless --delta is given."""
    delta: float | None = None
    """The δ of (ε, δ), if the budgets are its ε."""
    requests: int = 10
    """Deletions that are served, one record each."""
    seeds: int = 100
    """Interactions of every setting."""
    confidence: float = 0.95
    """Confidence of all intervals of the table together."""
    chunk: int = 1024
    """Interactions in memory at once."""
    seed: int = 0
    """Seed of all randomness."""
    results: Path = Path("results")
    """Folder to write to; made if it is missing."""
    resume: bool = True
    """Use the chunks that an earlier sweep kept."""
    json: Switch = False
    """Print one JSON object."""
    devices: DeviceOptions = ONE_DEVICE


_GRID = ("l2", "eps_dp", "eps_dd", "noise_variance", "clip_norm", "step_size")
_MEASURED = ("risk_learned", "risk_edited", "accuracy_learned", "accuracy_edited")
_BOUNDS = {"risk_learned": "risk_bound_learned", "risk_edited": "risk_bound_request"}


def main(config: Config) -> int:
    """Sweep, save and print; returns the exit status."""
    _check(config)
    say("dd-jax sweep: starting JAX …")
    import jax  # here and below, so that help and refused options do not wait for JAX

    from dd_jax import data, processes, sharding, sweeps
    from dd_jax.sweeps import deletion

    dataset = data.load(config.data)
    questions = _questions(config, dataset)
    start = time.monotonic()
    mesh = config.devices.make_mesh()
    folder = config.results / "sweep"
    stream = sweeps.Stream(folder, config.data, {}, config.chunk, config.resume, mesh)

    def arguments(setting):
        train, test = deletion.first_records(dataset, setting.n)
        return sharding.spread(train, mesh), test

    def run(settings):
        with progress(f"{count(len(settings), 'setting')} × {config.seeds} seeds") as tick:
            return sweeps.run(
                stream,
                deletion.judged,
                jax.random.key(config.seed),
                config.seeds,
                settings,
                traced=deletion.TRACED,
                arguments=arguments,
                at_once=1,  # side by side, all settings would take the steps of the longest
                progress=tick,
            )

    values = _values(config, _rows(deletion.answers(questions, run), config))
    written = _save(config.results, values) if processes.is_first() else []
    seconds = time.monotonic() - start
    if config.json:
        print_json(values | {"seconds": round(seconds, 1), "files": written})
    else:
        _print(config, values["rows"])
        print(f"{seconds:.0f} s; wrote {', '.join(written)}")
    return int(values["verdict"] == "refuted")


def _check(config: Config) -> None:
    check_confidence(config.confidence)
    options.require_at_least(config, requests=1, seeds=2, chunk=1)
    options.require_folder("--results", config.results)


def _questions(config: Config, dataset) -> list:
    """Every combination of the options that were given."""
    from dd_jax import sweeps
    from dd_jax.sweeps.deletion import Question

    most, dim = dataset.train.features.shape
    for n in config.records:
        if not 1 <= n <= most:
            raise InputError(f"--records {n}: {config.data} has {most} training rows; give fewer.")
    if config.requests > min(config.records or (most,)):
        raise InputError(f"--requests {config.requests}: there are fewer records; give fewer.")
    axes = {name: getattr(config, name) for name in _GRID if getattr(config, name)}
    base = Question(
        data=config.data,
        n=most,
        dim=dim,
        l2=0.05,
        eps_dp=1.0,
        eps_dd=0.1,
        order=options.renyi_order(config),
        delta=config.delta,
        requests=config.requests,
    )
    return sweeps.grid(base, n=config.records or (most,), **axes)


def _rows(answers: list, config: Config) -> list[dict[str, Any]]:
    """A row for every question: what was asked, planned, promised and measured."""
    ran = sum(answer.outcome is not None for answer in answers)
    each = simultaneous(config.confidence, len(_MEASURED) * ran)
    return [_row(answer, each) for answer in answers]


def _row(answer, confidence: float) -> dict[str, Any]:
    asked = asdict(answer.question)
    row: dict[str, Any] = {name: asked[name] for name in ("data", "n", "dim", "requests")}
    row |= {f"{name}_asked" if name.startswith("eps") else name: asked[name] for name in _GRID}
    row |= {"order": asked["order"], "delta": asked["delta"], "refused": answer.refused}
    if answer.refused is not None:
        return row
    plan, certificate = answer.plan, answer.certificate
    names = ("step_size", "noise_variance", "learn_steps", "delete_steps")
    row |= {name: getattr(plan, name) for name in names}
    promised = ("eps_dp", "eps_dd", "risk_bound_learned", "risk_bound_request")
    row |= {name: getattr(certificate, name) for name in promised}
    row |= {
        "learn_gradients": plan.learn_gradients,
        "request_gradients": plan.delete_gradients,
        "retraining_ratio": plan.learn_steps / plan.delete_steps,
    }
    for name in _MEASURED:
        most = 1.0 if name.startswith("accuracy") else math.inf
        found = mean_over_seeds(getattr(answer.outcome, name), confidence, least=0.0, most=most)
        mean, low, high = map(float, found)
        row |= {name: mean, f"{name}_low": low, f"{name}_high": high}
    return row


def _values(config: Config, rows: list[dict]) -> dict[str, Any]:
    above = [
        row
        for row in rows
        if row["refused"] is None
        and any(row[f"{name}_low"] > row[bound] for name, bound in _BOUNDS.items())
    ]
    return {
        "data": config.data,
        "seeds": config.seeds,
        "seed": config.seed,
        "confidence": config.confidence,
        "verdict": "refuted" if above else "consistent",
        "rows": rows,
    }


def _save(folder: Path, values: dict[str, Any]) -> list[str]:
    # A refused setting has fewer columns: use those of a row that ran.
    columns = list(max(values["rows"], key=len))
    table = io.StringIO()
    writer = csv.DictWriter(table, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(values["rows"])
    texts = {"sweep.csv": table.getvalue(), "sweep.json": f"{json_text(values)}\n"}
    return files.place_texts(folder, texts)


# --- the table ----------------------------------------------------------------------------------


def _print(config: Config, rows: list[dict]) -> None:
    columns = _varied(config) | {
        "σ²": "noise_variance",
        "K_L": "learn_steps",
        "K_U": "delete_steps",
    }
    print_table(
        f"{config.data}: {config.seeds} seeds, {config.requests} deletions",
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
    asked = _varied(config) | {"σ²": "noise_variance"}
    for row in rows:
        if row["refused"] is not None:
            given = {name: row[key] for name, key in asked.items() if row[key] is not None}
            words = ", ".join(f"{name} = {number(value)}" for name, value in given.items())
            print(f"  refused: {words}: {row['refused']}")
    print(_legend(config))


def _varied(config: Config) -> dict[str, str]:
    """Heading and column of every option that spans the grid; σ² has a column in any case."""
    headings = {"l2": "λ", "clip_norm": "clip", "step_size": "η"}
    found = {"n": "n"} if len(config.records) > 1 else {}
    for name in _GRID:
        if len(getattr(config, name)) > 1 and name != "noise_variance":
            column = f"{name}_asked" if name.startswith("eps") else name
            found[headings.get(name, name)] = column
    return found


def _mean(row: dict, name: str) -> str:
    # The interval is cut at 0, and at 1 for an accuracy, so that its halves can differ.
    half = max(row[f"{name}_high"] - row[name], row[name] - row[f"{name}_low"])
    return f"{row[name]:.3g} ± {half:.1g}"


def _legend(config: Config) -> str:
    lines = (
        "risk: mean excess empirical risk of a release on its own database; bound: what the",
        "  certificate allows the mean after the deletions; accuracy: held out",
        f"±: Student's t over seeds; all intervals together have confidence {config.confidence:g}",
        "K_L, K_U: steps to learn (or retrain) and per deletion, n gradients each",
    )
    return "\n".join(lines)
