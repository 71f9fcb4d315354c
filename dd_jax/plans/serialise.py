"""Plans and certificates as JSON: infinities as the text "inf", everything else as it is."""

import json
import math
from dataclasses import fields, is_dataclass
from typing import Any

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


def parse(text: str, kind: type) -> dict[str, Any]:
    """The fields of one `kind`, refused unless they are exactly its own."""
    try:
        found = json.loads(text) if isinstance(text, str) else text
    except json.JSONDecodeError as error:
        raise InputError(f"this is not JSON ({error}); give what to_json wrote.") from None
    wanted = {f.name for f in fields(kind)}
    if not isinstance(found, dict) or set(found) != wanted:
        odd = sorted(wanted.symmetric_difference(found if isinstance(found, dict) else ()))
        raise InputError(
            f"this is not a {kind.__name__}: fields {', '.join(odd)} are missing or unknown; "
            f"give what to_json wrote."
        )
    return {name: from_plain(value) for name, value in found.items()}


def from_plain(value: Any) -> Any:
    """Infinity back from its text; other values as they are."""
    return math.inf if isinstance(value, str) and value == "inf" else value
