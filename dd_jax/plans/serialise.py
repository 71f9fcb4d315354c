"""Plans and certificates as JSON: infinities as the text "inf", everything else as it is.

What is read is a claim of whoever wrote the file: `read` checks the type of every field, and the
constructors check their values; `Plan.from_json` and `Certificate.from_json` say what is believed.
"""

import json
import math
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, Literal, get_args, get_origin, get_type_hints

from dd_jax.errors import InputError


def to_json(value: Any) -> str:
    """One JSON object for a dataclass, its fields in order."""
    return json.dumps(to_plain(value), ensure_ascii=False, indent=2, allow_nan=False)


def to_plain(value: Any) -> Any:
    """Dataclasses as dictionaries, tuples as lists, infinity as text."""
    if is_dataclass(value):
        return {f.name: to_plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, list | tuple):
        return [to_plain(item) for item in value]
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    return value


def read(kind: type, text: str) -> Any:
    """The dataclass that `to_json` wrote, refused unless every field has the type it should."""
    if not isinstance(text, str):
        raise InputError(
            f"{type(text).__name__} is not the text of a {kind.__name__}; give what to_json wrote."
        )
    try:
        found = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"this is not JSON ({error}); give what to_json wrote.") from None
    return _value(kind, found, kind.__name__)


def _no_constant(name: str):
    raise ValueError(f"{name} is no number of JSON")


def _value(kind: Any, found: Any, where: str) -> Any:
    """`found` as a value of this annotation."""
    if is_dataclass(kind):
        return _fields(kind, found, where)
    if get_origin(kind) is UnionType:
        wanted, *_ = (part for part in get_args(kind) if part is not type(None))
        return None if found is None else _value(wanted, found, where)
    if get_origin(kind) is tuple:
        if not isinstance(found, list):
            raise _odd(where, found, "a list")
        return tuple(_value(get_args(kind)[0], item, where) for item in found)
    if get_origin(kind) is Literal:
        if not isinstance(found, str) or found not in get_args(kind):
            raise _odd(where, found, f"one of {', '.join(get_args(kind))}")
        return found
    if kind is float:
        return _number(found, where)
    if not isinstance(found, kind) or (kind is int and isinstance(found, bool)):
        raise _odd(where, found, {int: "a whole number", bool: "true or false"}.get(kind, "a text"))
    return found


def _fields(kind: Any, found: Any, where: str) -> Any:
    wanted = {f.name for f in fields(kind)}
    if not isinstance(found, dict) or set(found) != wanted:
        odd = sorted(wanted.symmetric_difference(found if isinstance(found, dict) else ()))
        raise InputError(
            f"this is not a {kind.__name__}: fields {', '.join(odd)} are missing or unknown; "
            f"give what to_json wrote."
        )
    types = get_type_hints(kind)
    return kind(
        **{name: _value(types[name], value, f"{where}.{name}") for name, value in found.items()}
    )


def _number(found: Any, where: str) -> float:
    if found == "inf":
        return math.inf
    if isinstance(found, int | float) and not isinstance(found, bool):
        try:
            number = float(found)
        except OverflowError:
            number = math.inf
        if math.isfinite(number):
            return number
    raise _odd(where, found, "a finite number")


def _odd(where: str, found: Any, wanted: str) -> InputError:
    shown = json.dumps(found, ensure_ascii=False)
    shown = shown if len(shown) <= 60 else shown[:60] + "…"
    return InputError(f"{where} = {shown} is not {wanted}; give what to_json wrote.")
