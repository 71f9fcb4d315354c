"""`dd-jax run`: learn on a data set, serve deletions, show what each costs and what it gives."""

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from dd_jax.cli import run_output
from dd_jax.cli.output import print_json
from dd_jax.errors import InputError

Switch = tyro.conf.FlagCreatePairsOff[bool]


@dataclass(frozen=True)
class Config:
    """What would it cost to honour deletions on these data?

    Learns a private linear model, serves a stream of deletions, and shows for every request the
    excess risk, held-out accuracy, gradients spent, the ratio to retraining and what is certified.

    A data set that comes along (see `dd-jax data`), with Rényi budgets:
        dd-jax run --data digits-3-vs-8 --requests 10 --eps-dp 1 --eps-dd 0.1

    Your own file, two classes in column y, values known to lie in [0, 10]:
        dd-jax run --data my.csv --label y --lower 0 --upper 10

    Rows 3, 17 and 25 of it, (ε, δ) budgets, one JSON object:
        dd-jax run --data my.csv --label y --unit-rows --rows 3 17 25 --delta 1e-5 --json

    With no bounds declared the ranges are measured on the records, which no certificate covers;
    the output says so. Rows are numbered from 0, after the header. The noise comes from a secret
    key, which is not stored; with --seed it can be repeated, and guessed: that is a rehearsal.
    """

    data: str
    """A task of `dd-jax data`, or a CSV (with header) or NPZ file of your own."""
    label: str | None = None
    """Column (CSV) or array (NPZ, `label` by default) with the two classes."""
    features: str | None = None
    """NPZ: array with one row of numbers per record, `features` by default."""
    drop: tuple[str, ...] = ()
    """CSV: columns to leave out."""
    delimiter: str | None = None
    """CSV: character between columns; found in the header by default."""
    bound: float | None = None
    """Declared: no row has a norm beyond this."""
    lower: float | None = None
    """Declared: no value is below this."""
    upper: float | None = None
    """Declared: no value is above this."""
    ranges: Path | None = None
    """Declared: JSON file with the range of every column, {"age": [0, 120], …}."""
    unit_rows: Switch = False
    """Divide every row by its own norm; needs no bound."""
    intercept: Switch = False
    """Append a constant 1 to the scaled features."""
    test_fraction: float | None = None
    """About this share of rows is held out to measure accuracy; 0.25 by default, 0 for none."""
    requests: int | None = None
    """Deletion requests to serve; 10 by default."""
    edits_per_request: int = 1
    """r, rows that one request deletes."""
    rows: tuple[int, ...] = ()
    """Rows to delete, in order, none of them held out; the first training rows by default."""
    loss: Literal["logistic", "smoothed_hinge", "huber"] = "logistic"
    """Loss of one record."""
    l2: float = 0.05
    """λ of the regulariser (λ/2)‖θ‖²."""
    eps_dp: float = 1.0
    """Privacy budget of one release, for records that stay."""
    eps_dd: float = 0.1
    """What may remain of one deleted record."""
    order: float | None = None
    """Rényi order q of the budgets; 2 by default."""
    delta: float | None = None
    """δ, if the budgets are the ε of (ε, δ)."""
    adaptivity: int = 0
    """p, releases that whoever asks for a deletion may have seen before."""
    accountant: Literal["optimal", "unrelaxed", "paper"] = "optimal"
    """Formulas of the certificate."""
    seeds: int = 20
    """Independent runs that risk and accuracy are averaged over."""
    seed: int | None = None
    """Rehearse: noise, and a file's split, from this seed. By default a secret key, and split 0."""
    json: Switch = False
    """Print one JSON object."""
    save: Path | None = None
    """Folder to write run.json, run.csv and certificate.json to; made if it is missing."""


# Options that say how to read a file, with their defaults.
_OF_FILES = {
    "label": None,
    "features": None,
    "drop": (),
    "delimiter": None,
    "bound": None,
    "lower": None,
    "upper": None,
    "ranges": None,
    "unit_rows": False,
}
_DEFAULT_REQUESTS = 10


def main(config: Config) -> int:
    """Run, print and save; returns the exit status."""
    start = time.monotonic()
    _check(config)
    requests = _num_requests(config)
    _say(f"dd-jax run: reading {config.data}, starting JAX …")
    from dd_jax import serving as services
    from dd_jax.cli import run_summary as service_table

    data = _load(config, requests)
    service = services.make(
        data,
        _stream(config, data, requests),
        loss=config.loss,
        l2=config.l2,
        intercept=config.intercept,
        adaptivity=min(config.adaptivity, requests),
        eps_dp=config.eps_dp,
        eps_dd=config.eps_dd,
        order=2.0 if config.order is None and config.delta is None else config.order,
        delta=config.delta,
        accountant=config.accountant,
    )
    if data.caveat and config.json:  # else it is printed above the table
        _say(f"WARNING: {data.caveat}.")
    served = services.serve(_key(config.seed), service, seeds=config.seeds, say=_say)
    certificate = services.certificate(service, served.transcript)
    if config.seed is not None:
        certificate = service_table.rehearsed(certificate, config.seed)
    values = service_table.summary(config.data, data, service, served, certificate, config.seed)
    values["seconds"]["total"] = time.monotonic() - start
    if config.save is not None:
        values["files"] = run_output.save(config.save, values, certificate)
    if config.json:
        print_json(values)
    else:
        run_output.show(values, certificate)
    return 0


def _key(seed: int | None):
    """The key of all noise: a secret one, unless a seed is asked for."""
    import jax

    from dd_jax.keys import secret_key

    return secret_key() if seed is None else jax.random.key(seed)


def _say(text: str) -> None:
    """Progress goes to standard error, so that a pipe gets the result alone."""
    print(text, file=sys.stderr, flush=True)


# --- what is asked --------------------------------------------------------------------------------


def _check(config: Config) -> None:
    for name in ("requests", "edits_per_request", "seeds"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise InputError(f"{_flag(name)} {value}; give a whole number ≥ 1.")
    if config.adaptivity < 0:
        raise InputError(f"--adaptivity {config.adaptivity}; give a whole number ≥ 0.")
    for place, row in enumerate(config.rows):
        if row in config.rows[:place]:
            raise InputError(f"--rows {row} is named twice; a record is deleted once.")
    if config.save is not None:
        run_output.check_folder(config.save)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _num_requests(config: Config) -> int:
    each, named = config.edits_per_request, len(config.rows)
    if not named:
        return _DEFAULT_REQUESTS if config.requests is None else config.requests
    asked = named // each if config.requests is None else config.requests
    if asked * each != named:
        raise InputError(
            f"--rows names {named} rows, but {max(asked, 1)} requests of {each} delete "
            f"{max(asked, 1) * each}; name that many, or change --requests or --edits-per-request."
        )
    return asked


def _load(config: Config, requests: int):
    """The records of a task or file, as `OwnData`."""
    from dd_jax.data import TASKS, own_file

    least = requests * config.edits_per_request + 2
    if config.data in TASKS:
        return _task(config, least)
    path = Path(config.data)
    if not path.exists() and not path.suffix and path.name == config.data:
        raise InputError(
            f"no data set and no file {config.data!r}; choose one of {', '.join(sorted(TASKS))}, "
            f"or give a CSV or NPZ file."
        )
    fraction = config.test_fraction
    return own_file.load_file(
        path,
        label=config.label,
        features=config.features,
        drop=config.drop,
        delimiter=config.delimiter,
        bounds=_bounds(config),
        test_fraction=own_file.DEFAULT_TEST_FRACTION if fraction is None else fraction,
        seed=config.seed or 0,
        least_training=least,
    )


def _bounds(config: Config):
    from dd_jax.data import scaling

    ranges = None if config.ranges is None else scaling.read_ranges(config.ranges)
    return scaling.Bounds(config.bound, config.lower, config.upper, ranges, config.unit_rows)


def _task(config: Config, least: int):
    """A task of `dd_jax.data`, whose rows are those of its training part."""
    import numpy as np

    from dd_jax import data
    from dd_jax.data import own_file

    odd = [name for name, default in _OF_FILES.items() if getattr(config, name) != default]
    if odd:
        raise InputError(f"{_flag(odd[0])} is for a file of your own, not {config.data}; drop it.")
    loaded = data.load(config.data, test_share=config.test_fraction)
    n = len(loaded.train.label)
    if n < least:
        raise InputError(
            f"{config.data} has {n} training rows, but {least} are needed: those to be deleted, "
            f"and 2 that stay; give fewer --requests."
        )
    words, columns = loaded.preprocessing, tuple(map(str, range(loaded.train.features.shape[1])))
    return own_file.OwnData(
        loaded.train, loaded.test, np.arange(n), columns, ("-1", "1"), words, ""
    )


def _stream(config: Config, data, requests: int):
    """Places among the training records of the rows to delete, requests × r."""
    import numpy as np

    shape = (requests, config.edits_per_request)
    if config.rows:
        return data.training_row(config.rows).reshape(shape)
    return np.arange(requests * config.edits_per_request).reshape(shape)
