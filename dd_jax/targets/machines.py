"""Machines that programs can be compiled for without owning one, and what is known of their chips.

The compilers of TPUs and GPUs run on any machine: a topology names devices that are not there, a
mesh of them lowers and compiles as usual, and only running is impossible. They are Python packages
of their own (the extra `targets`); nothing here asks a network or needs a driver.
"""

import functools
import importlib.metadata
import importlib.util
import math
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dd_jax.errors import InputError

INSTALL = 'pip install "dd-jax[targets]"'
GIB = 2**30

# libtpu looks for the host it runs on: first in these variables, then by asking a metadata server.
# It locks a file so that no two processes drive one TPU; compiling drives none. Its log files and
# its remarks on programs that do not fit are of no use to a caller who is told the same.
_ENVIRONMENT = {
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TPU_LOG_DIR": "disabled",
    "TPU_MIN_LOG_LEVEL": "3",
}


@dataclass(frozen=True)
class Chip:
    """One device; the vendor's peak numbers, and the memory that one program may use.

    Attributes:
        name: as in a machine's name. platform: "tpu", "cuda" or "cpu".
        memory: bytes that a program may use.
        bandwidth: bytes per second to and from that memory.
        link: bytes per second to other devices.
        products: flop per second of a matrix product, by its arithmetic as
            `dd_jax.targets.compiled.arithmetic` names it.
        cache: bytes of the last cache before the memory; 0 where the compiler itself says what
            stays beside the cores.
        clock: cycles per second, where compiled programs carry the compiler's cycles.
        elementwise: operations per second outside products, where they are known.
        tile: side of the square of numbers that a matrix unit holds (TPU), else 1.
    """

    name: str
    platform: str
    memory: int
    bandwidth: float
    link: float
    products: Mapping[str, float]
    cache: int = 0
    clock: float | None = None
    elementwise: float | None = None
    tile: int = 1


def _passes(peak: float) -> dict[str, float]:
    """Rates of a TPU's products: float32 is six bfloat16 products, or three of less precision."""
    passes = {"bf16_bf16_f32": 1, "default": 1, "high": 3, "bf16_bf16_f32_x3": 3}
    passes |= {"bf16_bf16_f32_x6": 6, "f32_f32_f32": 6}
    return {name: peak / count for name, count in passes.items()}


def _tpu(
    name: str,
    *,
    memory: float,
    bandwidth: float,
    link: float,
    peak: float,
    units: int,
    tile: int = 128,
    cores: int = 1,
) -> Chip:
    """A TPU by its published peaks; the clock follows from the multiply-adds of a cycle.

    A core's vector unit has 8 × 128 lanes with four arithmetic units each.
    """
    clock = peak / (2 * units * tile**2)
    return Chip(
        name,
        "tpu",
        memory=int(memory * GIB),
        bandwidth=bandwidth,
        link=link,
        products=_passes(peak),
        clock=clock,
        elementwise=cores * 8 * 128 * 4 * clock,
        tile=tile,
    )


_BF16, _TF32, _F32 = 989.4e12, 494.7e12, 66.9e12
CHIPS = {
    chip.name: chip
    for chip in (
        # The memory is what the compiler itself says is available.
        _tpu("v5e", memory=15.75, bandwidth=819e9, link=200e9, peak=197e12, units=4),
        _tpu("v5p", memory=95.74, bandwidth=2765e9, link=600e9, peak=459e12, units=8, cores=2),
        # Two units of 256 × 256, but the compiler's cycles of a large product are those of more
        # multiply-adds than these have in one cycle, and of at most twice as many.
        _tpu("v6e", memory=31.25, bandwidth=1638e9, link=400e9, peak=918e12, units=4, tile=256),
        Chip(
            "h100",
            "cuda",
            memory=int(0.75 * 84_942_979_072),  # the share that JAX takes unless told otherwise
            bandwidth=3352e9,
            link=450e9,
            products={
                "f32_f32_f32": _F32,
                # JAX's default, and its "high", may be a single product in TF32 here.
                "default": _TF32,
                "high": _TF32,
                "tf32_tf32_f32": _TF32,
                "tf32_tf32_f32_x3": _TF32 / 3,
                "bf16_bf16_f32": _BF16,
                "bf16_bf16_f32_x3": _BF16 / 3,
                "bf16_bf16_f32_x6": _BF16 / 6,
                "bf16_bf16_f32_x9": _BF16 / 9,
            },
            cache=52_428_800,
            elementwise=_F32 / 2,
        ),
    )
}

# Sides of the largest machine of each kind: a whole pod, or as many GPUs as a name may say.
_LARGEST = {"v5e": (16, 16), "v6e": (16, 16), "v5p": (16, 20, 28), "h100": (9999,)}


class Machine(NamedTuple):
    """Devices of one kind: a slice of a TPU pod, hosts with GPUs, or this machine's CPU.

    Attributes:
        name: as it was asked for. chip: what each device is. devices: to make a mesh of.
        compiler: the package that compiles for it, with its version.
    """

    name: str
    chip: Chip
    devices: tuple[Any, ...]
    compiler: str


def machine(name: str) -> Machine:
    """The machine of this name: `v5e:2x4`, `v5p:16x16x16`, `v6e:16x16`, `h100:8` or `cpu`.

    Raises:
        InputError: no such machine, or its compiler is not installed.
    """
    kind, _, size = name.partition(":")
    if kind == "cpu" and not size:
        return Machine(name, _local_cpu(), tuple(jax.devices("cpu")), _version("jaxlib"))
    largest = _LARGEST.get(kind, ())
    shape = tuple(map(int, size.split("x"))) if re.fullmatch(r"\d{1,4}(x\d{1,4})*", size) else ()
    inside = [1 <= side <= most for side, most in zip(shape, largest, strict=False)]
    if not shape or len(shape) != len(largest) or not all(inside):
        raise InputError(
            f"no machine {name!r}; give for example v5e:1x1, v5e:16x16, v6e:2x4, v5p:16x16x16, "
            f"h100:8 or cpu."
        )
    chip = CHIPS[kind]
    prepare()
    find = _tpu_devices if chip.platform == "tpu" else _gpu_devices
    return Machine(name, chip, *find(name, chip, shape))


def prepare() -> None:
    """Set what the compilers read from the environment; what the user set stays."""
    for variable, value in _ENVIRONMENT.items():
        os.environ.setdefault(variable, value)


def installed(platform: str) -> bool:
    """Whether the compiler for a platform ("tpu", "cuda") can be loaded."""
    package = {"tpu": "libtpu", "cuda": "jax_cuda12_plugin"}[platform]
    return importlib.util.find_spec(package) is not None


def _require(name: str, platform: str) -> None:
    if not installed(platform):
        raise InputError(f"{name} needs a compiler that is not installed: {INSTALL}")


def _version(package: str) -> str:
    return f"{package} {importlib.metadata.version(package)}"


def _tpu_devices(name: str, chip: Chip, shape: tuple[int, ...]) -> tuple[tuple, str]:
    _require(name, chip.platform)
    from jax.experimental import topologies

    # Hosts have 2 × 2 chips; a smaller slice is one host of its own.
    x, y, *z = shape
    host = {} if x % 2 == 0 and y % 2 == 0 else {"chips_per_host_bounds": (x, y, *z, 1)[:3]}
    try:
        found = topologies.get_topology_desc(name, "tpu", **host)
    except jax.errors.JaxRuntimeError as error:
        raise InputError(f"the TPU compiler knows no {name} ({_first_line(error)}).") from error
    return tuple(found.devices), _version("libtpu")


def _gpu_devices(name: str, chip: Chip, shape: tuple[int, ...]) -> tuple[tuple, str]:
    _require(name, chip.platform)
    from jax.experimental import topologies

    (count,) = shape
    hosts, each = (1, count) if count <= 8 else (count // 8, 8)
    if hosts * each != count:
        raise InputError(f"{name}: a host has 8 GPUs; give 1 to 8, or a multiple of 8.")
    found = topologies.get_topology_desc(
        chip.name, "cuda", topology=f"1x{hosts}x{each}", target_config=_H100
    )
    return tuple(found.devices), _version("jax-cuda12-plugin")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0]


# The compiler of GPUs asks what it compiles for in the text form of its GpuTargetConfigProto: sizes
# and speeds of an H100 with 80 GB (SXM), and the versions of the libraries to compile against.
_H100 = """
platform_name: "CUDA"
device_description_str: "H100"
runtime_version { major: 12 minor: 8 }
dnn_version_info { major: 9 minor: 8 }
gpu_device_info {
  cuda_compute_capability { major: 9 minor: 0 }
  core_count: 132  fpus_per_core: 128  clock_rate_ghz: 1.98
  device_memory_size: 84942979072  memory_bandwidth: 3352320000000  l2_cache_size: 52428800
  threads_per_warp: 32  threads_per_block_limit: 1024  threads_per_core_limit: 2048
  registers_per_block_limit: 65536  registers_per_core_limit: 65536
  shared_memory_per_block: 49152  shared_memory_per_block_optin: 232448
  shared_memory_per_core: 233472
  block_dim_limit_x: 2147483647  block_dim_limit_y: 65535  block_dim_limit_z: 65535
}
"""


# --- this machine --------------------------------------------------------------------------------


@functools.cache
def _local_cpu() -> Chip:
    """The local CPU: its memory, and the fastest product and copy of a short measurement."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    device = jax.devices("cpu")[0]
    matrix = jax.device_put(np.ones((1024, 1024), np.float32), device)
    long = jax.device_put(np.ones(2**25, np.float32), device)
    product = 2 * 1024**3 / _fastest(lambda: matrix @ matrix)
    copy = 2 * long.nbytes / _fastest(lambda: long + jnp.float32(1))
    rates: dict[str, float] = dict.fromkeys(("f32_f32_f32", "default", "high"), product)
    return Chip("cpu", "cpu", memory, copy, math.inf, rates, _cache_bytes())


def _cache_bytes() -> int:
    """The last level of the local cache, or a usual size where the system does not say."""
    try:
        with open("/sys/devices/system/cpu/cpu0/cache/index3/size") as file:
            return int(file.read().strip().removesuffix("K")) * 1024
    except (OSError, ValueError):
        return 2**25


def _fastest(work) -> float:
    """Seconds of the fastest of a few runs."""
    jax.block_until_ready(work())
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        jax.block_until_ready(work())
        seconds.append(time.perf_counter() - start)
    return min(seconds)
