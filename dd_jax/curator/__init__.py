"""A curator that serves real deletions for months: a durable store, requests, receipts.

`create` makes a store from a file's records, `open` opens one; both return a `Curator`.
"""

from dd_jax.curator.receipts import Receipt
from dd_jax.curator.service import Curator, create, open
from dd_jax.curator.turns import Answer
from dd_jax.curator.verification import Verification

__all__ = ["Answer", "Curator", "Receipt", "Verification", "create", "open"]
