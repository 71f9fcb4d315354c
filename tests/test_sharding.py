"""Every mesh gives the numbers of one device, with no more communication than it needs.

A process has one CPU device unless told otherwise before it starts, so the meshes have a process of
their own.
"""

import json
import os
import subprocess
import sys

import jax
import pytest
from problems import signed

import dd_jax as dd
from dd_jax import sharding

SCRIPT = """
import json, jax, jax.numpy as jnp, numpy as np
import dd_jax as dd
from dd_jax import databases, ensemble, sharding
from problems import signed

rows = signed(21, 3)
problem = dd.Problem(dd.losses.logistic(), 0.1, 0.4, row_chunk=2)
curator = dd.noisy_gd.mechanism(problem, dd.noisy_gd.Schedule(0.5, 0.01, 1.0, 3, 2))
requester = dd.requesters.largest_loss(problem.loss, rows)
key = jax.random.key(0)

def releases(key, database):
    _, seen = dd.interact(key, curator, requester, database, num_requests=2, observe=(0, 1))
    return seen.releases, seen.projected_initially

def descend(key, database):
    return dd.noisy_gd.run(key, jnp.zeros(3), database, problem, step_size=0.5,
                           noise_variance=0.01, num_steps=3)

expected = np.asarray(dd.over_seeds(releases, key, 10, rows)[0])
found = {}
for seeds, data in ((8, 1), (1, 8), (2, 4)):
    mesh = sharding.make_mesh(seeds, data)
    database = sharding.split_rows(rows, mesh) if data > 1 else rows
    outputs, outside = dd.over_seeds(releases, key, 10, database, mesh=mesh)
    program = ensemble._one_chunk.lower(descend, 8, mesh, key, jnp.uint32(0), (database,))
    text = program.compile().as_text()
    found[f"{seeds}x{data}"] = {
        "difference": float(np.abs(np.asarray(outputs) - expected).max()),
        "shape": outputs.shape,
        "devices": len(outputs.devices()),
        "reduces": text.count(" all-reduce("),
        "others": sum(text.count(f" {name}(") for name in
                      ("all-gather", "all-to-all", "collective-permute", "reduce-scatter")),
    }
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def meshes():
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path]),
    }
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("mesh", ["8x1", "1x8", "2x4"])
def test_every_mesh_gives_the_numbers_of_one_device(meshes, mesh):
    found = meshes[mesh]
    assert found["shape"] == [10, 3, 3]
    assert found["difference"] <= 1e-6


@pytest.mark.parametrize(("mesh", "reduces"), [("8x1", 0), ("1x8", 1), ("2x4", 1)])
def test_seeds_need_no_communication_and_rows_one_sum_per_step(meshes, mesh, reduces):
    assert (meshes[mesh]["reduces"], meshes[mesh]["others"]) == (reduces, 0)


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
    with pytest.raises(dd.InputError, match="split plain rows"):
        sharding.split_rows(dd.compress(signed(4, 3)), sharding.make_mesh())
