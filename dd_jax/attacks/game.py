"""The game every attack plays: a curator, a requester, a deletion, and an adversary after it.

The adversary of the paper's threat model (`sec:deletion_vs_unlearn`) may have designed the
requester but sees only the releases from the deletion on: `judge` hands it a `PostDeletionView`
(`dd_jax.audit.samples`) and nothing else.
"""

from collections.abc import Callable

import jax
from jaxtyping import Array, PyTree

from dd_jax.audit import samples
from dd_jax.audit.samples import Outcome, PostDeletionView, Stage
from dd_jax.errors import InputError
from dd_jax.types import Mechanism

Adversary = Callable[[Array, PostDeletionView], PyTree]
"""`(key, view) -> answer`: a pure function of its own coins and the view."""


def judge(key: Array, adversary: Adversary, view: PostDeletionView) -> PyTree:
    """The adversary's answer; refuses to show it anything but a `PostDeletionView`."""
    if type(view) is not PostDeletionView:
        raise InputError(
            f"an adversary sees a PostDeletionView, not a {type(view).__name__}; cut one from the "
            f"transcript with PostDeletionView.cut(transcript, request=i, row=j)."
        )
    return adversary(key, view)


def play(key: Array, stage: Stage, adversary: Adversary) -> Outcome:
    """One trial: interact, cut the view at the deletion, ask the adversary."""
    interact_key, adversary_key = jax.random.split(key)
    return samples.one_run(interact_key, stage, lambda view: judge(adversary_key, adversary, view))


def first_release(key: Array, view: PostDeletionView) -> PyTree:
    """The adversary that answers with φ_i itself, for a rule that is applied on the host."""
    del key
    return view.first


def retraining(learn: Callable[[Array, PyTree], PyTree]) -> Mechanism:
    """The curator that retrains at every request: Ā(𝒟, u, ·) = A(𝒟 ∘ u), perfect unlearning."""

    def delete(key, before, edit, after, state):
        del state
        return learn(key, after)

    return Mechanism(learn, delete)
