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
    (found,) = finished([started(devices=8)])
    return found


@pytest.mark.parametrize("case", ["adaptive", "pairs"])
@pytest.mark.parametrize("mesh", ["8x1", "1x8", "2x4"])
def test_every_mesh_gives_the_numbers_of_one_device(meshes, mesh, case):
    assert meshes[mesh]["differences"][case] <= 1e-6


@pytest.mark.parametrize("case", ["one", "arms"])
def test_one_interaction_and_neighbours_one_by_one_take_a_mesh(meshes, case):
    assert meshes["1x8"]["differences"][case] <= 1e-6


@pytest.mark.parametrize(("mesh", "reduces"), [("8x1", {}), ("1x8", 1), ("2x4", 1)])
def test_seeds_need_no_communication_and_rows_one_sum_per_step(meshes, mesh, reduces):
    assert meshes[mesh]["per step"] == (reduces and {"all-reduce": reduces})


def test_an_interaction_adds_one_sum_at_its_start(meshes):
    # In the loop of learning, in that of deletion, and for the records outside the domain.
    assert meshes["per interaction"] == {"all-reduce": 3}


@pytest.mark.parametrize("form", ["plain", "counted"])
def test_edits_replace_split_rows_where_they_lie_and_nothing_of_them_is_left(meshes, form):
    found = meshes["edited"][form]
    assert found["rows differ"] == []
    assert found["rows counted"] == 31
    assert all(found["before"])
    assert not any(found["after"])
    assert all(found["others"])
    assert found["refused"] == ["drive", "expand", "resume"]


def test_plain_calls_on_one_mesh_are_one_program(meshes):
    assert meshes["plain calls"] == 1


@pytest.mark.parametrize(("mesh", "rows"), [("8x1", 21), ("1x8", 3), ("2x4", 6)])
def test_no_device_holds_more_than_its_share_of_split_rows(meshes, mesh, rows):
    assert meshes[mesh]["largest share"] == rows


def test_a_mesh_of_one_device_is_no_mesh():
    def draw(key, scale):
        return scale * jax.random.normal(key)

    mesh = sharding.make_mesh()
    alone, meshed = (
        dd.over_seeds(draw, jax.random.key(0), 5, 2.0, chunk=2, mesh=m) for m in (None, mesh)
    )
    assert alone.tolist() == meshed.tolist()


def test_meshes_that_cannot_be_made_are_refused():
    with pytest.raises(dd.InputError, match="needs 10 devices; there are 1"):
        sharding.make_mesh(5, 2)
    with pytest.raises(dd.InputError, match="divisor of the 1 devices"):
        sharding.make_mesh(data=2)
    layered = dd.databases.overlay(signed(4, 3), 1)
    with pytest.raises(dd.InputError, match="split plain rows"):
        sharding.split_rows(layered, sharding.make_mesh())


def test_rows_are_split_only_where_devices_share_them():
    rows = signed(4, 3)
    assert sharding.spread(rows, None) is rows
    assert sharding.spread(rows, sharding.make_mesh()) is rows


def test_a_split_database_knows_its_rows():
    split = sharding.split_rows(dd.counted(np.arange(3.0), [2, 0, 3]), sharding.make_mesh())
    assert split.total == 5
    assert split.weight.tolist() == [2, 0, 3]
    assert split.ends.tolist() == [2, 2, 5]
    assert split.place.tolist() == [0, 1, 2]
    plain = sharding.split_rows(np.arange(3.0), sharding.make_mesh())
    assert plain.ends is None
    assert plain.weight.tolist() == [1, 1, 1]


def test_split_records_outside_the_domain_are_counted_with_their_multiplicity():
    rows, loss, mesh = signed(3, 2), dd.losses.logistic(), sharding.make_mesh()
    wild = rows._replace(features=rows.features.at[jnp.array([0, 2])].multiply(50.0))
    split = sharding.split_rows(dd.counted(wild, [3, 1, 0]), mesh)
    curator = dd.noisy_gd.mechanism(
        dd.Problem(loss, 0.1, 0.4), dd.noisy_gd.Schedule(0.5, 0.01, 1.0, 1, 1)
    )
    stream = dd.requesters.stack_edits([dd.deletion(loss, rows, [1])])
    requester = dd.requesters.fixed_stream(stream)
    run = dd.interact(jax.random.key(0), curator, requester, split, num_requests=1, mesh=mesh)
    assert int(run[1].projected_initially) == 3
