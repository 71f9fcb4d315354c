"""`dd-jax curate`: a store that serves real deletions for months, with receipts."""

import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import tyro

from dd_jax import files, sealed
from dd_jax.cli import options, reading
from dd_jax.cli.options import MaybeFloat, MaybePath, MaybeText, Switch, Texts
from dd_jax.cli.output import count, number, print_json, say
from dd_jax.cli.reading import AS_IT_IS, ReadingOptions
from dd_jax.cli.run import MaybeLoss
from dd_jax.errors import InputError

MaybeArithmetic = Annotated[Literal["exact", "fast"] | None, tyro.conf.arg(help_behavior_hint="")]
Store: TypeAlias = tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="STORE")]]


@dataclass(frozen=True)
class Init:
    """Read a file, plan, learn, and make a store; the model is published as release 0."""

    store: Store
    """The file to make."""
    data: Path
    """A CSV (with header) or NPZ file; --id and --label name its columns, and ranges must be
    declared."""
    reading: ReadingOptions = AS_IT_IS
    intercept: Switch = False
    """Append a constant 1 to the scaled features."""
    loss: MaybeLoss = None
    """Loss of one record: logistic for two classes and softmax for more, unless given."""
    l2: float = 0.05
    """Constant λ of the regulariser (λ/2)‖θ‖²."""
    eps_dp: float = 1.0
    """Privacy budget of one release, for records that stay."""
    eps_dd: float = 0.1
    """Deletion budget: what may remain of one deleted record."""
    order: MaybeFloat = None
    """Rényi order q of the budgets; 2 by default."""
    delta: MaybeFloat = None
    """The δ of (ε, δ), if the budgets are its ε."""
    edits_per_request: int = 1
    """Rows r that one run deletes; nobody may have more. Deletions wait until a run is full."""
    batches: int = 1
    """Cyclic batches m of consecutive rows, one per step; shuffle a file that is sorted."""
    reference: Literal["replaced", "null"] = "replaced"
    """What --eps-dd is compared with: the record that replaced the deleted one, or an empty row."""
    arithmetic: MaybeArithmetic = None
    """exact counts all rounding, fast runs in floating point; exact where the loss has it."""
    spare: int = 0
    """Empty rows besides, for records that are added later."""
    limit: MaybeFloat = None
    """Stop publishing before all releases together exceed this, for records that stay."""
    seen: Literal["published", "none"] = "published"
    """Which releases before a deletion count as seen; none: you declare that no request depends on
    a release."""
    json: Switch = False
    """Print one JSON object."""


@dataclass(frozen=True)
class Delete:
    """Delete all rows of owners; every owner gets a receipt when it is done."""

    store: Store
    """The store."""
    ids: Texts = ()
    """Whose rows; --ids=-A for an id that begins with a dash."""
    ids_file: MaybePath = None
    """A text file with one id on each line instead."""
    request: MaybeText = None
    """Name of the request: the same name again returns the same receipts and deletes nothing."""
    now: Switch = False
    """Serve it, and all that waits, without waiting for a full run."""
    json: Switch = False
    """Print one JSON object."""


@dataclass(frozen=True)
class Flush:
    """Serve all deletions that wait for a full run; for a timer of yours."""

    store: Store
    """The store."""
    json: Switch = False
    """Print one JSON object."""


@dataclass(frozen=True)
class Add:
    """Write the rows of a file into empty rows."""

    store: Store
    """The store."""
    data: Path
    """A file with the columns of the first one."""
    request: MaybeText = None
    """Name of the request."""
    json: Switch = False
    """Print one JSON object."""


@dataclass(frozen=True)
class Replace:
    """Put new records into the rows of owners, as many as they have."""

    store: Store
    """The store."""
    data: Path
    """A file with the columns of the first one."""
    request: MaybeText = None
    """Name of the request."""
    json: Switch = False
    """Print one JSON object."""


@dataclass(frozen=True)
class Status:
    """Counts, and what all releases reveal of records that stay."""

    store: Store
    """The store."""
    json: Switch = False
    """Print one JSON object."""


@dataclass(frozen=True)
class Predict:
    """Classes of new rows, by the newest published model."""

    store: Store
    """The store."""
    data: Path
    """A CSV or NPZ file."""
    json: Switch = False
    """Print one JSON object."""


@dataclass(frozen=True)
class Export:
    """Write the newest published model to a file, for `dd-jax predict`."""

    store: Store
    """The store."""
    model: tyro.conf.Positional[Annotated[Path, tyro.conf.arg(metavar="MODEL")]]
    """The file to write."""
    json: Switch = False
    """Print one JSON object."""


@dataclass(frozen=True)
class Receipts:
    """The receipts of a store, or of one owner."""

    store: Store
    """The store."""
    id: MaybeText = None
    """Whose; all of them unless given."""
    save: MaybePath = None
    """Folder to write them to, receipt-NUMBER.json and receipt-NUMBER.txt."""
    json: Switch = False
    """Print one JSON object."""


@dataclass(frozen=True)
class Verify:
    """Recompute everything from the store; exit status 1 if something does not hold, 2 if a file
    is damaged."""

    store: Store
    """The store."""
    receipt: MaybePath = None
    """The file of a receipt, to be compared with the store."""
    json: Switch = False
    """Print one JSON object."""


Action: TypeAlias = (
    Annotated[Init, tyro.conf.subcommand("init", prefix_name=False)]
    | Annotated[Delete, tyro.conf.subcommand("delete", prefix_name=False)]
    | Annotated[Flush, tyro.conf.subcommand("flush", prefix_name=False)]
    | Annotated[Add, tyro.conf.subcommand("add", prefix_name=False)]
    | Annotated[Replace, tyro.conf.subcommand("replace", prefix_name=False)]
    | Annotated[Status, tyro.conf.subcommand("status", prefix_name=False)]
    | Annotated[Predict, tyro.conf.subcommand("predict", prefix_name=False)]
    | Annotated[Export, tyro.conf.subcommand("export", prefix_name=False)]
    | Annotated[Receipts, tyro.conf.subcommand("receipts", prefix_name=False)]
    | Annotated[Verify, tyro.conf.subcommand("verify", prefix_name=False)]
)


@dataclass(frozen=True)
class Config:
    """Serve real deletions for months: one file that survives crashes, and receipts.

    Make a store, delete a customer, show the receipt, check everything:
        dd-jax curate init my.store --data my.csv --label y --id customer --ranges ranges.json
        dd-jax curate delete my.store --ids C17 --request ticket-4711
        dd-jax curate receipts my.store --id C17
        dd-jax curate verify my.store

    Every action takes --json, and `dd-jax curate ACTION --help` explains it.
    """

    action: Annotated[Action, tyro.conf.arg(name="")]


def main(config: Config) -> int:
    """Do one thing with a store; returns the exit status."""
    action = config.action
    if isinstance(action, Init):
        return _init(action)
    from dd_jax import curator  # here and below, so that help does not wait for JAX

    with curator.open(action.store) as opened:
        return _ACTIONS[type(action)](opened, action)


def _init(action: Init) -> int:
    if action.reading.id is None:
        raise InputError("a curator needs to know whose a row is; give --id.")
    if action.store.exists():
        raise InputError(f"{action.store} exists; name a new store.")
    options.require_folder("STORE", action.store.parent)
    say(f"dd-jax curate: reading {action.data}, starting JAX …")
    from dd_jax import curator

    data = reading.load(str(action.data), action.reading, seed=0, least=2)
    given: dict[str, Any] = {field.name: getattr(action, field.name) for field in fields(action)}
    for own in ("store", "data", "reading", "json"):
        del given[own]
    names: dict[str, Any] = {"label": action.reading.label or "label", "ids": action.reading.id}
    given["order"] = options.renyi_order(action)
    with curator.create(action.store, data, **given, **names) as made:
        return _status(made, action)


def _status(opened: Any, action: Any) -> int:
    values = opened.status()
    if action.json:
        print_json(values)
        return 0
    unit = (
        f"Rényi, order {values['order']:g}"
        if values["order"] is not None
        else f"ε at δ = {values['delta']:g}"
    )
    print(
        f"{action.store}: {count(values['owners'], 'owner')} with {count(values['rows'], 'row')} "
        f"of n = {values['n']:,}, {values['empty_rows']:,} empty; "
        f"{count(values['waiting'], 'owner')} to be deleted wait"
    )
    print(
        f"{count(values['requests'], 'request')} in {count(values['runs'], 'run')}, "
        f"{count(values['receipts'], 'receipt')}; {count(len(values['published']), 'release')} "
        f"published" + ("" if values["newest_is_published"] else ", the newest is NOT")
    )
    limit = "no limit" if values["limit"] is None else f"limit {values['limit']:g}"
    print(
        f"all releases together, for a row that stays: {number(values['eps_dp_joint'])}, with the "
        f"next {number(values['eps_dp_joint_with_next'])} ({unit}; {limit})"
        + ("" if values["next_is_published"] else "; the next is NOT published")
    )
    print(f"learning again {values['learning_again']}")
    return 0


def _delete(opened: Any, action: Delete) -> int:
    ids = action.ids
    if (action.ids_file is None) == (not ids):
        raise InputError("give either --ids or --ids-file.")
    if action.ids_file is not None:
        try:
            # Not splitlines, which ends lines at characters that can be part of an id.
            lines = files.read(action.ids_file).decode("utf-8-sig").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{action.ids_file} cannot be read ({error}).") from None
        ids = tuple(line.strip() for line in lines if line.strip())
    return _answered(opened.delete(ids, request=action.request, now=action.now), action)


def _answered(answer: Any, action: Any) -> int:
    if action.json:
        values = [receipt.values for receipt in answer.receipts]
        print_json({"request": answer.request, "waiting": answer.waiting, "receipts": values})
        return 0
    _show(answer.receipts)
    waits = f"; {count(answer.waiting, 'owner')} wait until a run is full, or for `flush`"
    print(
        f"request {answer.request}: {count(len(answer.receipts), 'receipt')}"
        + (waits if answer.waiting else "")
    )
    return 0


def _show(receipts: Any) -> None:
    """One line for each receipt."""
    for receipt in receipts:
        values = receipt.values
        bound, run = values["bound"], values["run"]
        what = "" if bound is None else f", bound {number(bound['eps_dd'])}"
        print(
            f"receipt {values['receipt']}: {values['request']['kind']} "
            f"{count(len(values['rows']), 'row')} of {values['owner'][:12]}… by run "
            f"{run['number']}{what}"
        )


def _flush(opened: Any, action: Flush) -> int:
    receipts = opened.flush()
    if action.json:
        print_json({"receipts": [receipt.values for receipt in receipts]})
    else:
        _show(receipts)
        print(f"{count(len(receipts), 'receipt')}")
    return 0


def _rows(opened: Any, path: Path) -> Any:
    from dd_jax.data import models

    return models.read_rows(opened.reader(), path, label=None, ids=None)


def _add(opened: Any, action: Add) -> int:
    return _answered(opened.add(_rows(opened, action.data), request=action.request), action)


def _replace(opened: Any, action: Replace) -> int:
    return _answered(opened.replace(_rows(opened, action.data), request=action.request), action)


def _predict(opened: Any, action: Predict) -> int:
    from dd_jax.cli import predict

    model, found = opened.model(), opened.predict(_rows(opened, action.data))
    if action.json:
        lines = list(predict.lines_of(model, found))
        print_json({"rows": len(lines), "accuracy": found.accuracy, "predictions": lines})
    else:
        sys.stdout.write(predict.as_csv(model, found))
    return 0


def _export(opened: Any, action: Export) -> int:
    options.require_folder("MODEL", action.model.parent)
    if action.model.exists() and action.model.samefile(action.store):
        raise InputError(f"{action.model} is the store itself; name another file.")
    files.place(action.model, opened.model().pack())
    if action.json:
        print_json({"model": str(action.model)})
    else:
        print(f"wrote {action.model}")
    return 0


def _receipts(opened: Any, action: Receipts) -> int:
    receipts = opened.receipts(action.id)
    if action.save is not None:
        options.require_folder("--save", action.save)
        action.save.mkdir(parents=True, exist_ok=True)
        for receipt in receipts:
            name = f"receipt-{receipt.values['receipt']}"
            files.place(action.save / f"{name}.json", receipt.pack())
            files.place(action.save / f"{name}.txt", f"{receipt}\n".encode())
    if action.json:
        print_json({"receipts": [receipt.values for receipt in receipts]})
    else:
        print("\n\n".join(map(str, receipts)) or "no receipt")
    return 0


def _verify(opened: Any, action: Verify) -> int:
    found = opened.verify(None if action.receipt is None else _receipt(action.receipt))
    if action.json:
        print_json(found._asdict())
    else:
        for text in found.problems:
            print(f"WRONG: {text}")
        for text in found.checked:
            print(f"checked: {text}")
        for text in found.unchecked:
            print(f"cannot be checked here: {text}")
    return 1 if found.problems else 0


def _receipt(path: Path) -> bytes:
    """The file of a receipt; what is damaged is no claim that could be wrong."""
    try:
        content = files.read(path)
        sealed.unpack_json(content)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}).") from None
    except ValueError as error:
        raise InputError(f"{path} is no whole receipt ({error}); ask for it anew.") from None
    return content


_ACTIONS: dict[type, Any] = {
    Delete: _delete,
    Flush: _flush,
    Add: _add,
    Replace: _replace,
    Status: _status,
    Predict: _predict,
    Export: _export,
    Receipts: _receipts,
    Verify: _verify,
}
