"""Two real processes over loopback: one mesh, the numbers of one device on both."""

import jax
import pytest
from mesh_processes import finished, free_port, started

import dd_jax as dd
from dd_jax import processes
from dd_jax.errors import ProcessLost


@pytest.fixture(scope="module")
def both():
    port = free_port()
    return finished([started(port, index, devices=2) for index in (0, 1)])


@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one_device(both):
    for found in both:
        assert found["2x2"]["differences"]["adaptive"] <= 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(("mesh", "expected"), [("4x1", {}), ("2x2", 1)])
def test_communication_is_that_of_one_process(both, mesh, expected):
    for found in both:
        assert found[mesh]["per step"] == (expected and {"all-reduce": expected})


@pytest.mark.slow
def test_a_process_holds_its_devices_share_of_the_rows(both):
    assert [found["2x2"]["largest share"] for found in both] == [11, 11]


@pytest.mark.slow
def test_what_the_first_process_has_reaches_the_other(both):
    assert [found["broadcast"] for found in both] == [[0, 1, 2]] * 2


@pytest.mark.slow
def test_inputs_that_differ_and_meshes_without_a_process_are_refused(both):
    for found in both:
        assert "leaves out all devices of some process" in found["refused"]["mesh"]
        assert found["refused"]["inputs"].startswith("the rows of process 1 differ")


def test_one_process_is_the_first_and_agrees_with_itself():
    assert processes.is_first()
    processes.require_same("inputs", "ab" * 32)
    tree = {"a": jax.numpy.arange(3), "b": 2.0}
    assert processes.gather(tree) == tree


def test_only_a_failed_collective_means_a_lost_process(monkeypatch):
    def fail(error):
        with processes.together():
            raise error

    with pytest.raises(ValueError, match="Gloo"):  # one process has no collectives
        fail(ValueError("Gloo AllGather failed"))
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ProcessLost, match=r"another process is gone .*\(Gloo AllGather failed\)"):
        fail(ValueError("Gloo AllGather failed\nand more"))
    with pytest.raises(dd.InputError, match="bad rows"):
        fail(dd.InputError("bad rows"))
