"""A receipt: what was done about one owner's rows, what is promised of it, and what is not.

A receipt is a function of the store's rows and of the plan (`compose`), so that anybody who has the
store can make it again. Of models it holds digests of published ones alone: a digest of an
unpublished one would be a kept function of the deleted records. Each receipt has the digest of the
one before it.
"""

import collections
import functools
import json
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from dd_jax import sealed
from dd_jax.guarantees import schedules
from dd_jax.plans import Certificate, Plan
from dd_jax.plans.certificate import ask, numbers_listed, runs

FORMAT = 1
KIND = "curator's receipt"
_WIDTH = 100


class Run(NamedTuple):
    """A run of the algorithm: number 0 learned, every other one served requests.

    Attributes:
        number: i, also of the release that follows it. kind: learn, delete, add or replace.
        time: when it was served. rows: how many it edited, of all owners together.
        published: whether release i was. model: the digest of release i if it was, else None.
        versions: the programs that made it, as JSON.
    """

    number: int
    kind: str
    time: str
    rows: int
    published: int
    model: str | None
    versions: str


class Facts(NamedTuple):
    """What a receipt is made from, besides the plan.

    Attributes:
        store: name of the store. number: of the receipt. previous: digest of the one before it.
        request: number, name, kind of the request, and when it was asked.
        owner: keyed hash. places: the rows. since: the run that first inserted a record of this
            owner, 0 for the initial database.
        run: which served it. earliest: the smallest `since` of all owners of this run.
        judged: rows that count for this owner, see `rows_judged`. judged_of_run: of all its owners.
        published: the releases published before it.
        seen: "published" if all of them count as seen, "none" if the operator declared otherwise.
    """

    store: str
    number: int
    previous: str
    request: tuple[int, str, str, str]
    owner: str
    places: tuple[int, ...]
    since: int
    run: Run
    earliest: int
    judged: int
    judged_of_run: int
    published: tuple[int, ...]
    seen: str


class Receipt(NamedTuple):
    """A receipt of a store; `values` are JSON values."""

    values: Mapping[str, Any]

    @property
    def text(self) -> str:
        """The values in one line, as the store keeps them and the digest takes them."""
        return json.dumps(self.values, sort_keys=True, ensure_ascii=False)

    @property
    def digest(self) -> str:
        """SHA-256 of the text, which the next receipt holds."""
        return sealed.digest(self.text.encode())

    def pack(self) -> bytes:
        """The contents of a file for the owner, which `Curator.verify` takes."""
        return sealed.pack_json(self.values)

    def __str__(self):
        return _page(self.values)


def rows_judged(plan: Plan, stays: Iterable[Iterable[int]]) -> int:
    """How many rows that stay in their batches cover all that an owner ever had.

    An owner who came back may have had more rows before, or rows of other batches. A step shows as
    many of them as were in its batch, and rows of two batches are judged jointly, as several are.

    Args:
        stays: the rows of the owner that each receipt is about; those of a deletion are all that
            were there since the one before it.
    """
    most: collections.Counter[int] = collections.Counter()
    for places in stays:
        batches = (schedules.batch_of_row(plan.n, plan.batches, place) for place in places)
        most |= collections.Counter(batches)
    return most.total()


def certificate_of(plan: Plan, facts: Facts) -> Certificate:
    """The certificate of this owner's deletion, from what happened."""
    seen = facts.published if facts.seen == "published" else ()
    question = ask(
        plan,
        request=facts.run.number,
        first_inserted=facts.since,
        observed=seen,
        records=facts.judged,
        row=facts.places[0],
    )
    issued = plan.answer(question)
    if facts.seen == "published":
        return issued
    # Nothing enforces it here: the operator publishes, and says that no request depended on it.
    declared = tuple(
        replace(a, established="declared by the user") if "was shown before" in a.statement else a
        for a in issued.assumptions
    )
    return replace(issued, assumptions=declared)


def compose(plan: Plan, facts: Facts) -> Receipt:
    """The receipt of these facts."""
    number, name, kind, asked = facts.request
    run = facts.run
    deleted = kind == "delete"
    certificate = certificate_of(plan, facts) if deleted else None
    values = {
        "kind": KIND,
        "format": FORMAT,
        "store": facts.store,
        "receipt": facts.number,
        "previous": facts.previous,
        "request": {"number": number, "name": name, "kind": kind, "asked": asked},
        "owner": facts.owner,
        "rows": list(facts.places),
        "n": plan.n,
        "first_inserted": facts.since,
        "run": {"number": run.number, "served": run.time, "rows": run.rows},
        "published": {
            "before": [list(pair) for pair in runs(facts.published)],
            "release": run.number if run.published else None,
            "model_sha256": run.model,
        },
        "bound": None if certificate is None else _bound(plan, facts, certificate),
        "certificate": None if certificate is None else _as_values(certificate),
        "promised": _promised(facts, certificate),
        "not promised": _not_promised(plan, facts),
        "versions": json.loads(run.versions),
    }
    return Receipt(json.loads(json.dumps(values)))


def _as_values(certificate: Certificate) -> dict[str, Any]:
    """The certificate, with the releases as pairs of first and last."""
    values = json.loads(certificate.to_json())
    return values | {"observed": [list(pair) for pair in runs(certificate.observed or ())]}


def _bound(plan: Plan, facts: Facts, certificate: Certificate) -> dict[str, Any]:
    """The number to quote: of this owner's rows, and of all rows of the run jointly."""
    unit = {"order": certificate.order, "delta": certificate.delta}
    mine = _least(certificate)
    together = mine
    if facts.judged_of_run > facts.judged:
        seen = certificate.observed or ()
        together = _together(plan, facts.run.number, facts.judged_of_run, facts.earliest, seen)
    return unit | {
        "eps_dd": mine,
        "rows": facts.judged,
        "eps_dd_of_run": together,
        "rows_of_run": facts.judged_of_run,
    }


@functools.lru_cache(maxsize=1)
def _together(plan: Plan, request: int, rows: int, earliest: int, seen: tuple[int, ...]) -> float:
    """The number of all rows of a run, which is the same for each of its owners."""
    asked = {"request": request, "first_inserted": earliest, "observed": seen, "records": rows}
    return _least(plan.certificate(**asked))


def _least(certificate: Certificate) -> float:
    """For one row the tighter number of this request; several rows have the joint one."""
    return certificate.eps_dd_request if certificate.records == 1 else certificate.eps_dd_records


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _promised(facts: Facts, certificate: Certificate | None) -> list[str]:
    run, rows = facts.run, _count(len(facts.places), "row")
    if certificate is None:
        verb = "written into empty rows" if facts.request[2] == "add" else "replaced"
        return [
            f"{rows} of this owner {'was' if len(facts.places) == 1 else 'were'} {verb} by run "
            f"{run.number}. When the owner is deleted, the time since run {facts.since} counts, "
            f"and earlier receipts of the owner do not cover releases from {run.number} on."
        ]
    unit = (
        f"Rényi divergence of order {certificate.order:g}"
        if certificate.order is not None
        else f"ε at δ = {certificate.delta:g}"
    )
    if facts.judged != len(facts.places):
        rows = f"rows of all stays ({facts.judged} are judged jointly)"
    said = [
        f"The models published from release {run.number} on cannot be told from those of a run "
        f"that never held the {rows} of this owner, up to {_least(certificate):.6g} ({unit}), "
        f"under the assumptions of the certificate.",
        f"This also holds for somebody who kept the "
        f"{_count(certificate.adaptivity, 'release')} that count as seen before the deletion.",
        "The store holds no record of this owner any more, and its model is the one after the "
        "deletion.",
    ]
    if facts.judged == 1:
        said.insert(
            1,
            f"A test of these models whether the owner was ever in the data is right in at most "
            f"{(1 + certificate.advantage_bound) / 2:.2%} of cases, where guessing has 50%.",
        )
    return said


def _not_promised(plan: Plan, facts: Facts) -> list[str]:
    before = numbers_listed(facts.published) or "none"
    said = [
        f"Nothing about the models published before: releases {before}. They cannot be called "
        f"back; only their privacy protects the owner.",
        "Nothing about the file that the rows came from, backups, exported copies, or what disks "
        "keep of overwritten and freed blocks; and nothing if the store was exchanged for an "
        "earlier copy of it.",
        _about_arithmetic(plan),
        "A digest names a model; it does not prove who computed it, or when.",
    ]
    if facts.seen == "none":
        said.append(
            "The operator declared that no request depended on a published model. If one did, the "
            "bound is larger."
        )
    if facts.request[2] == "replace":
        said.append(
            "Nothing about the old record: the new one is the owner's word, and may say what the "
            "old one was. Deleting the owner covers both."
        )
    return said


def _about_arithmetic(plan: Plan) -> str:
    if plan.exact:
        return (
            "Arithmetic was exact, and all rounding is counted in the bound. Nothing is promised "
            "against somebody who can tell ChaCha20 from random bits, or who measures how long the "
            "noise took."
        )
    return (
        f"Floating point: the run was computed in {plan.dtype}, and the bound is that of exact "
        f"arithmetic. Nothing is promised against somebody who exploits rounding, or who finds a "
        f"noise key of 64 bits."
    )


def _page(values: Mapping[str, Any]) -> str:
    """The receipt for people, on one page."""
    request, run, published = values["request"], values["run"], values["published"]
    bound = values["bound"]
    lines = [
        f"Receipt {values['receipt']} of the store {values['store']}",
        f"  owner        {values['owner']} (a hash with the key of the store)",
        f"  request      {request['name']} ({request['kind']}), asked {request['asked']}",
        f"  served       {run['served']}, by run {run['number']} of {_count(run['rows'], 'row')}",
        f"  rows         {', '.join(map(str, values['rows']))} of n = {values['n']}",
        f"  published    release {published['release']}, sha256 {published['model_sha256']}"
        if published["release"] is not None
        else "  published    nothing by this run",
    ]
    if bound is not None:
        unit = f"order {bound['order']:g}" if bound["order"] else f"δ = {bound['delta']:g}"
        lines.append(
            f"  bound        {bound['eps_dd']:.6g} for {_count(bound['rows'], 'row')}, "
            f"{bound['eps_dd_of_run']:.6g} for {bound['rows_of_run']} jointly ({unit})"
        )
    for heading, key in (("promised", "promised"), ("not promised", "not promised")):
        lines.append(f"  {heading}")
        lines += [line for text in values[key] for line in _wrapped("    - ", text)]
    if values["certificate"] is not None:
        lines.append("  assumptions of the certificate")
        for a in values["certificate"]["assumptions"]:
            lines += _wrapped("    - ", f"{a['statement']} [{a['established']}]")
        for text in values["certificate"]["warnings"]:
            lines += _wrapped("    ! ", text)
    versions = ", ".join(f"{name} {version}" for name, version in values["versions"].items())
    lines += [f"  made with    {versions}", f"  after        receipt with {values['previous']}"]
    return "\n".join(lines)


def _wrapped(lead: str, text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=lead, subsequent_indent=" " * len(lead))
