"""What a compiler of another platform says of our programs: TPUs, GPUs, without owning one."""

from dd_jax.targets.machines import CHIPS, INSTALL, Chip, Machine, installed, machine, prepare
from dd_jax.targets.sizing import Answer, Bound, Workload, answer, program

__all__ = [
    "CHIPS",
    "INSTALL",
    "Answer",
    "Bound",
    "Chip",
    "Machine",
    "Workload",
    "answer",
    "installed",
    "machine",
    "prepare",
    "program",
]
