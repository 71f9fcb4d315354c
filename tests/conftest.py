"""Suite-wide strictness: reused keys and implicit promotions are errors, as are warnings."""

import gc
import itertools
import os
from pathlib import Path

# Most programs of the suite run once, so compiling is most of its time: half of it is saved without
# the backend's optimiser. What users run, optimised, is `make report`, which CI makes as well.
os.environ["XLA_FLAGS"] = (
    f"{os.environ.get('XLA_FLAGS', '')} --xla_backend_optimization_level=0".strip()
)
# Programs that the suite starts keep nothing in the user's cache folder.
os.environ["DD_JAX_COMPILE_CACHE"] = "off"

import jax
import pytest
from hypothesis import HealthCheck, settings

# Programs are full of small objects: collecting them at Python's own pace is 6% of the suite.
gc.set_threshold(10_000, 20, 50)
jax.config.update("jax_debug_key_reuse", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
# What one worker compiled the other loads, and so does the next run in this checkout.
_PROGRAMS = Path(__file__).parents[1] / ".pytest_cache" / "programs"
jax.config.update("jax_compilation_cache_dir", str(_PROGRAMS))
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)

# Compilation makes first examples slow and the machine is shared: no deadlines, fixed examples.
settings.register_profile(
    "dd_jax",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("dd_jax")


_files = itertools.count(1)


@pytest.fixture(scope="module", autouse=True)
def _forget_programs():
    """A file's programs are of little use to others, and those of all files fill gigabytes."""
    yield
    if next(_files) % 10 == 0:
        jax.clear_caches()


@pytest.fixture
def x64():
    """64-bit arithmetic for one test."""
    with jax.enable_x64(True):
        yield
