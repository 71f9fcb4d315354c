"""Run the notebooks of docs/notebooks and write each with its output as a page (`make notebooks`).

A cell begins with `# %%`; `# %% [markdown]` begins text.
"""

import contextlib
import io
import re
import sys
from pathlib import Path

FOLDER = Path(__file__).parent / "notebooks"


def cells(source: str) -> list[tuple[str, str]]:
    """(kind, content) of every cell: "markdown" or "code"."""
    found = []
    for part in re.split(r"^# %%", source, flags=re.MULTILINE)[1:]:
        heading, _, content = part.partition("\n")
        if "[markdown]" in heading:
            content = re.sub(r"^# ?", "", content, flags=re.MULTILINE)
            found.append(("markdown", content.strip()))
        else:
            found.append(("code", content.strip()))
    return found


def page(source: str, outputs: list[str]) -> str:
    """The notebook as Markdown; one output for every cell of code."""
    left, parts = iter(outputs), []
    for kind, content in cells(source):
        parts.append(content if kind == "markdown" else f"```py\n{content}\n```")
        if kind == "code" and (printed := next(left).rstrip()):
            parts.append(f"```text\n{printed}\n```")
    return "\n\n".join(parts) + "\n"


def run(source: str) -> list[str]:
    """What every cell of code prints."""
    namespace: dict = {"__name__": "__main__"}
    outputs = []
    for kind, content in cells(source):
        if kind == "code":
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(content, "notebook", "exec"), namespace)
            outputs.append(printed.getvalue())
    return outputs


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.py")):
        print(f"running {path.name}", file=sys.stderr)
        text = path.read_text(encoding="utf-8")
        path.with_suffix(".md").write_text(page(text, run(text)), encoding="utf-8")
