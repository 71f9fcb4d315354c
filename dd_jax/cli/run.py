"""`dd-jax run`: learn on a data set, serve deletions, show what each costs and what it gives."""

import csv
import functools
import io
import math
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro

from dd_jax import files
from dd_jax.cli import options, reading
from dd_jax.cli.options import Ints, MaybeFloat, MaybeInt, MaybePath, MaybeText, Switch, Texts
from dd_jax.cli.output import count, json_text, number, print_json, print_table, say
from dd_jax.cli.reading import AS_IT_IS, ReadingOptions
from dd_jax.cli.symbols import WIDTH
from dd_jax.errors import InputError
from dd_jax.plans import Certificate

MaybeLoss = Annotated[
    Literal["logistic", "smoothed_hinge", "huber", "tanh_margin", "softmax", "one_vs_rest"] | None,
    tyro.conf.arg(help_behavior_hint=""),
]


MaybeAuto = Annotated[Literal["auto"] | float, tyro.conf.arg(metavar="FLOAT|auto")]


@dataclass(frozen=True)
class Config:
    """What would deletions cost on these data?

    Learns a private linear model, serves a stream of deletions, and shows for every request the
    excess risk, held-out accuracy, gradients spent, the ratio to retraining and what is certified.

    A data set of the package (see `dd-jax data`), with Rényi budgets:
        dd-jax run --data digits-3-vs-8 --requests 10 --eps-dp 1 --eps-dd 0.1

    Your own file, with the column of the classes, and values that are known to lie in [0, 10]:
        dd-jax run --data my.csv --label y --lower 0 --upper 10

    With text columns, missing values and names of customers; delete two customers:
        dd-jax run --data my.csv --label y --id customer --fill-missing --delete-ids C17 C25

    Rows 3, 17 and 25 of it, (ε, δ) budgets, one JSON object:
        dd-jax run --data my.csv --label y --unit-rows --rows 3 17 25 --delta 1e-5 --json

    Ranges and categories that are not declared are measured on the records, which no certificate
    covers; the output says so. Rows are numbered from 0, after the header. The noise comes from a
    secret key, which is not stored. A run with --seed is a rehearsal: anybody can repeat its noise.
    """

    data: str
    """A task of `dd-jax data`, or a CSV (with header) or NPZ file of your own."""
    reading: ReadingOptions = AS_IT_IS
    intercept: Switch = False
    """Append a constant 1 to the scaled features."""
    requests: MaybeInt = None
    """Deletion requests to serve; 10 by default."""
    edits_per_request: int = 1
    """Rows r that one request deletes."""
    rows: Ints = ()
    """Rows to delete, in order, none of them held out; the first training rows by default."""
    delete_ids: Texts = ()
    """Delete all rows of these ids instead, one request for each id; needs --id."""
    loss: MaybeLoss = None
    """Loss of one record: logistic for two classes and softmax for more, unless given. one_vs_rest
    trains a model for each class and certifies all of them together. tanh_margin is not convex, and
    its plan is of the Gibbs law: for few features, with --noise-variance 2 or more."""
    l2: MaybeAuto = 0.05
    """Constant λ of the regulariser (λ/2)‖θ‖²; auto chooses it from sizes, constants and budgets,
    never from records, and says what it assumed."""
    tune: MaybeText = None
    """With --l2 auto: PUBLIC data, a task or a file that is read like --data. Values of λ are tried
    on them, with the plan for the private sizes; the largest that is as good as any is taken."""
    eps_dp: float = 1.0
    """Privacy budget of one release, for records that stay."""
    eps_dd: float = 0.1
    """Deletion budget: what may remain of one deleted record."""
    order: MaybeFloat = None
    """Rényi order q of the budgets; 2 by default."""
    delta: MaybeFloat = None
    """The δ of (ε, δ), if the budgets are its ε."""
    adaptivity: int = 0
    """Releases p that the requester may have seen before."""
    accountant: Literal["optimal", "unrelaxed", "paper"] = "optimal"
    """Formulas of the certificate."""
    batches: Literal["auto"] | int = 1
    """Cyclic batches m of consecutive rows, one per step; shuffle a file that is sorted. auto takes
    the number that costs least for learning and --requests."""
    reference: Literal["replaced", "null"] = "replaced"
    """What --eps-dd is compared with: the record that replaced the deleted one, or an empty row."""
    arithmetic: Literal["fast", "exact"] = "fast"
    """Floating point with a certificate about real numbers, or a lattice where rounding counts."""
    noise_variance: MaybeFloat = None
    """Noise variance σ²; by default the smallest that the budgets allow."""
    learn_steps: MaybeInt = None
    """Steps of learning; by default the plan's."""
    seeds: int = 20
    """Independent runs that risk and accuracy are averaged over."""
    seed: MaybeInt = None
    """Rehearse: take the noise and a file's split from this seed; by default the key is secret."""
    json: Switch = False
    """Print one JSON object."""
    save: MaybePath = None
    """Folder to write to: model.npz, the last release of the first seed, for `dd-jax predict`;
    run.json, run.csv and certificate.json. Made if it is missing."""


_DEFAULT_REQUESTS = 10
# Of a longer stream the table shows a part; the JSON object has all lines.
_MOST_SHOWN = 20


def main(config: Config) -> int:
    """Run, print and save; returns the exit status."""
    start = time.monotonic()
    _check(config)
    requests = _num_requests(config)
    say(f"dd-jax run: reading {config.data}, starting JAX …")
    import jax  # here and below, so that help and refused options do not wait for JAX

    from dd_jax.cli import serving, tuning
    from dd_jax.keys import secret_key

    least = requests * config.edits_per_request + 2
    data = reading.load(config.data, config.reading, seed=config.seed or 0, least=least)
    tune = None
    if config.tune is not None:
        public = reading.load_public(config.tune, config.reading)
        tune = functools.partial(tuning.choose, public, config.tune, say=say)
    service = serving.make(
        data,
        _stream(config, data, requests),
        loss=config.loss,
        l2=config.l2,
        intercept=config.intercept,
        adaptivity=min(config.adaptivity, requests),
        tune=tune,
        eps_dp=config.eps_dp,
        eps_dd=config.eps_dd,
        order=options.renyi_order(config),
        delta=config.delta,
        accountant=config.accountant,
        batches=config.batches,
        reference=config.reference,
        arithmetic=config.arithmetic,
        learn_steps=config.learn_steps,
        noise_variance=config.noise_variance,
    )
    if data.caveat and config.json:  # else it is printed above the table
        say(f"WARNING: {data.caveat}.")
    generator = "chacha20" if config.arithmetic == "exact" else "default"
    key = secret_key(generator) if config.seed is None else jax.random.key(config.seed)
    served = serving.serve(key, service, seeds=config.seeds, say=say)
    certificate = serving.certificate(service, served.transcript)
    if config.seed is not None:
        certificate = serving.rehearsed(certificate, config.seed)
    values = serving.summary(config.data, data, service, served, certificate, config.seed)
    values["seconds"]["total"] = time.monotonic() - start
    if config.save is not None:
        released = serving.released(data, service, served, certificate, config.reading)
        values["files"] = _save(config.save, values, certificate, released.pack())
    if config.json:
        print_json(values)
    else:
        show(values, certificate, by_id=bool(config.delete_ids))
    return 0


# --- what is asked --------------------------------------------------------------------------------


def _check(config: Config) -> None:
    options.require_at_least(config, requests=1, edits_per_request=1, seeds=1, adaptivity=0)
    for place, row in enumerate(config.rows):
        if row in config.rows[:place]:
            raise InputError(f"--rows names {row} twice; name every row once.")
    if config.delete_ids:
        _check_ids(config)
    if config.tune is not None:
        _check_tune(config.tune, config)
    if config.save is not None:
        options.require_folder("--save", config.save)


def _check_tune(public: str, config: Config) -> None:
    if config.l2 != "auto":
        raise InputError("--tune chooses λ, which --l2 gives; drop --tune, or give --l2 auto.")
    if Path(public).resolve() == Path(config.data).resolve():
        raise InputError(f"--tune {public}: these are the private rows; name public data.")


def _check_ids(config: Config) -> None:
    if config.reading.id is None:
        raise InputError("--delete-ids needs the column that holds the ids; give --id.")
    if config.rows or config.requests is not None or config.edits_per_request != 1:
        raise InputError(
            "--delete-ids deletes the rows of one id with each request; drop --rows, --requests "
            "and --edits-per-request."
        )
    if len(set(config.delete_ids)) < len(config.delete_ids):
        raise InputError("--delete-ids names an id twice; name every id once.")


def _num_requests(config: Config) -> int:
    each, named = config.edits_per_request, len(config.rows)
    if config.delete_ids:
        return len(config.delete_ids)
    if not named:
        return _DEFAULT_REQUESTS if config.requests is None else config.requests
    asked = named // each if config.requests is None else config.requests
    if asked * each != named:
        raise InputError(
            f"--rows names {named} rows, but {max(asked, 1)} requests of {each} delete "
            f"{max(asked, 1) * each}; name that many, or change --requests or --edits-per-request."
        )
    return asked


def _stream(config: Config, data, requests: int):
    """Training records to delete by their numbers, requests × r."""
    shape = (requests, config.edits_per_request)
    if config.delete_ids:
        return _stream_of_ids(config, data)
    if config.rows:
        return data.training_row(config.rows).reshape(shape)
    return np.arange(requests * config.edits_per_request).reshape(shape)


def _stream_of_ids(config: Config, data) -> np.ndarray:
    """The training records of each id that is to be deleted; as many for each of them."""
    found = {name: data.training_rows_of(name) for name in config.delete_ids}
    sizes = {name: len(records) for name, records in found.items()}
    fewest, most = (pick(sizes, key=sizes.__getitem__) for pick in (min, max))
    if sizes[fewest] < sizes[most]:
        raise InputError(
            f"--delete-ids: {fewest} has {count(sizes[fewest], 'row')} and {most} has "
            f"{sizes[most]}, but the requests of one run are of one size; name ids with as many "
            f"rows each."
        )
    return np.stack(list(found.values()))


# --- what is shown and written -------------------------------------------------------------------


def show(values: dict[str, Any], certificate: Certificate, *, by_id: bool = False) -> None:
    """Print everything for people; what was deleted as ids, or as rows."""
    data, requests = values["data"], values["requests"]
    names = data["classes"]
    for text in values["warnings"]:
        print(textwrap.fill(f"WARNING: {text}.", WIDTH, subsequent_indent="  "))
    what = (
        f"{data['name']}: {data['training_rows']:,} training rows, {data['held_out_rows']:,} held "
        f"out, {data['features']} features; {_classes(names)}"
    )
    for text in (what, f"features {data['preprocessing']}", *values["assumed"]):
        print(textwrap.fill(text, WIDTH, subsequent_indent="  "))
    if values["tried"]:
        tried = [(f"{one['l2']:.3g}", f"{one['accuracy']:.3f}") for one in values["tried"]]
        print_table("Tried on public data", ("λ", "accuracy"), tried)
    shown = _shown(requests)
    some = "" if len(shown) == len(requests) else f" ({len(shown)} of {len(requests)} shown)"
    cells = [_cells(line, "ids" if by_id else "rows") for line in shown]
    print_table(
        f"Every release, {count(values['seeds'], 'seed')}{some}",
        tuple(cells[0]),
        [tuple(row.values()) for row in cells],
    )
    for text in _legend(values, certificate):
        print(textwrap.fill(text, WIDTH, subsequent_indent="  "))
    print()
    print(certificate)
    for file in values.get("files", ()):
        print(f"wrote {file}")


def _classes(names: dict[str, str]) -> str:
    if len(names) == 2:
        return f"class {names['-1']!r} is -1, {names['1']!r} is +1"
    listed = ", ".join(map(repr, list(names.values())[:6])) + ", …" * (len(names) > 6)
    return f"{len(names)} classes: {listed}"


def _shown(requests: list[dict]) -> list[dict]:
    """All lines, or some of them at even distances, with the first and the last."""
    if len(requests) <= _MOST_SHOWN + 1:
        return requests
    last = len(requests) - 1
    return [requests[round(last * i / _MOST_SHOWN)] for i in range(_MOST_SHOWN + 1)]


def _cells(line: dict[str, Any], deleted: str) -> dict[str, Any]:
    """A line of the table by its headings."""
    gone = list(dict.fromkeys(line[deleted]))
    rows = ", ".join(map(str, gone[:4])) + (", …" if len(gone) > 4 else "")
    risk, high = line["excess_risk"], line["excess_risk_high"]
    return {
        "request": str(line["request"]) if line["request"] else "learn",
        "deleted": rows or None,
        "excess risk": risk if high is None else _with_interval(risk, high - risk),
        "risk bound": _short(line["risk_bound"]),
        "accuracy": None if line["accuracy"] is None else f"{line['accuracy']:.3f}",
        "saving": None if line["ratio"] is None else f"{line['ratio']:.3g}×",
        "ε_dd so far": _short(line["eps_dd_so_far"]),
        "advantage ≤": line["advantage_bound"],
    }


def _short(value: float | None) -> str | None:
    """Three digits, so that all columns fit beside each other."""
    return None if value is None else f"{value:.3g}"


def _with_interval(mean: float, half: float) -> str:
    """A mean with the digits that its interval leaves it, two to four."""
    digits = 3
    if mean and half and math.isfinite(half):
        exponents = (math.floor(math.log10(abs(x))) for x in (mean, half))
        digits = min(max(next(exponents) - next(exponents) + 1, 2), 4)
    return f"{mean:.{digits}g} ± {half:.1g}"


def _legend(values: dict[str, Any], certificate: Certificate) -> list[str]:
    """What a deletion costs, what the columns mean, and what must be kept."""
    plan, seconds, kept = values["plan"], values["seconds"], values["kept"]
    last = values["requests"][-1]
    ratio, relearn, same = (last[f"{way}ratio"] for way in ("", "relearn_", "same_risk_"))
    compared = (
        f"{ratio:.3g}× less than retraining"
        if ratio > 1
        else f"NOT less than retraining, which costs {ratio:.3g} times as much"
    )
    least = min(line["excess_risk"] for line in values["requests"])
    rounding = (  # said only where the error of the minimisers is visible in the excess risks
        f"; rounding may make them too small by up to {values['risk_error']:.2g}"
        if values["risk_error"] is not None and values["risk_error"] > 0.01 * least
        else ""
    )
    compared_with = (
        "" if values["risk_error"] is not None else ", over the point that descent from 0 ends at"
    )
    accuracy = (
        "no row is held out"
        if last["accuracy"] is None
        else f"mean over seeds on held-out rows; without noise {last['exact_accuracy']:.3f} "
        f"after the last request; the same answer for all of them "
        f"{values['data']['majority_accuracy']:.3f}"
    )
    ways = f"learning again as planned ({relearn:.3g}×)"
    if same is not None:
        ways = f"the smaller of {ways} and until the request's risk bound is met ({same:.3g}×)"
    unit = (
        f"ε at δ = {plan['delta']:g}"
        if plan["order"] is None
        else f"Rényi, order {plan['order']:g}"
    )
    return [
        f"A request costs {values['request_gradients']:,} gradients of one record "
        f"({count(plan['delete_steps'], 'step')}), {compared}; learning took "
        f"{values['learn_gradients']:,} ({count(plan['learn_steps'], 'step')}).",
        f"One model on this machine: a request {seconds['request']:.3g} s, learning "
        f"{seconds['learn']:.3g} s, compiling {seconds['compile']:.3g} s; this whole run "
        f"{seconds['total']:.3g} s.",
        f"excess risk{compared_with}: mean over seeds ± t-interval, all together with probability "
        f"about {values['confidence']:g}; the model 0 has {number(values['risk_of_zero'])}"
        f"{rounding}",
        f"accuracy: {accuracy}",
        f"saving: gradients of retraining over those of the request; {ways}",
        f"ε_dd so far ({unit}): holds for each record deleted up to this request, against "
        f"requesters that saw at most {count(certificate.adaptivity, 'release')}; the certificate "
        f"below begins with {number(certificate.eps_dd_adaptive)}, which holds for every later "
        f"request as well",
        f"kept between requests: the unrounded model, {count(kept['model'], 'number')}, which is "
        f"never published (releases are rounded to multiples of {kept['grid']:.3g}), and the "
        f"edited database, {count(kept['rows'], 'row')}; both are secret",
        "Risks and accuracies are measured on the records; no certificate covers this table.",
    ]


def _save(
    folder: Path, values: dict[str, Any], certificate: Certificate, model: bytes
) -> list[str]:
    """Write the model, run.json, run.csv and certificate.json in one step; returns their paths."""
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, [*values["requests"][0], "rehearsal", "seed"])
    writer.writeheader()
    about = {key: values[key] for key in ("rehearsal", "seed")}
    for line in values["requests"]:
        texts = {name: " ".join(map(str, line[name])) for name in ("rows", "ids")}
        writer.writerow(line | texts | about)
    texts = {
        "run.json": json_text(values),
        "run.csv": table.getvalue(),
        "certificate.json": certificate.to_json(),
    }
    contents = {"model.npz": model} | {name: text.encode() for name, text in texts.items()}
    return files.place_together(folder, "run", contents)
