"""The scene of a comparison: records with a target among them, a problem, a target (ε, δ).

The target has a feature of its own, one that is zero in every other record (a rare word, say), and
a little of the direction that tells the classes apart. The domain allows such a record, and no
other is remembered better: only the regulariser pulls its weight back. In the other
world it has the opposite label from the start.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

import dd_jax as dd
from dd_jax import checks, data, erm, memory
from dd_jax.baselines import newton
from dd_jax.data import fetch
from dd_jax.errors import InputError
from dd_jax.intervals import check_confidence
from dd_jax.types import Labelled

SYNTHETIC = "synthetic"
# The target's two worlds are two labels.
TASKS = tuple(name for name, task in data.TASKS.items() if len(task.classes) == 2)
LARGE_DATA = ("mnist-3-vs-8", "adult")
SMALL_DATA = ("digits-3-vs-8", "breast-cancer")
# The largest λ, roughly, at which the noiseless model is good: a small one costs steps and noise.
L2, OTHER_L2 = 0.008, {"adult": 0.003}
QUICK_RECORDS = 2_000
# Multiplications and additions of the games of one system, roughly.
WORK, QUICK_WORK = 5e11, 5e10
TARGET_ROW = 0
OWN_SHARE = 0.9
LONGEST_ROW = 0.9999
LEAST_SEEDS = 100
SYNTHETIC_DIM, SYNTHETIC_RECORDS = 10, 256


@dataclass(frozen=True)
class Config:
    """What is compared, on which data and with how many seeds.

    Attributes:
        data: data sets, of `TASKS` or "synthetic".
        systems: names of `systems.CONTESTANTS`; empty for all.
        epsilon, delta: the target for a deleted record.
        private_factor: ε of one release for a record that stays, in units of ε, for systems that
            give such privacy.
        seeds: interactions in each world; costly systems get fewer, and their row says so.
        quick: at most `QUICK_RECORDS` records and a tenth of the work.
        records: the number n, including the target; the first rows of the data, None for all.
        l2: λ; None for the value that suits the data, see `l2_of`.
        quiet_risk: what the noise of a system without privacy may add to the excess risk; its free
            number is chosen by that.
        releases: how many releases the patient adversary sees after the deletion; fewer if costly.
        copies: rows that the adaptive requester writes.
        stream: deletions over which costs are measured.
        confidence: of all advantages of the table together.
        seed: of all randomness.
    """

    data: tuple[str, ...] = SMALL_DATA
    systems: tuple[str, ...] = ()
    epsilon: float = 1.0
    delta: float = 1e-5
    private_factor: float = 3.0
    seeds: int = 250
    quick: bool = False
    records: int | None = None
    l2: float | None = None
    quiet_risk: float = 1e-4
    releases: int = 100
    copies: int = 16
    stream: int = 10
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self):
        known = (SYNTHETIC, *TASKS)
        for name in self.data:
            if name not in known:
                raise InputError(f"no data set {name!r}; choose from {', '.join(known)}.")
        if not self.data:
            raise InputError("no data set is named; give at least one.")
        for names in (self.data, self.systems):
            twice = [name for name in names if names.count(name) > 1]
            if twice:
                raise InputError(f"{twice[0]!r} is named twice; name it once.")
        checks.positive("epsilon", self.epsilon)
        checks.delta(self.delta)
        if self.l2 is not None:
            checks.positive("l2", self.l2)
        checks.within(
            "private_factor", checks.finite("private_factor", self.private_factor), 1, np.inf
        )
        checks.whole("seeds", self.seeds, least=LEAST_SEEDS)
        if self.records is not None:
            checks.whole("records", self.records, least=2 + max(self.copies, self.stream))
        check_confidence(self.confidence)

    @property
    def epsilon_private(self) -> float:
        """ε of one release for a record that stays."""
        return self.private_factor * self.epsilon

    @property
    def work(self) -> float:
        """What the games of one system may cost; sets its seeds."""
        return QUICK_WORK if self.quick else WORK

    def l2_of(self, name: str) -> float:
        """The λ on this data set."""
        return OTHER_L2.get(name, L2) if self.l2 is None else self.l2


def default_data() -> tuple[str, ...]:
    """The large data sets that were fetched; without any, the small ones that need no download."""
    fetched = (name for name in LARGE_DATA if fetch.is_cached(str(data.TASKS[name].needs)))
    return tuple(fetched) or SMALL_DATA


class Reference(NamedTuple):
    """What the rows of a data set are measured against.

    Attributes:
        accuracy: of the noiseless model θ*, on held-out records. majority: of the larger class.
        retraining: gradients of single records that one retraining takes, or why there is none.
    """

    accuracy: float
    majority: float
    retraining: float | str


@dataclass(frozen=True)
class Scene:
    """One data set with the target in row 0, and what every system needs to know of it."""

    name: str
    config: Config
    problem: dd.Problem
    database: Labelled
    test: Labelled

    @property
    def n(self) -> int:
        """Number of records."""
        return self.database.label.shape[0]

    @property
    def dim(self) -> int:
        """The number of features d, including the target's own."""
        return self.database.features.shape[1]

    @property
    def target_claim(self) -> dict[str, Any]:
        """n, ε and δ, as calibrations take them."""
        return {"n": self.n, "epsilon": self.config.epsilon, "delta": self.config.delta}

    @property
    def step_size(self) -> float:
        """η = 1/(λ+β), for systems that set no step themselves."""
        return 1 / (self.problem.l2 + 0.25)

    @property
    def target(self) -> Array:
        """The target's features; its label is +1, and -1 in the other world."""
        return self.database.features[TARGET_ROW]

    @cached_property
    def _optima(self) -> Array:
        """θ* with the target, with its opposite, and without either."""
        other = dd.replacement([TARGET_ROW], Labelled(self.target[None], -jnp.ones(1)))
        worlds = (self.database, dd.apply_edit(self.database, other), self.without_target)
        worlds = jax.tree.map(lambda *leaves: jnp.stack(leaves), *worlds)
        return jax.jit(jax.vmap(lambda world: erm.minimise(self.problem, world).params))(worlds)

    @property
    def optimum(self) -> Array:
        """θ* once the target is gone."""
        return self._optima[2]

    def reference(self, retraining: float | str) -> Reference:
        """The noiseless model's accuracy and the larger class's share, beside a retraining."""
        right = np.sign(self.test.features @ self.optimum) == np.asarray(self.test.label)
        positive = float(np.mean(np.asarray(self.test.label) > 0))
        return Reference(float(np.mean(right)), max(positive, 1 - positive), retraining)

    @cached_property
    def _principal(self) -> tuple[np.ndarray, np.ndarray]:
        """Eigenvalues and eigenvectors of the Hessian at the optimum."""
        return np.linalg.eigh(np.asarray(newton.hessian(self.problem, self.optimum, self.rest)))

    @property
    def curvatures(self) -> np.ndarray:
        """h_i, the eigenvalues of the Hessian at the optimum."""
        return self._principal[0]

    @property
    def weights(self) -> np.ndarray:
        """The optimum's part θ*_i along each of the Hessian's directions."""
        return np.asarray(self.optimum) @ self._principal[1]

    @cached_property
    def without_target(self) -> Labelled:
        """The records once the target is deleted, n as before."""
        deletion = dd.deletion(self.problem.loss, self.database, [TARGET_ROW])
        return dd.apply_edit(self.database, deletion)

    @property
    def rest(self) -> Labelled:
        """All records but the target."""
        return jax.tree.map(lambda leaf: leaf[1:], self.database)

    @cached_property
    def trace(self) -> Array:
        """The unit direction in the shared features in which the target moves the optimum most."""
        present, absent, _ = self._optima
        shared = (present - absent).at[-1].set(0)
        return shared / jnp.linalg.norm(shared)


def make_scene(name: str, config: Config) -> Scene:
    """The first n - 1 training records of a data set behind a target; n is theirs unless given."""
    if name == SYNTHETIC:
        train, test = _synthetic(config.records or SYNTHETIC_RECORDS, config.seed)
    else:
        train, test = _load(name)
    found = train.label.shape[0] + 1
    n = config.records or min(found - 1, QUICK_RECORDS if config.quick else found)
    if found < n:
        raise InputError(f"{name} has {found} records, target included; ask for at most so many.")
    _require_memory(name, n, train.features.shape[1])
    train = jax.tree.map(lambda leaf: leaf[: n - 1], train)
    database = jax.tree.map(
        lambda target, rest: jnp.concatenate([target, rest]), _target(train), train
    )
    problem = dd.Problem(dd.losses.logistic(), config.l2_of(name))
    return Scene(name, config, problem, database, test)


def _require_memory(name: str, records: int, dim: int) -> None:
    """Refuse a scene whose systems would not fit: about 24 arrays of records, worlds and shards."""
    memory.require(
        24 * 4 * records * dim, f"comparing on {records:,} records of {name}", "give fewer records"
    )


def _load(name: str) -> tuple[Labelled, Labelled]:
    """Training and held-out records of a task of `dd_jax.data`."""
    loaded = data.load(name)
    return _with_own_feature(loaded.train), _with_own_feature(loaded.test)


def _with_own_feature(records: Labelled) -> Labelled:
    """Room for the target's own feature, the last one."""
    return records._replace(features=jnp.pad(records.features, ((0, 0), (0, 1))))


def _synthetic(records: int, seed: int) -> tuple[Labelled, Labelled]:
    """Two overlapping classes on the sphere: L = 1, β = 1/4 and ‖a‖ = 1 hold by construction."""
    label_key, noise_key = jax.random.split(jax.random.key(seed))
    _require_memory(SYNTHETIC, records, SYNTHETIC_DIM + 1)
    count = 2 * records
    label = jnp.where(jax.random.bernoulli(label_key, shape=(count,)), 1.0, -1.0)
    draws = jax.random.normal(noise_key, (count, SYNTHETIC_DIM))
    features = draws.at[:, 0].add(1.5 * label)
    features = features / jnp.linalg.norm(features, axis=1, keepdims=True)
    whole = _with_own_feature(Labelled(features, label))
    train = jax.tree.map(lambda leaf: leaf[:records], whole)
    return train, jax.tree.map(lambda leaf: leaf[records:], whole)


def _target(train: Labelled) -> Labelled:
    """√0.9 of its own feature and √0.1 of the classes' mean direction, label +1."""
    between = np.asarray(train.label) @ np.asarray(train.features)
    shared = np.sqrt(1 - OWN_SHARE) * between / np.linalg.norm(between)
    shared[-1] = np.sqrt(OWN_SHARE)
    return Labelled(jnp.asarray(LONGEST_ROW * shared[None], jnp.float32), jnp.ones(1, jnp.float32))
