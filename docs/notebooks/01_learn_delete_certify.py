# %% [markdown]
# # Learn, delete, certify
#
# A classifier of handwritten digits, three people who want their records deleted, and a certificate
# of how little is left of them. Run it as a script, or cell by cell in an editor that knows `# %%`.

# %%
import jax
import jax.numpy as jnp

import dd_jax as dd

data = dd.data.load("digits-3-vs-8")  # comes with scikit-learn; rows have unit norm, labels are ±1
train, test = data.train, data.test
n, dim = train.features.shape

# %% [markdown]
# ## Budgets first
#
# A plan turns budgets into settings before any step is run: `eps_dp` protects the records that
# stay, `eps_dd` bounds what may remain of one that goes. Both are Rényi divergences of order 2.

# %%
problem = dd.Problem(dd.losses.logistic(), l2=0.02)
plan = dd.plan_convex(problem, n=n, dim=dim, order=2, eps_dp=4.0, eps_dd=0.1)
print(f"learning takes {plan.learn_steps} steps, a deletion {plan.delete_steps}")
assert plan.delete_steps < plan.learn_steps

# %% [markdown]
# ## Learn, and delete three records
#
# `drive` learns, then asks `respond` for one request after another, and checks each on the host.
# The key is drawn from the operating system: noise that can be guessed protects nobody.

# %%
curator = dd.noisy_gd.mechanism(problem, plan)
tickets = [12, 40, 41]


def respond(request, release):
    return dd.deletion(problem.loss, train, [tickets[request - 1]])


state, transcript = dd.drive(dd.secret_key(), curator, respond, train, num_requests=len(tickets))
print(f"{len(transcript.releases)} models were released: one learned, one after each deletion")
assert transcript.releases.shape == (1 + len(tickets), dim)

# %% [markdown]
# A deleted row holds the null record, whose gradient is zero for every model. The number of rows
# n does not change.

# %%
assert state.database.features.shape == train.features.shape
assert not jnp.any(state.database.features[jnp.array(tickets)])

# %% [markdown]
# ## How good is it?
#
# One run is one draw of the noise; thousands of whole interactions run side by side. Fixed seeds
# are right here, since nothing of this is deployed.

# %%
requester = dd.requesters.deletions(problem.loss, train, tickets)
left = state.database
optimum = dd.erm.minimise(problem, left).params


def last_model(key, database):
    _, transcript = dd.interact(key, curator, requester, database, num_requests=len(tickets))
    return transcript.releases[-1]


models = dd.over_seeds(last_model, jax.random.key(1), 200, train, chunk=200)
excess = jax.jit(jax.vmap(lambda model: dd.erm.excess_risk(problem, model, left, optimum)))
risks = excess(models)
correct = jnp.sign(test.features @ models.T) == test.label[:, None]
exact = jnp.mean(jnp.sign(test.features @ optimum) == test.label)
print(f"accuracy {correct.mean():.3f} on held-out digits, {exact:.3f} without noise")
print(f"mean excess risk {risks.mean():.4f}")
assert 0.8 < correct.mean() < exact

# %% [markdown]
# ## What is certified
#
# The certificate is computed from the plan's own settings, lists its assumptions and says how each
# was established. Nothing in it was measured, so the mean risk above can be held against it.

# %%
certificate = plan.certify(transcript, request=3, row=tickets[2])
print(certificate)
assert certificate.eps_dd <= 0.1
assert certificate.eps_dp <= 4.0
assert risks.mean() < certificate.risk_bound

# %% [markdown]
# If the requester saw a release first, the number is larger: edits that depend on a release carry
# what it revealed. With p = 1 the sum ε_dd + ε_dp is certified.

# %%
adaptive = plan.certificate(adaptivity=1, request=3)
print(
    f"left of a deleted record: {certificate.eps_dd:.3g} if nobody looked first, "
    f"{adaptive.eps_dd_adaptive:.3g} if a requester saw one release"
)
assert adaptive.eps_dd_adaptive > certificate.eps_dd

# %% [markdown]
# A certificate travels as JSON. Whoever reads it can recompute every number from its settings.

# %%
received = dd.Certificate.from_json(certificate.to_json(), problem)
assert received.is_genuine()
forged = dd.Certificate.from_json(certificate.to_json().replace(str(certificate.eps_dd), "0.001"))
assert not forged.is_genuine()
print("the certificate recomputes to the same numbers; a forged one does not")
