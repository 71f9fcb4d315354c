"""The notions of deletion side by side: what each one compares, for any mechanism, by samples.

The older ones compare what a curator releases after a request with what it would release had it
been trained without the record: Ā(𝒟, u, A(𝒟)) with A(𝒟 ∘ u). They differ in whether requests may
depend on releases and in how close the two laws must be. n is fixed, so "without the record" is the
database after the edit.

The paper's notion (`dfn:deletion`) asks for some law that does not know the record and that the
releases are close to, one-sided. What is compared are two runs of the curator, with the record and
with another one in its place, both ways, as certificates state it. This is more: who meets it meets
the paper's notion, with the other run as that law. Who fails it fails the paper's if some event
tells the two runs apart by more than e^ε - 1 + 2δ: add up P(E) ≤ e^ε π(E) + δ and the same for the
other run and the complement of E.

`compare` samples the pairs of laws that a notion is about and `judge` states, with one confidence
for everything, whether they refute (ε, δ)-indistinguishability (ε = δ = 0 for an exact notion). A
mechanism may fail one notion and meet another: `dd_jax.baselines.notions` has the table.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from dd_jax import checks
from dd_jax.audit.claims import ApproximateClaim
from dd_jax.audit.samples import flatten
from dd_jax.audit.scores import Score, atoms, linear
from dd_jax.audit.verdict import Report, Verdict, audit
from dd_jax.ensemble import Pair, over_seeds
from dd_jax.errors import InputError
from dd_jax.interaction import Requester, interact
from dd_jax.intervals import simultaneous
from dd_jax.requesters import fixed_stream
from dd_jax.types import Edit, Mechanism, apply_edit, publish_model

# Sums in two orders differ in their last bits, which is no difference between two laws.
DECIMALS = 5
# Adaptive unlearning is judged given the edits: for so many of the most frequent sequences.
MOST_BRANCHES = 2
FEWEST_IN_BRANCH = 200


class Scene(NamedTuple):
    """The records, and who asks for what.

    Attributes:
        database: 𝒟_0.
        edit: u, the request that deletes the target when it is the only one.
        stream: requests that are fixed in advance, leaves (requests, r, …).
        requester: one that is shown releases, and makes as many requests as `stream` has.
        observe: the releases that it is shown.
        deleted_by: the request of `stream` and of `requester` that deletes the target.
        alternative: the edit that puts another record in the target's row: the neighbour of 𝒟_0.
    """

    database: PyTree
    edit: Edit
    stream: Edit
    requester: Requester
    observe: tuple[int, ...]
    deleted_by: int
    alternative: Edit

    @property
    def requests(self) -> int:
        """How many requests are served."""
        return self.stream.index.shape[0]


class Notion(NamedTuple):
    """One definition.

    Attributes:
        name: as the command line spells it. source: the paper's label.
        words: which two laws are compared.
        exact: whether they must be equal, ε = δ = 0.
        pairs: `(key, mechanism, scene, seeds) -> pairs` of samples from the two laws, several where
            the definition is about every step or every sequence of edits.
        tests: how many pairs at most, for a scene of so many requests.
    """

    name: str
    source: str
    words: str
    exact: bool
    pairs: Callable[[Array, Mechanism, Scene, int], list[Pair]]
    tests: Callable[[int], int]


# --- what happens in one run ----------------------------------------------------------------------


@functools.lru_cache(maxsize=64)
def _fixed(mechanism: Mechanism, requests: int):
    """All releases where requests are fixed in advance; one function object per program."""

    def run(key, database, stream):
        asked = fixed_stream(stream)
        return interact(key, mechanism, asked, database, num_requests=requests)[1].releases

    return run


@functools.lru_cache(maxsize=64)
def _adaptive(mechanism: Mechanism, requests: int, observe: tuple[int, ...]):
    """All releases and edits where the requester sees releases."""

    def run(key, database, requester):
        _, happened = interact(
            key, mechanism, requester, database, num_requests=requests, observe=observe
        )
        return happened.releases, happened.edits

    return run


def _releases(key: Array, mechanism: Mechanism, database, stream: Edit, seeds: int) -> PyTree:
    """Releases of many seeds, leaves (seeds, requests + 1, …)."""
    run = _fixed(mechanism, stream.index.shape[0])
    return jax.tree.map(np.asarray, over_seeds(run, key, seeds, database, stream))


def _at(releases: PyTree, number: int) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[:, number], releases)


def _one(edit: Edit) -> Edit:
    """A stream of one request."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], edit)


def _request(stream: Edit, number: int) -> Edit:
    """Request `number` of a stream, from 1."""
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[number - 1], stream)


def edited(database: PyTree, stream: Edit, requests: int) -> PyTree:
    """𝒟_i = 𝒟_0 ∘ u_1 ∘ … ∘ u_i.

    Where the stream is fixed in advance and u_i holds ⟨ind, y⟩, this is a function of
    𝒟_0 ∘ ⟨ind, y⟩, so A(𝒟_i) may be the reference of data-deletion (`rem:non_adap_independence`).
    """
    for number in range(1, requests + 1):
        database = apply_edit(database, _request(stream, number))
    return database


# --- the pairs of laws ----------------------------------------------------------------------------


def _retrained(key: Array, mechanism: Mechanism, scene: Scene, seeds: int) -> list[Pair]:
    """Ā(𝒟, u, A(𝒟)) and A(𝒟 ∘ u), as they are released."""
    keys, asked = jax.random.split(key), _one(scene.edit)
    served = _releases(keys[0], mechanism, scene.database, asked, seeds)
    anew = _releases(keys[1], mechanism, edited(scene.database, asked, 1), asked, seeds)
    return [Pair(_at(served, 1), _at(anew, 0))]


def _whole_state(key: Array, mechanism: Mechanism, scene: Scene, seeds: int) -> list[Pair]:
    """The same with all that the curator keeps: the definitions have no publish function."""
    return _retrained(key, _open(mechanism), scene, seeds)


@functools.lru_cache(maxsize=64)
def _open(mechanism: Mechanism) -> Mechanism:
    return mechanism._replace(publish=publish_model)


def _empty_request(key: Array, mechanism: Mechanism, scene: Scene, seeds: int) -> list[Pair]:
    """Ā(𝒟, u, A(𝒟)) and Ā(𝒟 ∘ u, ∅, A(𝒟 ∘ u))."""
    keys, asked = jax.random.split(key), _one(scene.edit)
    nothing = jax.tree.map(lambda leaf: leaf[:, :0], asked)
    without = edited(scene.database, asked, 1)
    served = _releases(keys[0], mechanism, scene.database, asked, seeds)
    idle = _releases(keys[1], mechanism, without, nothing, seeds)
    return [Pair(_at(served, 1), _at(idle, 1))]


def _every_step(key: Array, mechanism: Mechanism, scene: Scene, seeds: int) -> list[Pair]:
    """φ_i and publish(A(𝒟_i)) at every step i of a stream that is fixed in advance."""
    first, *keys = jax.random.split(key, scene.requests + 1)
    served = _releases(first, mechanism, scene.database, scene.stream, seeds)
    found = []
    for step, step_key in enumerate(keys, start=1):
        there = edited(scene.database, scene.stream, step)
        anew = _releases(step_key, mechanism, there, scene.stream, seeds)
        found.append(Pair(_at(served, step), _at(anew, 0)))
    return found


def _given_edits(key: Array, mechanism: Mechanism, scene: Scene, seeds: int) -> list[Pair]:
    """φ_i given u_1 … u_i, and publish(A(𝒟_i)), for the most frequent edits of a requester."""
    run_key, *keys = jax.random.split(key, 1 + scene.requests * MOST_BRANCHES)
    run = _adaptive(mechanism, scene.requests, scene.observe)
    happened = over_seeds(run, run_key, seeds, scene.database, scene.requester)
    releases, edits = jax.tree.map(np.asarray, happened)
    found = []
    for step in range(1, scene.requests + 1):
        asked = flatten(jax.tree.map(lambda leaf, step=step: leaf[:, :step], edits))
        _, first, branch, sizes = np.unique(
            asked, axis=0, return_index=True, return_inverse=True, return_counts=True
        )
        for number in np.argsort(-sizes)[:MOST_BRANCHES]:
            if sizes[number] < FEWEST_IN_BRANCH:
                continue
            chosen = np.flatnonzero(branch.reshape(-1) == number)
            stream = jax.tree.map(lambda leaf, at=first[number]: jnp.asarray(leaf[at]), edits)
            there = edited(scene.database, stream, step)
            anew = _releases(keys.pop(), mechanism, there, stream, seeds)
            arms = (_at(releases, step), _at(anew, 0))
            rows = (chosen, slice(len(chosen)))
            found.append(Pair(*(_rows(arm, at) for arm, at in zip(arms, rows, strict=True))))
    if not found:
        raise InputError(
            f"no sequence of edits came up in {FEWEST_IN_BRANCH} of {seeds} runs; give more seeds, "
            f"or a requester that has few different requests."
        )
    return found


def _rows(tree: PyTree, chosen) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[chosen], tree)


def _neighbours(key: Array, mechanism: Mechanism, scene: Scene, seeds: int) -> list[Pair]:
    """φ_i, φ_{i+1}, … after the deletion where the record was there and where another one was."""
    arms = (
        _releases(part, mechanism, world, scene.stream, seeds)
        for part, world in zip(jax.random.split(key), _worlds(scene), strict=True)
    )
    return [Pair(*(_since(arm, scene.deleted_by) for arm in arms))]


def _adaptive_neighbours(key: Array, mechanism: Mechanism, scene: Scene, seeds: int) -> list[Pair]:
    """The same where the requests depend on the releases that came before them."""
    run = _adaptive(mechanism, scene.requests, scene.observe)
    arms = []
    for part, world in zip(jax.random.split(key), _worlds(scene), strict=True):
        happened = over_seeds(run, part, seeds, world, scene.requester)
        releases, edits = jax.tree.map(np.asarray, happened)
        _check_deletion(scene, edits.index[:, scene.deleted_by - 1])
        arms.append(_since(releases, scene.deleted_by))
    return [Pair(*arms)]


def _worlds(scene: Scene) -> tuple[PyTree, PyTree]:
    return scene.database, apply_edit(scene.database, scene.alternative)


def _since(releases: PyTree, number: int) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[:, number:], releases)


def _check_deletion(scene: Scene, rows) -> None:
    """Refuse requests, leaves (…, r), that leave a row of the target where it is."""
    for row in np.asarray(scene.alternative.index):
        if not np.all(np.any(np.asarray(rows) == row, axis=-1)):
            raise InputError(
                f"request {scene.deleted_by} does not replace row {row}; name the request that "
                f"deletes the target."
            )


def _single(requests: int) -> int:
    del requests
    return 1


NOTIONS: dict[str, Notion] = {
    notion.name: notion
    for notion in (
        Notion(
            "ginart",
            "def:ginart",
            "Ā(𝒟, u, A(𝒟)) = A(𝒟 ∘ u) in law, u fixed in advance",
            True,
            _retrained,
            _single,
        ),
        Notion("guo", "def:guo", "Ā(𝒟, u, A(𝒟)) ≈ A(𝒟 ∘ u)", False, _retrained, _single),
        Notion(
            "sekhari",
            "def:sekhari",
            "Ā(𝒟, u, A(𝒟)) ≈ Ā(𝒟 ∘ u, ∅, A(𝒟 ∘ u))",
            False,
            _empty_request,
            _single,
        ),
        Notion(
            "unlearning",
            "dfn:unlearning",
            "φ_i ≈ release of A(𝒟_i) at every step i of requests fixed in advance",
            False,
            _every_step,
            lambda requests: requests,
        ),
        Notion(
            "adaptive-unlearning",
            "dfn:unlearning",
            "φ_i given the edits ≈ release of A(𝒟_i), for a requester that sees the releases",
            False,
            _given_edits,
            lambda requests: MOST_BRANCHES * requests,
        ),
        Notion(
            "whole-state",
            "def:guo",
            "as guo, for all that the curator keeps: no publish function",
            False,
            _whole_state,
            _single,
        ),
        Notion(
            "deletion",
            "dfn:deletion",
            "releases from the deletion on ≈ those with another record in its place",
            False,
            _neighbours,
            _single,
        ),
        Notion(
            "adaptive-deletion",
            "dfn:deletion",
            "the same, for a requester that sees the releases",
            False,
            _adaptive_neighbours,
            _single,
        ),
    )
}


# --- samples and verdicts -------------------------------------------------------------------------


class Judged(NamedTuple):
    """What the samples say of a mechanism and a notion.

    Attributes:
        notion: the definition.
        verdicts: one per pair of laws; `worst` is the one with the largest lower bound.
    """

    notion: Notion
    verdicts: tuple[Verdict, ...]

    @property
    def worst(self) -> Verdict:
        """The verdict with the largest lower bound on δ."""
        return max(self.verdicts, key=lambda found: (found.refuted, found.lower_bound.value))

    @property
    def refuted(self) -> bool:
        """Whether the samples show that the mechanism does not meet the notion."""
        return any(found.refuted for found in self.verdicts)

    @property
    def audited(self) -> float:
        """A lower bound on the least δ at the notion's ε."""
        return self.worst.lower_bound.value


def compare(
    key: Array, mechanism: Mechanism, scene: Scene, notion: str, *, seeds: int
) -> list[Pair]:
    """Samples of the pairs of laws that a notion compares, (seeds, D) tables rounded to 1e-5.

    Raises:
        InputError: no such notion, or a scene in which the target is not deleted as stated.
    """
    if notion not in NOTIONS:
        raise InputError(f"no notion {notion!r}; choose from {', '.join(NOTIONS)}.")
    checks.whole("seeds", seeds, least=2 * FEWEST_IN_BRANCH)
    checks.whole("deleted_by", scene.deleted_by, least=1, most=scene.requests)
    _check_deletion(scene, scene.edit.index)
    _check_deletion(scene, _request(scene.stream, scene.deleted_by).index)
    pairs = NOTIONS[notion].pairs(key, mechanism, scene, seeds)
    return [Pair(*(np.round(flatten(arm), DECIMALS) for arm in pair)) for pair in pairs]


def judge(
    key: Array,
    mechanism: Mechanism,
    scene: Scene,
    *,
    epsilon: float,
    delta: float,
    seeds: int,
    confidence: float = 0.95,
    notions: Sequence[str] = tuple(NOTIONS),
    scores: Sequence[Score] | None = None,
) -> list[Judged]:
    """Does the mechanism meet each notion in this scene, at (ε, δ)?

    Guarantee: with probability at least `confidence` no notion that is met is refuted and no lower
    bound exceeds the truth. A notion quantifies over all databases and requesters; a scene is one
    of them, so samples refute and never prove. The notions: `def:ginart`, `def:guo`, `def:sekhari`,
    `dfn:unlearning` and `dfn:deletion`.

    Args:
        key: base key. mechanism: the curator. scene: records and requests.
        epsilon, delta: of the notions that are not exact.
        seeds: per arm.
        confidence: of all verdicts together.
        notions: their names; all by default.
        scores: how outputs are ordered; default `linear()` and `atoms()`.
    """
    unknown = [name for name in notions if name not in NOTIONS]
    if unknown or not notions:
        raise InputError(f"notions = {list(notions)}; choose from {', '.join(NOTIONS)}.")
    chosen = [NOTIONS[name] for name in notions]
    ordering = (linear(), atoms()) if scores is None else tuple(scores)
    each = simultaneous(confidence, sum(notion.tests(scene.requests) for notion in chosen))
    stated = ApproximateClaim(epsilon, delta)
    found: list[Judged] = []
    for place, notion in enumerate(chosen):
        pairs = compare(jax.random.fold_in(key, place), mechanism, scene, notion.name, seeds=seeds)
        claim = ApproximateClaim(0.0, 0.0) if notion.exact else stated
        reports: list[Report] = [
            audit(pair, claim, scores=ordering, confidence=each, independent=True) for pair in pairs
        ]
        found.append(Judged(notion, tuple(report.verdicts[0] for report in reports)))
    return found
