"""Every mesh gives the numbers of one device, with no more communication than it needs.

A process has one CPU device unless told otherwise before it starts, so the meshes have a process of
their own.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mesh_processes import finished, started
from problems import signed

import dd_jax as dd
from dd_jax import sharding


@pytest.fixture(scope="module")
def meshes():
    (found,) = finished([started(devices=4)])
    return found


@pytest.mark.parametrize("mesh", ["4x1", "1x4", "2x2"])
def test_every_mesh_gives_the_numbers_of_one_device(meshes, mesh):
    differences = meshes[mesh]["differences"]
    assert len(differences) == 2
    assert max(differences.values()) <= 1e-6


@pytest.mark.parametrize(
    ("mesh", "reduces", "rows"),
    [("4x1", {}, 21), ("1x4", {"all-reduce": 1}, 6), ("2x2", {"all-reduce": 1}, 11)],
)
def test_seeds_need_no_communication_and_rows_one_sum_per_step(meshes, mesh, reduces, rows):
    """No device holds more than its share of split rows."""
    assert meshes[mesh]["per step"] == reduces
    assert meshes[mesh]["largest share"] == rows


def test_an_interaction_adds_one_sum_at_its_start_and_plain_calls_are_one_program(meshes):
    # In the loop of learning, in that of deletion, and for the records outside the domain.
    assert meshes["per interaction"] == {"all-reduce": 3}
    assert meshes["plain calls"] == 1


@pytest.mark.parametrize("form", ["plain", "counted"])
def test_edits_replace_split_rows_where_they_lie_and_nothing_of_them_is_left(meshes, form):
    found = meshes["edited"][form]
    assert found["rows differ"] == []
    assert found["rows counted"] == 31
    assert all(found["before"])
    assert not any(found["after"])
    assert all(found["others"])
    assert found["refused"] == ["drive", "expand", "resume"]


def test_a_mesh_of_one_device_is_no_mesh():
    def draw(key, scale):
        return scale * jax.random.normal(key)

    mesh, rows = sharding.make_mesh(), signed(4, 3)
    alone, meshed = (
        dd.over_seeds(draw, jax.random.key(0), 5, 2.0, chunk=2, mesh=m) for m in (None, mesh)
    )
    assert alone.tolist() == meshed.tolist()
    assert sharding.spread(rows, None) is sharding.spread(rows, mesh) is rows


def test_meshes_that_cannot_be_made_are_refused():
    layered = dd.databases.overlay(signed(4, 3), 1)
    for word, call in {
        "10 devices": lambda: sharding.make_mesh(5, 2),
        "divisor": lambda: sharding.make_mesh(data=2),
        "Overlay": lambda: sharding.split_rows(layered, sharding.make_mesh()),
    }.items():
        with pytest.raises(dd.InputError, match=word):
            call()


def test_split_records_keep_their_multiplicities():
    """They count as often where they lie outside the domain."""
    rows, loss, mesh = signed(3, 2), dd.losses.logistic(), sharding.make_mesh()
    wild = rows._replace(features=rows.features.at[jnp.array([0, 2])].multiply(50.0))
    split = sharding.split_rows(dd.counted(wild, [3, 0, 1]), mesh)
    assert (split.total, split.weight.tolist()) == (4, [3, 0, 1])
    assert (split.ends.tolist(), split.place.tolist()) == ([3, 3, 4], [0, 1, 2])
    curator = dd.noisy_gd.mechanism(
        dd.Problem(loss, 0.1, 0.4), dd.noisy_gd.Schedule(0.5, 0.01, 1.0, 1, 1)
    )
    requester = dd.requesters.deletions(loss, rows, [1])
    run = dd.interact(jax.random.key(0), curator, requester, split, num_requests=1, mesh=mesh)
    assert int(run[1].projected_initially) == 4
    assert sharding.split_rows(np.arange(3.0), mesh).ends is None
