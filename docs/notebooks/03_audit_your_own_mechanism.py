# %% [markdown]
# # Audit your own mechanism
#
# You can audit any program that turns a key and a database into numbers, in three steps: sample two
# worlds, state the claim, read the verdict with its power.

# %%
import jax
import jax.numpy as jnp

import dd_jax as dd
from dd_jax import audit

rows = jnp.linspace(-1.0, 1.0, 50)
neighbour = dd.replacement([0], jnp.ones(1))  # row 0 is -1 in one world and 1 in the other

# %% [markdown]
# ## 1. A noisy mean with a factor missing
#
# Records lie in [-1, 1]. The author scaled the noise to a sensitivity of 1/n; replacing a record
# moves the mean by 2/n.

# %%
MU = 0.5


def noisy_mean(key, database, sensitivity):
    return database.mean() + sensitivity / MU * jax.random.normal(key)


claim = audit.GaussianClaim(mu=MU)
for name, sensitivity in (("as written", 1 / 50), ("mended", 2 / 50)):
    worlds = dd.neighbours(noisy_mean, jax.random.key(0), 4000, rows, neighbour, sensitivity)
    report = audit.audit(worlds, claim)
    print(f"{name}: {report}")
    assert report.refuted == (name == "as written")

# %% [markdown]
# ## 2. Read the power before you relax
#
# "Consistent" means that these samples do not refute the claim. `detectable` is the smallest truth
# that they would have refuted nine times in ten. With a tenth of the seeds it is much larger.

# %%
few = dd.neighbours(noisy_mean, jax.random.key(1), 400, rows, neighbour, 2 / 50)
weak = audit.audit(few, claim)
print(
    f"would have caught μ = {report.verdicts[0].detectable:.2f} with 4000 seeds, "
    f"{weak.verdicts[0].detectable:.2f} with 400"
)
assert MU < report.verdicts[0].detectable < weak.verdicts[0].detectable

# %% [markdown]
# ## 3. A curator that deletes lazily
#
# Deletion is about interactions. This curator learns the mean, serves a request by moving a quarter
# of the way to the new mean, and publishes with noise. Its author claims that at most ε = 0.02
# (Rényi, order 2) is left of a deleted record: one release has ε = 0.25, and "each request forgets".


# %%
def curator(share):
    """Moves by this share at each request."""

    def learn(key, database):
        return database.mean()

    def delete(key, before, edit, after, state):
        return state + share * (after.mean() - state)

    def publish(key, state):
        return state + 2 / 50 / MU * jax.random.normal(key)

    return dd.Mechanism(learn, delete, publish)


gone = [dd.replacement([row], jnp.zeros(1)) for row in (0, 7)]
requester = dd.requesters.fixed_stream(dd.requesters.stack_edits(gone))
promised = audit.RenyiClaim(order=2, eps=0.02)


def judged(mechanism):
    """Row 0 is deleted at request 1; the observer sees releases 1 and 2."""
    worlds = audit.neighbouring_releases(
        jax.random.key(2),
        mechanism,
        requester,
        rows,
        neighbour,
        num_requests=2,
        request=1,
        seeds=40_000,
    )
    return audit.audit(worlds, promised)


lazy, whole = judged(curator(0.25)), judged(curator(1.0))
print("a quarter of the way:", lazy)
print("all of the way:      ", whole)
assert lazy.refuted
assert whole.consistent

# %% [markdown]
# What the lazy curator really leaves is known, since the law is Gaussian: the means of releases 1
# and 2 differ by 3/4 and 9/16 of the first difference. R_2 is the sum of (difference/deviation)².

# %%
exact = MU**2 * ((3 / 4) ** 2 + (9 / 16) ** 2)
print(f"audited at least {lazy.verdicts[0].lower_bound.value:.3f}, exactly {exact:.3f}")
assert 0.02 < lazy.verdicts[0].lower_bound.value <= exact

# %% [markdown]
# With share 1 a record is forgotten completely if the requester saw no release before. A requester
# that sees a release can still write it elsewhere: see `02_break_a_promise.py`.
