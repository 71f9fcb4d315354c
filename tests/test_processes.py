"""Two real processes over loopback: one mesh, the numbers of one device on both."""

import jax
import pytest
from mesh_processes import finished, free_port, started

import dd_jax as dd
from dd_jax import processes
from dd_jax.errors import ProcessLost


@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one_device():
    port = free_port()
    both = finished([started(port, index, devices=2) for index in (0, 1)])
    for found in both:
        assert found["2x2"]["differences"]["adaptive"] <= 1e-6
        # Communication is that of one process, and each holds its devices' share of the rows.
        assert found["4x1"]["per step"] == {}
        assert found["2x2"]["per step"] == {"all-reduce": 1}
        assert found["2x2"]["largest share"] == 11
        assert found["broadcast"] == [0, 1, 2]  # what the first one has
        assert "process" in found["refused"]["mesh"]
        assert "rows of process 1" in found["refused"]["inputs"]


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
    with pytest.raises(ProcessLost, match="Gloo AllGather"):
        fail(ValueError("Gloo AllGather failed\nand more"))
    with pytest.raises(dd.InputError, match="bad rows"):
        fail(dd.InputError("bad rows"))
