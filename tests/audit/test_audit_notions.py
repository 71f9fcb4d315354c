"""The notions of deletion: what each one compares, the paper's remark on them, what is refused."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dd_jax as dd
from dd_jax.audit import atoms
from dd_jax.audit.bounds import advantage
from dd_jax.audit.notions import NOTIONS, Scene, compare, edited, judge

DELETED_BY = 2
SEEDS = 400


def stream(*requests):
    rows = jnp.array([[row] for row, _ in requests], jnp.int32)
    return dd.Edit(rows, jnp.array([[value] for _, value in requests], jnp.float32))


@functools.cache
def copies_the_first_release():
    """Request 1 writes sign(φ_0) into row 1, request 2 deletes row 0."""

    def act(key, memory, observation):
        first = observation.request == 1
        value = jnp.where(first, jnp.sign(observation.release), 0.0)
        return memory, dd.Edit(jnp.where(first, 1, 0).astype(jnp.int32)[None], value[None])

    return dd.Requester(init=lambda key: (), act=act)


def scene(target=4.0, **changes):
    made = Scene(
        database=jnp.array([target, 1.0, 2.0]),
        edit=dd.Edit(jnp.array([0], jnp.int32), jnp.zeros(1)),
        stream=stream((1, 5.0), (0, 0.0)),
        requester=copies_the_first_release(),
        observe=(0,),
        deleted_by=DELETED_BY,
        alternative=dd.Edit(jnp.array([0], jnp.int32), jnp.full(1, -4.0)),
    )
    return made._replace(**changes)


def total(key, database):
    del key
    return jnp.sum(database)


def retraining():
    return dd.Mechanism(total, lambda key, before, edit, after, state: total(key, after))


RETRAINING = retraining()


def values(pair):
    """The one value that each arm has in every seed."""
    found = [np.unique(arm) for arm in pair]
    assert all(len(each) == 1 for each in found)
    return [float(each[0]) for each in found]


def difference():
    """Adds the change that the last request made to what it publishes, or 1/2 if it is empty."""

    def delete(key, before, edit, after, state):
        change = jnp.sum(after) - jnp.sum(before)
        return jnp.sum(after) + 100 * change + (0.5 if not edit.index.size else 0.0)

    return dd.Mechanism(total, delete)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # Ā(𝒟, u, ·) = 3 - 400 against A(𝒟 ∘ u) = 3, or against an empty request, 3 + 1/2.
        ("ginart", [(-397, 3)]),
        ("guo", [(-397, 3)]),
        ("whole-state", [(-397, 3)]),
        ("sekhari", [(-397, 3.5)]),
        # 𝒟_1 = (4, 5, 2), 𝒟_2 = (0, 5, 2).
        ("unlearning", [(411, 11), (-393, 7)]),
        # The first release, 7, is positive: 𝒟_1 = (4, 1, 2), 𝒟_2 = (0, 1, 2).
        ("adaptive-unlearning", [(7, 7), (-397, 3)]),
        ("deletion", [(-393, 407)]),
        # In the other world the first release is -1: 𝒟_2 = (0, -1, 2).
        ("adaptive-deletion", [(-397, 401)]),
    ],
)
def test_what_is_compared(name, expected):
    pairs = compare(jax.random.key(0), difference(), scene(), name, seeds=SEEDS)
    assert [tuple(values(pair)) for pair in pairs] == expected
    assert len(pairs) <= NOTIONS[name].tests(scene().requests)


def test_the_whole_state_is_what_is_kept():
    """A secret half of the target is seen there and nowhere else."""
    kept = dd.Mechanism(
        lambda key, database: (jnp.sum(database), database[0] / 2),
        lambda key, before, edit, after, state: (jnp.sum(after), state[1]),
        lambda key, state: state[0],
    )
    found = {
        name: compare(jax.random.key(0), kept, scene(), name, seeds=SEEDS)[0]
        for name in ("guo", "whole-state")
    }
    np.testing.assert_array_equal(*found["guo"])
    present, absent = found["whole-state"]
    np.testing.assert_array_equal(present[0] - absent[0], [0, 2])


# --- rem:non_adap_independence --------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_for_fixed_requests_the_database_is_a_function_of_the_edited_first_one(seed):
    """𝒟_{i-1} ∘ u_i = (𝒟_0 ∘ ⟨ind, y⟩) ∘ u_1 ∘ … ∘ u_i for each ⟨ind, y⟩ of u_i."""
    generator = np.random.default_rng(seed)
    n, rows, requests = 6, 2, 4
    database = jnp.asarray(generator.normal(size=(n, 3)))
    index = np.stack([generator.permutation(n)[:rows] for _ in range(requests)])
    edits = dd.Edit(jnp.asarray(index, jnp.int32), jnp.asarray(generator.normal(size=(4, 2, 3))))
    there = edited(database, edits, requests)
    for place in range(rows):
        one = dd.Edit(edits.index[-1, place][None], edits.record[-1, place][None])
        first = dd.apply_edit(database, one)
        np.testing.assert_array_equal(there, edited(first, edits, requests))


def test_for_fixed_requests_deletion_with_a_as_reference_is_unlearning():
    """π(𝒟_0 ∘ ⟨ind, y⟩) = A(𝒟_i): what unlearning compares with does not know the record.

    The requester that looks makes another database, so no such π exists for it.
    """
    noisy = dd.Mechanism(
        lambda key, database: jnp.sum(database) + jax.random.normal(key), RETRAINING.delete
    )

    def reference(name, target):
        pairs = compare(jax.random.key(3), noisy, scene(target), name, seeds=SEEDS)
        return pairs[-1].absent  # at the request that deletes the target

    for name, same in (("unlearning", True), ("adaptive-unlearning", False)):
        arms = [reference(name, target) for target in (40.0, -40.0)]
        assert np.array_equal(*arms) == same


# --- verdicts -------------------------------------------------------------------------------------


def test_retraining_meets_every_older_notion_and_fails_adaptive_deletion():
    found = judge(
        jax.random.key(0), RETRAINING, scene(), epsilon=1.0, delta=0.01, seeds=1000, confidence=0.99
    )
    assert [each.notion.name for each in found if each.refuted] == ["adaptive-deletion"]
    assert found[-1].audited > 0.9
    assert all(each.audited == 0 for each in found[:-1])
    spent = sum(1 - verdict.confidence for each in found for verdict in each.verdicts)
    assert spent <= 0.01 * (1 + 1e-9)  # one risk for all verdicts together


def test_releases_are_compared_given_the_edits():
    """A requester tosses a coin: its two branches differ, and retraining is exact in each."""

    def act(key, memory, observation):
        first = observation.request == 1
        value = jnp.where(first, jnp.where(jax.random.bernoulli(key), 5.0, -5.0), 0.0)
        return memory, dd.Edit(jnp.where(first, 1, 0).astype(jnp.int32)[None], value[None])

    tossed = scene(requester=dd.Requester(init=lambda key: (), act=act))
    pairs = compare(jax.random.key(0), RETRAINING, tossed, "adaptive-unlearning", seeds=1000)
    assert len(pairs) == NOTIONS["adaptive-unlearning"].tests(tossed.requests)
    for served, anew in pairs:
        assert served.shape == anew.shape
        assert (served == anew).all()
    assert {float(served[0, 0]) for served, _ in pairs} == {11.0, 1.0, 7.0, -3.0}


def test_an_exact_notion_allows_nothing():
    """Coins of bias 1/5 apart: (1, 0.01)-indistinguishable, but not equal in law."""
    coins = dd.Mechanism(
        lambda key, database: jax.random.bernoulli(key, 0.5).astype(jnp.float32),
        lambda key, before, edit, after, state: jax.random.bernoulli(key, 0.7).astype(jnp.float32),
    )
    names = ("ginart", "guo")
    found = judge(
        jax.random.key(0), coins, scene(), epsilon=1.0, delta=0.01, seeds=4000, notions=names
    )
    assert [each.refuted for each in found] == [True, False]


def test_one_failing_step_fails_the_notion():
    """Wrong at the second request only: the first verdict stands, the notion does not."""

    def delete(key, before, edit, after, state):
        return jnp.where(edit.index[0] == 0, state, jnp.sum(after))

    (found,) = judge(
        jax.random.key(0),
        dd.Mechanism(total, delete),
        scene(),
        epsilon=1.0,
        delta=0.01,
        seeds=1000,
        notions=("unlearning",),
    )
    assert [verdict.refuted for verdict in found.verdicts] == [False, True]
    assert found.refuted
    assert found.worst is found.verdicts[1]


@pytest.mark.parametrize(
    ("changes", "options", "word"),
    [
        ({"deleted_by": 1}, {}, "request 1"),
        ({"deleted_by": 3}, {}, "deleted_by"),
        ({"edit": dd.Edit(jnp.array([1], jnp.int32), jnp.zeros(1))}, {}, "row 0"),
        ({}, {"seeds": 10}, "seeds"),
        ({}, {"notions": ("nope",)}, "nope"),
        ({}, {"notions": ()}, "notions"),
        ({}, {"delta": 2.0}, "delta"),
    ],
)
def test_refusals(changes, options, word):
    given = {"epsilon": 1.0, "delta": 0.01, "seeds": SEEDS} | options
    with pytest.raises(dd.InputError, match=word):
        judge(jax.random.key(0), RETRAINING, scene(**changes), **given)


def test_edits_that_never_repeat_are_refused():
    def act(key, memory, observation):
        row = jnp.where(observation.request == 1, 1, 0).astype(jnp.int32)
        return memory, dd.Edit(row[None], jax.random.normal(key, (1,)))

    random = dd.Requester(init=lambda key: (), act=act)
    with pytest.raises(dd.InputError, match="edits"):
        compare(
            jax.random.key(0),
            RETRAINING,
            scene(requester=random),
            "adaptive-unlearning",
            seeds=SEEDS,
        )


def test_atoms_see_what_a_line_cannot():
    """±1 against 0: equal means; advantage 1 for the score of points, 0 for a linear one."""
    generator = np.random.default_rng(0)
    present = generator.choice([-1.0, 1.0], size=(400, 1))
    absent = np.zeros((400, 1))
    scorer = atoms().fit(present[:200], absent[:200])
    parts = [
        scorer(arm[rows]) for rows in (slice(200), slice(200, 400)) for arm in (present, absent)
    ]
    assert advantage(*parts, confidence=0.99).value > 0.9
    assert scorer(np.array([[7.0]])) == 0.0
