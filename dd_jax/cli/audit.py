"""`dd-jax audit`: what samples say about certificates: audited ≤ exact ≤ certified."""

import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from dd_jax import checks
from dd_jax.cli.devices import ONE_DEVICE, DeviceOptions
from dd_jax.cli.options import MaybeFloat, MaybeInt, Switch, Texts, require_folder
from dd_jax.cli.output import number, print_json, print_table, say
from dd_jax.cli.symbols import WIDTH
from dd_jax.errors import InputError


@dataclass(frozen=True)
class Config:
    """Audit certificates by running whole interactions in two worlds, with a record and without.

    For each claim the table shows a lower bound that samples prove (audited), the true value if it
    is known (exact), what the optimal and the paper's certificate promise, and the smallest
    violation that would have been caught. An audit that could not have noticed a threefold
    violation says so first, with the number of seeds that it needs. Chunks of seeds are kept under
    --results, so that a killed run continues where it stopped. Exit status 1: a claim of this
    library was refuted, or a control failed.
    """

    setting: tyro.conf.Positional[
        Annotated[str | None, tyro.conf.arg(metavar="SETTING", help_behavior_hint="")]
    ] = None
    """linear (exact laws), logistic (real digits) or nonconvex (against the Gibbs law); linear by
    default. notions: which systems meet which definition of deletion, the older ones and the
    paper's."""
    claim: Texts = ()
    """Claims to judge, all of the setting's by default."""
    list: Switch = False
    """List the settings and their claims."""
    controls: Switch = False
    """Audit broken curators, which must be flagged, beside correct ones, which must not."""
    coverage: Switch = False
    """Count the false alarms of every bound on laws with a known truth."""
    seeds: MaybeInt = None
    """Seeds in each world; with --coverage, seeds of one replay."""
    replays: MaybeInt = None
    """Replays: 20 of each control, 2000 of each bound."""
    confidence: MaybeFloat = None
    """Confidence of all audited numbers together, 0.95 by default; verdicts use a fiftieth of the
    risk (confidence 0.999). With --controls it is for the whole table, 0.999 by default; with
    --coverage for each bound, 0.95 by default."""
    order: float = 2.0
    """Rényi order q of the budgets."""
    batches: int = 1
    """Batches m that take turns; the target is in the first, in a middle one or in the last."""
    seed: int = 0
    """Seed of all randomness."""
    results: Path = Path("results")
    """Folder for chunks of seeds; made if it is missing."""
    resume: bool = True
    """Use the chunks that an earlier run kept."""
    save: bool = True
    """Keep chunks."""
    json: Switch = False
    """Print one JSON object."""
    devices: DeviceOptions = ONE_DEVICE


def main(config: Config) -> int:
    """Audit a setting, the controls or the bounds; returns the exit status."""
    chosen = [name for name in ("list", "controls", "coverage") if getattr(config, name)]
    if len(chosen) > 1 or (chosen and (config.setting or config.claim)):
        raise InputError("give only one of a setting, --list, --controls and --coverage.")
    require_folder("--results", config.results)
    for name in ("list", "coverage"):
        if getattr(config, name) and config.devices != ONE_DEVICE:
            raise InputError(f"--{name} does not use devices; drop --mesh and --distributed.")
    say("dd-jax audit: starting JAX …")
    if config.batches != 1 and (config.controls or config.coverage):
        raise InputError("--batches belongs to a setting; the controls have their own. Drop it.")
    run = {"list": _list, "controls": _controls, "coverage": _coverage}
    if chosen:
        return run[chosen[0]](config)
    return _notions(config) if config.setting == "notions" else _setting(config)


def _given(config: Config, *names: str) -> dict[str, Any]:
    """The options among these that were given."""
    return {name: getattr(config, name) for name in names if getattr(config, name) is not None}


CONTROLS_TITLE = "Controls: mutants must be flagged, correct curators and nulls must not"


# --- a setting ----------------------------------------------------------------------------------


def _setting(config: Config) -> int:
    import jax

    from dd_jax.audit import settings as known
    from dd_jax.audit.controls import run_controls
    from dd_jax.audit.settings import base
    from dd_jax.keys import tagged

    if config.replays is not None:
        raise InputError("--replays belongs to --controls and --coverage; drop it.")
    name = config.setting or "linear"
    checks.choice("setting", name, (*known.SETTINGS, "notions"))
    setting = known.find(name, config.order, config.batches)
    folder = config.results / "audit" if config.save else None
    confidence = 0.95 if config.confidence is None else config.confidence
    judged = base.run(
        setting,
        jax.random.key(config.seed),
        known.DEFAULT_SEEDS[name] if config.seeds is None else config.seeds,
        confidence=confidence,
        keep=base.Keep(folder, config.resume, config.devices.make_mesh()),
        say=say,
        names=config.claim or None,
    )
    rows = [found.to_dict() for found in judged]
    refuted = any(row["verdict"] == "refuted" for row in rows)
    say(f"{setting.name}: judging its controls")
    control_key = tagged(jax.random.key(config.seed), "controls")
    beside = run_controls(
        control_key, names=setting.controls, replays=1, mesh=config.devices.make_mesh()
    )
    passed = all(row.as_expected for row in beside)
    # At the top, the claim whose certificate the samples came closest to (or exceeded).
    closest = max(rows, key=lambda row: row["audited"] / row["certified"])
    values = {
        "warnings": _blind(rows),
        "setting": setting.name,
        "order": config.order,
        "batches": config.batches,
        "seed": config.seed,
        "confidence": confidence,
        "verdict_confidence": base.verdict_confidence(confidence),
        "seeds": closest["seeds"],
        "verdict": "refuted" if refuted else "consistent",
        "claim": closest["name"],
        **{key: closest[key] for key in ("audited", "exact", "certified", "paper")},
        "claims": rows,
        "controls_passed": passed,
        "controls": [row.to_dict() for row in beside],
    }
    if config.json:
        print_json(values)
    else:
        _print_setting(setting, values)
        _print_beside(beside)
    return int(refuted or not passed)


def _blind(rows: list[dict]) -> list[str]:
    """Which violations could have gone unnoticed, and how many seeds would notice them."""
    found = []
    for row in rows:
        if row["blind"]:
            needed, caught = row["seeds_needed"], row["detectable"]
            would = (
                "or any larger one"
                if caught is None
                else f"only {caught / row['certified']:.3g} times it"
            )
            remedy = "no number of seeds is enough" if needed is None else f"give --seeds {needed}"
            found.append(
                f"{row['name']} COULD NOT HAVE NOTICED a threefold violation of what is certified, "
                f"{would}; {remedy}"
            )
    return found


def _print_setting(setting, values: dict) -> None:
    for text in values["warnings"]:
        _print_filled(f"WARNING: {text}.")
    keys = ("name", "audited", "exact", "certified", "paper", "verdict", "detectable")
    print_table(
        f"{setting.summary}: R_{values['order']:g}, {values['seeds']:,} seeds in each world",
        ("claim", *keys[1:-1], "would catch"),
        [[row[key] for key in keys] for row in values["claims"]],
    )
    for row in values["claims"]:
        tight = row["audited_over_exact"]
        shown = "" if tight is None else f"; audited/exact {tight:.3f}"
        slack = row["paper_over_certified"]
        loose = "" if slack is None else f"; paper/certified {slack:.3g}"
        _print_filled(f"{row['name']}: {row['words']}{shown}{loose}", indent="  ")
    through = ", ".join(row["name"] for row in values["claims"] if row["through_mu"])
    reads = f"; of μ of Gaussian DP, read as q μ²/2 (R_q for Gaussian laws): {through}"
    for text in (
        f"audited: a lower bound, {values['confidence']:.4g} confidence in all together"
        f"{reads if through else ''}",
        f"verdict: at {values['verdict_confidence']:.6g} confidence in all together; consistent is "
        "not proved",
        "would catch: the least truth that is refuted with probability "
        f"{values['claims'][0]['power']:g}",
        "paper: the same settings under the paper's accountant",
    ):
        _print_filled(text)


def _print_filled(text: str, indent: str = "", rest: str | None = None) -> None:
    """A paragraph of at most `WIDTH` columns; names with hyphens stay whole."""
    rest = indent + "  " if rest is None else rest
    print(
        textwrap.fill(
            text, WIDTH, initial_indent=indent, subsequent_indent=rest, break_on_hyphens=False
        )
    )


def _print_beside(rows: list) -> None:
    """The controls of a setting: what must be flagged, and what must not."""
    cells = [
        (
            row.control,
            row.seeds,
            _yes(row.flagged),
            _yes(row.correct_flagged),
            row.evidence or row.correct_evidence,
        )
        for row in rows
    ]
    columns = ("control", "seeds", "flagged", "correct flagged", "evidence")
    print_table(CONTROLS_TITLE, columns, cells)
    if not all(row.as_expected for row in rows):
        print("NOT as expected: nothing can be concluded from this audit")


# --- the notions of deletion --------------------------------------------------------------------

SHOWN = 1e-6  # a δ below this is left out of the table


def _notions(config: Config) -> int:
    import jax

    from dd_jax.audit.notions import NOTIONS
    from dd_jax.baselines import notions

    default = Config()
    for name in ("claim", "replays", "order", "batches", "devices"):
        if getattr(config, name) != getattr(default, name):
            raise InputError(f"notions has its own scene; drop --{name}.")
    cells = notions.table(
        jax.random.key(config.seed),
        seeds=notions.SEEDS if config.seeds is None else config.seeds,
        say=say,
        **_given(config, "confidence"),
    )
    expected = all(cell.as_expected for cell in cells)
    rows = [cell._asdict() | {"word": cell.word, "as_expected": cell.as_expected} for cell in cells]
    if config.json:
        print_json({"as_expected": expected, "cells": rows})
        return int(not expected)
    systems = dict.fromkeys(cell.system for cell in cells)
    words = {(cell.system, cell.notion): cell.word for cell in cells}
    print_table(
        f"Notions at (ε, δ) = ({notions.EPSILON:g}, {notions.DELTA:g}); ginart at (0, 0)",
        ("system", *(name.replace("-", " ") for name in NOTIONS)),
        [[system, *(words[system, name] for name in NOTIONS)] for system in systems],
    )
    keys = ("system", "notion", "audited", "exact", "allowed", "would_catch", "word")
    print_table(
        f"δ at ε, wherever it is above {SHOWN:g}",
        ("system", "notion", "audited", "exact", "allowed", "would catch", ""),
        [[row[key] for key in keys] for row in rows if max(row["exact"], row["audited"]) > SHOWN],
    )
    for notion in NOTIONS.values():
        _print_filled(f"{notion.name} ({notion.source}): {notion.words}", indent="  ")
    print(
        "audited: a lower bound by samples; exact: the true value in this scene\n"
        "fails?: the exact law fails, these samples do not show it\n"
        + ("all as expected" if expected else "NOT as expected: samples against exact laws, roles")
    )
    return int(not expected)


# --- lists, controls, coverage ------------------------------------------------------------------


def _list(config: Config) -> int:
    from dd_jax.audit import settings as known
    from dd_jax.audit.notions import NOTIONS

    # A non-convex plan takes no batches.
    names = [name for name in known.SETTINGS if config.batches == 1 or name != "nonconvex"]
    settings = [known.find(name, config.order, config.batches) for name in names]
    if config.json:
        found = [
            {
                "name": setting.name,
                "summary": setting.summary,
                "seeds": known.DEFAULT_SEEDS[setting.name],
                "claims": {case.name: case.words for case in setting.audited},
            }
            for setting in settings
        ]
        print_json({"settings": found, "notions": {name: n.words for name, n in NOTIONS.items()}})
        return 0
    for setting in settings:
        _print_filled(f"{setting.name}: {setting.summary}")
        for case in setting.audited:
            _print_claim(case.name, case.words)
    print("notions: which systems meet which notion of deletion")
    for notion in NOTIONS.values():
        _print_claim(notion.name, notion.words)
    return 0


def _print_claim(name: str, words: str) -> None:
    _print_filled(f"{name:<20}  {words}", indent="    ", rest=" " * 26)


def _controls(config: Config) -> int:
    import jax

    from dd_jax.audit.controls import run_controls

    rows = run_controls(
        jax.random.key(config.seed),
        mesh=config.devices.make_mesh(),
        progress=lambda done, total: say(f"controls: {done} of {total}"),
        **_given(config, "seeds", "replays", "confidence"),
    )
    passed = all(row.as_expected for row in rows)
    if config.json:
        print_json({"passed": passed, "controls": [row.to_dict() for row in rows]})
        return int(not passed)
    columns = ("control", "gate", "seeds", "flagged", "power", "correct flagged", "false alarms")
    print_table(
        CONTROLS_TITLE,
        columns,
        [
            (
                row.control,
                row.gate,
                row.seeds,
                _yes(row.flagged),
                _rate(row.power),
                _yes(row.correct_flagged),
                _rate(row.false_alarms),
            )
            for row in rows
        ],
    )
    print("all as expected" if passed else "NOT as expected: see the columns 'flagged'")
    return int(not passed)


def _yes(value: bool | None) -> str | None:
    return None if value is None else ("yes" if value else "no")


def _rate(estimate) -> str | None:
    """A rate with its interval."""
    if estimate is None:
        return None
    return f"{number(estimate.value)} [{estimate.low:.2g}, {estimate.high:.2g}]"


def _coverage(config: Config) -> int:
    from dd_jax.audit import power

    given = _given(config, "seeds", "replays", "confidence")
    rows = power.table(seed=config.seed, say=say, **given)
    sound = all(row.sound for row in rows)
    if config.json:
        print_json({"sound": sound, "bounds": [row.to_dict() for row in rows]})
        return int(not sound)
    allowed = rows[0].allowed
    print_table(
        f"False alarms over {rows[0].false_alarms.trials:,} replays; {allowed:.2g} is allowed",
        ("bound", "pair", "truth", "above the truth", "above 0", "sound"),
        [
            (
                row.bound,
                row.pair,
                row.truth,
                _rate(row.false_alarms),
                row.positive,
                _yes(row.sound),
            )
            for row in rows
        ],
    )
    return int(not sound)
