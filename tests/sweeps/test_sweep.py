"""Sweeps: a setting's own numbers, one program for traced values, the same bytes after kills."""

import dataclasses
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from problems import soak

import dd_jax as dd
from dd_jax import ensemble, sweeps
from dd_jax.sweeps import Stream, runner, store

KEY = jax.random.key(3)
SEEDS = 5


@dataclass(frozen=True)
class Setting:
    scale: float = 1.0
    shift: float | None = None
    size: int = 2


TRACED = ("scale", "shift")
SETTINGS = sweeps.grid(Setting(), size=(2, 3), scale=(1.0, 2.0, 0.5), shift=(0.0, 1.0))
CALLS = []


def draw(key, setting, offset):
    CALLS.append(setting)
    noise = jax.random.normal(key, (setting.size,))
    shift = 0.0 if setting.shift is None else setting.shift
    return {"noise": noise, "value": shift + setting.scale * noise + offset, "scale": setting.scale}


def offset(setting):
    return (jnp.float32(setting.size),)


def run(settings, folder=None, chunk=8, seeds=SEEDS, **options):
    stream = Stream(folder, "draw", {}, chunk)
    options = {"traced": TRACED, "arguments": offset} | options
    return sweeps.run(stream, draw, KEY, seeds, settings, **options)


def contents(folder):
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A sweep with a folder: its results, the folder, and how often the function was traced."""
    folder = tmp_path_factory.mktemp("kept")
    CALLS.clear()
    ticks = []
    found = run(SETTINGS, folder, progress=lambda *at: ticks.append(at))
    return found, folder, len(CALLS), ticks


def test_every_setting_gets_its_own_numbers(kept):
    results = kept[0]
    assert len(results) == len(SETTINGS) == 12
    for setting, found in zip(SETTINGS, results, strict=True):
        assert found["value"].shape == (SEEDS, setting.size)
        expected = setting.shift + setting.scale * found["noise"] + setting.size
        np.testing.assert_allclose(found["value"], expected, rtol=1e-6)
        np.testing.assert_array_equal(found["scale"], np.full(SEEDS, setting.scale, np.float32))


def test_noise_differs_between_settings_and_seeds_and_not_with_the_grid(kept):
    noise = np.stack([found["noise"][:, :2] for found in kept[0]])
    assert len(np.unique(noise.reshape(-1, 2), axis=0)) == 12 * SEEDS
    alone = run(SETTINGS[4:5])[0]
    np.testing.assert_allclose(alone["noise"], kept[0][4]["noise"], rtol=1e-6)
    words = store.digest_of_json(dataclasses.asdict(SETTINGS[4]))
    key = jax.random.fold_in(KEY, 2)  # the third seed's
    for word in (words[:8], words[8:16]):
        key = jax.random.fold_in(key, jnp.uint32(int(word, 16)))
    np.testing.assert_allclose(alone["noise"][2], jax.random.normal(key, (2,)), rtol=1e-6)


def test_settings_that_differ_in_traced_numbers_share_one_program(kept, tmp_path):
    """Blocks, settings and chunks add no trace: as many as one setting of each size needs."""
    CALLS.clear()
    run([SETTINGS[0], SETTINGS[6]], tmp_path)
    assert kept[2] == len(CALLS) > 0
    compiled = []

    def listen(event, seconds, **details):
        del seconds
        if event.endswith("backend_compile_duration"):
            compiled.append(details)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        settings = sweeps.grid(Setting(size=2), scale=(7.0, 8.0, 9.0, 10.0, 11.0), shift=(3.0,))
        run(settings, at_once=1, seeds=1)  # five blocks of one setting
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert len(compiled) == 1


def test_groups_are_static_parts_and_a_missing_number_is_static():
    settings = sweeps.grid(Setting(), size=(2, 3), scale=(1.0, 2.0), shift=(None, 1.0))
    found = [(group.places, group.traced) for group in runner.groups(settings, TRACED)]
    both = ("scale", "shift")
    assert found == [([0, 2], ("scale",)), ([1, 3], both), ([4, 6], ("scale",)), ([5, 7], both)]


def test_blocks_have_one_length_and_hold_every_place():
    assert runner._blocks([1, 2, 3, 4, 5, 6, 7], 3) == [[1, 2, 3], [4, 5, 6], [7, 7, 7]]
    assert runner._blocks([1, 2, 3, 4], 3) == [[1, 2], [3, 4]]
    assert runner._blocks([1, 2], 9) == [[1, 2]]


def test_whole_numbers_stay_whole_and_mixed_ones_do_not():
    whole, mixed = sweeps.grid(Setting(), scale=(1, 2)), sweeps.grid(Setting(), scale=(1, 2.5))
    assert runner._column(whole[:1], "scale", whole).dtype == jnp.int32
    assert runner._column(mixed[:1], "scale", mixed).dtype == jnp.float32


def test_memory_is_bounded_and_progress_counts_every_run_once(kept):
    _, folder, _, ticks = kept
    manifests = [store.read_manifest(path) for path in folder.iterdir()]
    for manifest in manifests:
        assert manifest["chunk"] * len(manifest["config"]["settings"]) <= 8
        assert manifest["config"]["traced"] == ["scale", "shift"]
    settings = [setting for found in manifests for setting in found["config"]["settings"]]
    assert set(map(store.digest_of_json, settings)) == {
        store.digest_of_json(dataclasses.asdict(setting)) for setting in SETTINGS
    }
    assert store.verify(folder) == []
    assert ticks[-1] == (60, 60)
    done = [at for at, _ in ticks]
    assert done == sorted(set(done))


def test_a_whole_sweep_is_found_again_and_another_setting_is_computed(kept, monkeypatch):
    before = contents(kept[1])
    monkeypatch.setattr(ensemble, "over_seeds", None)  # nothing may be computed
    again = run(SETTINGS, kept[1])
    for one, other in zip(again, kept[0], strict=True):
        np.testing.assert_array_equal(one["value"], other["value"])
    with pytest.raises(TypeError):
        run(sweeps.grid(Setting(shift=0.0), scale=(1.0, 2.0)), kept[1])
    assert contents(kept[1]).items() >= before.items()


@pytest.mark.parametrize(
    ("settings", "options", "word"),
    [
        ([], {}, "setting"),
        ([SETTINGS[0], SETTINGS[0]], {}, "twice"),
        (SETTINGS, {"traced": ("height",)}, "height"),
        (SETTINGS, {"at_once": 0}, "at_once"),
        ([Setting(scale=float("nan"))], {}, "JSON"),
    ],
)
def test_bad_sweeps_are_refused(settings, options, word):
    with pytest.raises(dd.InputError, match=word):
        run(settings, **options)


@pytest.mark.parametrize("axes", [{"scales": (1.0,)}, {"scale": ()}, {"scale": (1.0, 1.0)}])
def test_bad_grids_are_refused(axes):
    with pytest.raises(dd.InputError, match="scale"):
        sweeps.grid(Setting(), **axes)


@pytest.mark.slow
def test_kills_and_two_processes_leave_the_same_bytes(tmp_path):
    """SIGKILL inside writes, at random moments of starting up and of working; each life resumes."""
    lives = soak(6, 20)
    script = Path(__file__).parent / "killed_sweeps.py"
    # Forks are taken before a backend runs, so JAX's warning of them does not apply. What the first
    # life compiles the others load.
    cache = {
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(script), str(tmp_path), str(lives)],
        capture_output=True,
        text=True,
        env=os.environ | {"JAX_PLATFORMS": "cpu"} | cache,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found["kept"]) == lives
    assert found["leftovers"] >= 1  # a kill did hit a file half written
    assert found["kept"] == sorted(found["kept"])
    assert len(set(found["kept"])) >= lives // 2
    assert found["kept"][-1] < 6 * lives  # there was work left at the last kill
    unbroken = contents(tmp_path / "unbroken")
    assert len(unbroken) == 6 * lives + 1
    for name in ("broken", "shared"):  # the second was made by two processes at once
        assert contents(tmp_path / name) == unbroken
        assert store.verify(tmp_path / name) == []
