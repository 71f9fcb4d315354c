"""What commands print: one JSON object, or a readable table."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def print_json(values: Mapping[str, Any]) -> None:
    """One JSON object on standard output."""
    print(json_text(values))


def json_text(values: Mapping[str, Any]) -> str:
    """One JSON object; NaN and infinity become null, as JSON has neither."""
    return json.dumps(_plain(values), ensure_ascii=False, indent=2)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table for people; plain text when the output is not a terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(number(cell) for cell in row))
    Console(width=None if _is_terminal() else 120).print(table)


def number(value: Any) -> str:
    """Four significant digits for floats, whole numbers in full, text as it is, - for None."""
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}"


def _is_terminal() -> bool:
    import sys

    return sys.stdout.isatty()
