"""`dd-jax attack`: play one of the attacks and show what it refutes."""

import textwrap
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields
from typing import Annotated, Any

import tyro

from dd_jax.attacks import ATTACKS, Attack, AttackResult, find
from dd_jax.cli.options import MaybeFloat, MaybeInt, MaybePath, Switch
from dd_jax.cli.output import number, print_json, print_table, progress
from dd_jax.cli.symbols import WIDTH
from dd_jax.errors import InputError


@dataclass(frozen=True)
class Config:
    """Play an attack on a deletion guarantee.

    Prints its success with an exact confidence interval, the theoretical value, and the claims that
    it refutes. Exit status 1 means that a claim of this library was refuted. An option that is
    left out has the attack's own default; --list --json shows it.
    """

    name: tyro.conf.Positional[
        Annotated[str | None, tyro.conf.arg(metavar="NAME", help_behavior_hint="")]
    ] = None
    """The attack to play."""
    list: Switch = False
    """List the attacks."""
    json: Switch = False
    """Print one JSON object."""
    picture: MaybePath = None
    """Draw the result into this file (.png, .svg or .pdf)."""
    seed: int = 0
    """Seed of all randomness."""
    seeds: MaybeInt = None
    """Independent trials; in each arm, if the attack has two."""
    confidence: MaybeFloat = None
    """Confidence of the intervals, all of them at once."""
    n: MaybeInt = None
    """Number of records in the database."""
    batches: MaybeInt = None
    """Batches that take turns."""
    step: MaybeInt = None
    """The request i that deletes the target."""
    releases: MaybeInt = None
    """Number of releases that the adversary sees after the deletion."""
    epsilon: MaybeFloat = None
    """The ε of each release."""
    passwords: MaybeInt = None
    """Number of possible passwords."""
    order: MaybeFloat = None
    """Rényi order q of the claim."""
    shards: MaybeInt = None
    """Number of shards of SISA."""
    noise: MaybeFloat = None
    """Noise multiplier of the private shards."""
    group: MaybeInt = None
    """Number of members of a group who leave."""
    share: MaybeFloat = None
    """Share of the records that are the adversary's own."""
    l2: MaybeFloat = None
    """Constant λ of the regulariser (λ/2)‖θ‖²."""
    eps_dp: MaybeFloat = None
    """ε_dp of one release of Noisy-GD."""
    eps_dd: MaybeFloat = None
    """ε_dd of a record deleted by Noisy-GD."""


NOT_PARAMETERS = ("name", "list", "json", "picture", "seed")


def main(config: Config) -> int:
    """List the attacks, or play one; returns the exit status."""
    if config.list:
        return _list(config.json)
    if config.name is None:
        raise InputError(f"no attack is named; choose one of {', '.join(sorted(ATTACKS))}.")
    attack = find(config.name)
    parameters = _parameters(config)
    if config.picture is not None:
        from dd_jax.cli import attack_pictures

        attack_pictures.check_path(config.picture)
    # JAX is imported only here, so that help and lists appear quickly.
    import jax

    reported = progress(f"attack {attack.name}") if attack.reports else nullcontext()
    with reported as tick:
        result = attack.run(jax.random.key(config.seed), tick, **parameters)
    if config.picture is not None:
        attack_pictures.save(result, config.picture)
    if config.json:
        print_json(result.to_json())
    else:
        _print(attack, result)
    return int(result.ours_refuted)


def _parameters(config: Config) -> dict:
    """The options that were given."""
    names = [field.name for field in fields(config) if field.name not in NOT_PARAMETERS]
    return {name: getattr(config, name) for name in names if getattr(config, name) is not None}


def _list(as_json: bool) -> int:
    if as_json:
        print_json({"attacks": [_describe(attack) for attack in ATTACKS.values()]})
        return 0
    width = max(map(len, ATTACKS)) + 2
    for attack in ATTACKS.values():
        _print_filled(f"{attack.name:<{width}}{attack.summary}", " " * width)
    return 0


def _describe(attack: Attack) -> dict:
    return {
        "name": attack.name,
        "summary": attack.summary,
        "claim": attack.claim.sentence,
        "source": attack.claim.source,
        "owner": attack.claim.owner,
        "parameters": dict(attack.defaults),
    }


def _print(attack: Attack, result: AttackResult) -> None:
    estimate = result.estimate
    _print_filled(f"{attack.name}: {attack.summary}")
    interval = (
        f"[{estimate.low:.4f}, {estimate.high:.4f}] at confidence {estimate.confidence:g} "
        f"({estimate.trials:,} trials)"
    )
    if attack.picture.kind == "against":
        # An estimate may lie above the certificate by chance; only a lower limit above it refutes.
        _print_filled(f"{result.measure} at least {estimate.low:.4f}, of the interval {interval}")
    else:
        _print_filled(f"{result.measure} {number(estimate.value)}, interval {interval}")
    _print_filled(f"bound {number(result.bound)} ({result.bound_means})")
    if result.exact is not None:
        print(f"exact {number(result.exact)}")
    for name, value in result.theory.items():
        print(f"{name.replace('_', ' ')} {number(value)}")
    if result.rows:
        rows = [_shown(attack, row) for row in result.rows]
        print_table("", list(rows[0]), [list(row.values()) for row in rows])
    if attack.picture.kind == "against":
        print("at least: the lower limit of an interval; above certified, it would refute it")
    for finding in result.findings:
        verdict = "REFUTED" if finding.refuted else "stands"
        said = f"{verdict} ({finding.claim.owner}; {finding.claim.source}): "
        _print_filled(said + finding.claim.sentence)
        _print_filled("    " + finding.evidence, "    ")


def _print_filled(text: str, rest: str = "  ") -> None:
    """A paragraph of at most `WIDTH` columns; names with hyphens stay whole."""
    print(textwrap.fill(text, WIDTH, subsequent_indent=rest, break_on_hyphens=False))


def _shown(attack: Attack, row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of the table: the measurement with its interval, or its lower limit alone."""
    if "low" not in row:
        return dict(row)
    against = attack.picture.kind == "against"
    shown: dict[str, Any] = {}
    for name, value in row.items():
        if name == "success":
            ends = f"[{row['low']:.3f}, {row['high']:.3f}]".replace("0.", ".")
            measured = f"{number(value)} {ends}"
            shown |= {"at least": row["low"]} if against else {"success [interval]": measured}
        elif name not in ("low", "high"):
            shown[name] = value
    return shown
