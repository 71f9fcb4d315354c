"""Data: tasks with fixed preprocessing (`load`), the pinned fetcher, a user's own file."""

from dd_jax.data import fetch
from dd_jax.data.tasks import TASKS, Dataset, load

__all__ = ["TASKS", "Dataset", "fetch", "load"]
