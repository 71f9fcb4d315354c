"""Records for `dd-jax run` and `dd-jax sweep`: a task of the package, or a user's own file."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import tyro

from dd_jax.cli.options import MaybeFloat, MaybePath, MaybeText, Switch, Texts, flag
from dd_jax.errors import InputError


@dataclass(frozen=True)
class Reading:
    """How a file of one's own is read, and what is known about its values."""

    label: MaybeText = None
    """Column (CSV) or array (NPZ, `label` by default) with the classes."""
    id: MaybeText = None
    """Column (CSV) or array (NPZ) that says whose record a row is; never a feature."""
    features: MaybeText = None
    """NPZ: array with one row of numbers per record, `features` by default."""
    drop: Texts = ()
    """CSV: columns to leave out."""
    delimiter: MaybeText = None
    """CSV: character between columns; found in the header by default."""
    bound: MaybeFloat = None
    """Declared: no row has a larger norm."""
    lower: MaybeFloat = None
    """Declared: no value is smaller."""
    upper: MaybeFloat = None
    """Declared: no value is larger."""
    ranges: MaybePath = None
    """Declared: JSON file with what each column holds, {"age": [0, 120], "city": ["Bern", "*"]};
    "*" is any other text, and --lower and --upper are for numbers that it leaves out."""
    unit_rows: Switch = False
    """Divide every row by its own norm; needs no bound."""
    fill_missing: Switch = False
    """Accept missing values; they count as 0: the middle of a range, and no category."""
    public: Switch = False
    """Declared: the features were made by a map fixed without these records, such as a frozen
    network trained on public data."""
    test_fraction: MaybeFloat = None
    """About this share of rows is held out to measure accuracy; 0.25 by default, 0 for none."""


ReadingOptions = Annotated[Reading, tyro.conf.arg(name="")]
"""The options of a command, without a prefix."""
AS_IT_IS = Reading()
_OPTIONS = {"label": "label", "fill": "fill_missing"}


def load(data: str, reading: Reading, *, seed: int, least: int):
    """The records of a task or file, as `OwnData`.

    Args:
        data: name of a task, or path of a file.
        reading: how to read the file.
        seed: of the file's split.
        least: training records that are needed.
    """
    # Here and below: help does not wait for JAX.
    from dd_jax.data import TASKS, encoding, own_file, tables

    if data in TASKS:
        return _task(data, reading, least)
    path = Path(data)
    if not path.exists() and not path.suffix and path.name == data:
        raise InputError(
            f"no data set and no file {data!r}; choose one of {', '.join(sorted(TASKS))}, "
            f"or give a CSV or NPZ file."
        )
    fraction = reading.test_fraction
    bounds = encoding.Bounds(
        norm=reading.bound,
        lower=reading.lower,
        upper=reading.upper,
        ranges=None if reading.ranges is None else encoding.read_ranges(reading.ranges),
        unit_rows=reading.unit_rows,
        fill=reading.fill_missing,
        public=reading.public,
    )
    try:
        return own_file.load_file(
            path,
            label=reading.label,
            ids=reading.id,
            features=reading.features,
            drop=reading.drop,
            delimiter=reading.delimiter,
            bounds=bounds,
            test_fraction=own_file.DEFAULT_TEST_FRACTION if fraction is None else fraction,
            seed=seed,
            least_training=least,
        )
    except tables.OptionMissing as error:
        said = str(error).removesuffix(".")
        raise InputError(f"{said} ({flag(_OPTIONS[error.what])}).") from None


def load_public(data: str, reading: Reading):
    """Public records, always with the same held-out part: a task, or a file that is read like this.

    Args:
        data: name of a task, or path of a file.
        reading: how the private file is read.
    """
    from dd_jax.data import TASKS

    how = AS_IT_IS if data in TASKS else replace(reading, test_fraction=None)
    return load(data, how, seed=0, least=2)


def _task(name: str, reading: Reading, least: int):
    """A task of `dd_jax.data`, whose rows are those of its training part."""
    from dd_jax import data
    from dd_jax.data.encoding import Encoding
    from dd_jax.data.own_file import OwnData

    of_files = (field.name for field in fields(Reading) if field.name != "test_fraction")
    odd = [option for option in of_files if getattr(reading, option) != getattr(AS_IT_IS, option)]
    if odd:
        raise InputError(f"{flag(odd[0])} is for a file of your own, not {name}; drop it.")
    loaded = data.load(name, test_share=reading.test_fraction)
    n, dim = loaded.train.features.shape
    if n < least:
        raise InputError(
            f"{name} has {n} training rows, but {least} are needed: those to be deleted, "
            f"and 2 that stay; give fewer --requests."
        )
    columns = tuple(f"features[:, {place}]" for place in range(dim))
    return OwnData(
        loaded.train,
        loaded.test,
        rows=np.arange(n),
        columns=columns,
        classes=loaded.classes,
        preprocessing=loaded.preprocessing,
        caveat="",
        encoding=Encoding(columns, prepared=loaded.preprocessing),
    )
