"""What `dd-jax run` shows and writes."""

import csv
import io
import tempfile
import textwrap
from pathlib import Path
from typing import Any

from dd_jax.cli.output import json_text, number, print_table
from dd_jax.errors import InputError
from dd_jax.plans import Certificate

# Longer streams are shown in part; the JSON object has all of them.
_MOST_SHOWN = 20
# Of warnings, so that they fit every terminal.
_WIDTH = 80


def show(values: dict[str, Any], certificate: Certificate) -> None:
    """Print everything for people."""
    data, requests = values["data"], values["requests"]
    names = data["classes"]
    for text in values["warnings"]:
        print(textwrap.fill(f"WARNING: {text}.", _WIDTH, subsequent_indent="  "))
    print(
        f"{data['name']}: {data['training_rows']:,} training rows, {data['held_out_rows']:,} held "
        f"out, {data['features']} features; class {names['-1']!r} is -1, {names['1']!r} is +1"
    )
    print(f"features {data['preprocessing']}")
    shown = _shown(requests)
    some = "" if len(shown) == len(requests) else f" ({len(shown)} of {len(requests)} shown)"
    print_table(
        f"Every release, {_count(values['seeds'], 'seed')}{some}",
        (
            "request",
            "rows deleted",
            "excess risk",
            "risk bound",
            "accuracy",
            "gradients",
            "ratio",
            "ε_dd so far",
            "advantage ≤",
        ),
        [_row(line) for line in shown],
    )
    print("\n".join(_legend(values, certificate)))
    print()
    print(certificate)
    for file in values.get("files", ()):
        print(f"wrote {file}")


def _shown(requests: list[dict]) -> list[dict]:
    """All lines, or so many of them spread evenly, the first and the last among them."""
    if len(requests) <= _MOST_SHOWN + 1:
        return requests
    last = len(requests) - 1
    return [requests[round(last * i / _MOST_SHOWN)] for i in range(_MOST_SHOWN + 1)]


def _row(line: dict[str, Any]) -> tuple:
    rows = ", ".join(map(str, line["rows"][:4])) + (", …" if len(line["rows"]) > 4 else "")
    return (
        str(line["request"]) if line["request"] else "learn",
        rows or None,
        _with_interval(line, "excess_risk"),
        line["risk_bound"],
        None if line["accuracy"] is None else f"{line['accuracy']:.3f}",
        line["gradients"],
        None if line["ratio"] is None else f"{line['ratio']:.3g}×",
        line["eps_dd_so_far"],
        line["advantage_bound"],
    )


def _with_interval(line: dict[str, Any], name: str) -> str:
    mean, high = line[name], line[f"{name}_high"]
    return number(mean) if high is None else f"{mean:.4g} ± {high - mean:.2g}"


def _legend(values: dict[str, Any], certificate: Certificate) -> list[str]:
    return [
        *_answer(values),
        f"excess risk: mean over seeds ± t-interval, all together with probability about "
        f"{values['confidence']:g}; the model 0 has {number(values['risk_of_zero'])}"
        + _rounding(values),
        *_accuracy(values),
        *_ratio(values),
        f"ε_dd so far ({_unit(values)}): holds for each record deleted up to this request, against "
        f"requesters that saw at most {_count(certificate.adaptivity, 'release')}; the certificate "
        f"below begins with {number(certificate.eps_dd_adaptive)}, which holds for every later "
        f"request as well",
        *_kept(values["kept"]),
        "Risks and accuracies are measured on the records; no certificate covers this table.",
    ]


def _kept(kept: dict[str, Any]) -> list[str]:
    return [
        f"kept between requests: the unrounded model, {_count(kept['model'], 'number')}, which is "
        f"never published (releases are rounded to multiples of {kept['grid']:.3g}), and the "
        f"edited database, {_count(kept['rows'], 'row')}; both are secret"
    ]


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _rounding(values: dict[str, Any]) -> str:
    """A word where the minimisers' own error shows in the excess risks."""
    least = min(line["excess_risk"] for line in values["requests"])
    if values["risk_error"] <= 0.01 * least:
        return ""
    return f"; rounding may make them too small by up to {values['risk_error']:.2g}"


def _answer(values: dict[str, Any]) -> list[str]:
    """What a deletion costs, in gradients and in this machine's seconds."""
    plan, seconds, ratio = values["plan"], values["seconds"], values["requests"][-1]["ratio"]
    compared = (
        f"{ratio:.3g}× less than retraining"
        if ratio > 1
        else f"NOT less than retraining, which takes {ratio:.3g} of that"
    )
    return [
        f"A request costs {values['request_gradients']:,} gradients of one record "
        f"({_count(plan['delete_steps'], 'step')}), {compared}; learning took "
        f"{values['learn_gradients']:,} ({_count(plan['learn_steps'], 'step')}).",
        f"One model on this machine: a request {seconds['request']:.3g} s, learning "
        f"{seconds['learn']:.3g} s, compiling {seconds['compile']:.3g} s; this whole run "
        f"{seconds['total']:.3g} s.",
    ]


def _accuracy(values: dict[str, Any]) -> list[str]:
    last = values["requests"][-1]
    if last["accuracy"] is None:
        return ["accuracy: no row is held out"]
    return [
        f"accuracy: mean over seeds on held-out rows; without noise {last['exact_accuracy']:.3f} "
        f"after the last request; the same answer for all of them "
        f"{values['data']['majority_accuracy']:.3f}"
    ]


def _ratio(values: dict[str, Any]) -> list[str]:
    last = values["requests"][-1]
    same = last["same_risk_ratio"]
    ways = f"learning again as planned ({last['relearn_ratio']:.3g}×)"
    if same is not None:
        ways = f"the smaller of {ways} and until the request's risk bound is met ({same:.3g}×)"
    return [f"ratio: gradients of retraining over those of the request; {ways}"]


def _unit(values: dict[str, Any]) -> str:
    plan = values["plan"]
    if plan["order"] is None:
        return f"ε at δ = {plan['delta']:g}"
    return f"Rényi, order {plan['order']:g}"


def check_folder(folder: Path) -> None:
    """Make the folder and see that it takes files, before a long run would be lost there.

    Raises:
        InputError: it is a file. OSError: what the system says.
    """
    if folder.exists() and not folder.is_dir():
        raise InputError(f"--save {folder} is a file; name a folder.")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def save(folder: Path, values: dict[str, Any], certificate: Certificate) -> list[str]:
    """Write run.json, run.csv and certificate.json, whole files only; returns their paths."""
    table = io.StringIO(newline="")
    writer = csv.DictWriter(table, [*values["requests"][0], "rehearsal", "seed"])
    writer.writeheader()
    for line in values["requests"]:
        rows = " ".join(map(str, line["rows"]))
        writer.writerow(
            line | {"rows": rows, **{key: values[key] for key in ("rehearsal", "seed")}}
        )
    contents = {
        "run.json": json_text(values),
        "run.csv": table.getvalue(),
        "certificate.json": certificate.to_json(),
    }
    for name, text in contents.items():
        partial = folder / f"{name}.part"
        partial.write_text(text, encoding="utf-8", newline="")
        partial.replace(folder / name)
    return [str(folder / name) for name in contents]
