"""Options that say what a command runs on: a mesh of devices, several processes.

`--distributed` takes the coordinator, the count and the index from the options, then from the usual
environment variables; what neither says is left to JAX, which knows SLURM, Open MPI and others.
"""

import os
from dataclasses import dataclass
from typing import Annotated, Any

import tyro

from dd_jax.errors import InputError, ProcessLost

_VARIABLES = {
    "coordinator": "JAX_COORDINATOR_ADDRESS",
    "processes": "JAX_NUM_PROCESSES",
    "process_index": "JAX_PROCESS_ID",
}
# Seconds without a sign of life after which a process is given up; JAX's own choice is 100.
_HEARTBEAT = 30


@dataclass(frozen=True)
class Devices:
    """What to run on; one device by default."""

    mesh: tuple[int, int] | None = None
    """Devices that share the seeds, and devices that share the rows: --mesh 4 2 takes eight."""
    distributed: tyro.conf.FlagCreatePairsOff[bool] = False
    """Run on the devices of several processes, which share the seeds unless --mesh says otherwise:
    start the same command in each. The first one writes and prints."""
    coordinator: str | None = None
    """HOST:PORT where process 0 listens; JAX_COORDINATOR_ADDRESS, or what the cluster says."""
    processes: int | None = None
    """Number of processes; JAX_NUM_PROCESSES, or what the cluster says."""
    process_index: int | None = None
    """Number of this process, from 0; JAX_PROCESS_ID, or what the cluster says."""

    def check(self) -> None:
        """Refuse what cannot work before anything is started."""
        if self.mesh is not None and min(self.mesh) < 1:
            raise InputError(f"--mesh {self.mesh[0]} {self.mesh[1]}: give at least 1 of each.")
        if self.distributed:
            self.address()
            return
        for name in _VARIABLES:
            if getattr(self, name) is not None:
                raise InputError(f"{_option(name)} belongs to --distributed; add it, or drop this.")

    def address(self) -> dict[str, Any]:
        """Arguments of `jax.distributed.initialize`; None where JAX has to find out."""
        found: dict[str, Any] = {name: self._given(name) for name in _VARIABLES}
        where, count, index = found.values()
        if where is not None and not _is_address(where):
            raise InputError(f"--coordinator {where}: give HOST:PORT, such as 10.0.0.1:1234.")
        if count is not None and count < 1:
            raise InputError(f"--processes {count}: give at least 1.")
        if index is not None and (index < 0 or (count is not None and index >= count)):
            most = "" if count is None else f" to {count - 1}"
            raise InputError(f"--process-index {index}: give a number from 0{most}.")
        return {"coordinator_address": where, "num_processes": count, "process_id": index}

    def label(self) -> str:
        """Which process this is, as far as the options and the environment say."""
        _, count, index = self.address().values()
        return "" if None in (count, index) else f"process {index} of {count}"

    def start(self) -> None:
        """Join the other processes; waits for them.

        Raises:
            InputError: neither the options, the environment nor a cluster say where they are.
            ProcessLost: they cannot be reached.
        """
        import jax

        try:
            jax.distributed.initialize(**self.address(), heartbeat_timeout_seconds=_HEARTBEAT)
        except (TypeError, ValueError) as error:
            missing = [name for name in _VARIABLES if self._given(name) is None]
            words = ", ".join(f"{_option(name)} (or {_VARIABLES[name]})" for name in missing)
            raise InputError(
                f"--distributed in no cluster that JAX knows: give {words}."
            ) from error
        except RuntimeError as error:
            said = str(error).splitlines()[0]
            raise ProcessLost(f"the processes did not come together ({said})") from error

    def _given(self, name: str) -> Any:
        """The option, or else the environment variable of the same meaning."""
        value = getattr(self, name)
        text = os.environ.get(_VARIABLES[name])
        if value is not None or not text:
            return value
        if name == "coordinator":
            return text
        try:
            return int(text)
        except ValueError:
            raise InputError(f"{_VARIABLES[name]} = {text!r}: give a whole number.") from None

    def make_mesh(self):
        """The mesh of the options (`dd_jax.sharding.make_mesh`); None for one device."""
        if self.mesh is None and not self.distributed:
            return None
        from dd_jax import sharding

        return sharding.make_mesh(*(self.mesh or ()))


DeviceOptions = Annotated[Devices, tyro.conf.arg(name="")]
"""The options of a command, without a prefix."""
ONE_DEVICE = Devices()


def _is_address(where: str) -> bool:
    host, _, port = where.rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port) < 2**16


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
