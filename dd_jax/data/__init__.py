"""Data: tasks with fixed preprocessing (`load`), a fetcher of pinned packages, own files."""

from dd_jax.data import fetch
from dd_jax.data.tasks import TASKS, Dataset, load

__all__ = ["TASKS", "Dataset", "fetch", "load"]
