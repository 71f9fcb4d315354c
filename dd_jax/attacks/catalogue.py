"""The attacks by name. Their modules, and with them JAX, are imported only when one is run.

An attack's module has `run(key, attack, **parameters) -> AttackResult`; the same key and
parameters give the same result. To add one, write the module and an entry below.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from dd_jax import checks
from dd_jax.attacks.result import AttackResult
from dd_jax.claims import Claim
from dd_jax.errors import InputError
from dd_jax.intervals import check_confidence

Number = int | float

CONFIDENCE = 0.999
# Up to 360 intervals share 1 - confidence; double precision must still tell their shares from 0.
MOST_CONFIDENCE = 1 - 1e-10
MOST_SEEDS = 10_000_000
LARGEST_NUMBER = 2**31 - 1


@dataclass(frozen=True)
class Attack:
    """A violation as a program.

    Attributes:
        name: as the command line spells it.
        summary: one line.
        claim: the headline claim that it tests, and whose that is.
        module: where its `run` lives, inside `dd_jax.attacks`.
        defaults: its parameters and their default values; `seeds` and `confidence` among them.
        function: the name of the run function in the module.
    """

    name: str
    summary: str
    claim: Claim
    module: str
    defaults: Mapping[str, Number]
    function: str = "run"

    @property
    def ours(self) -> bool:
        """Whether the headline claim is this library's own."""
        return self.claim.owner == "ours"

    def run(self, key: Any, **overrides: Number) -> AttackResult:
        """Play it: `key` is a JAX key, `overrides` replace defaults.

        Raises:
            InputError: a parameter that this attack does not have, or a value it cannot use.
        """
        unknown = sorted(set(overrides) - set(self.defaults))
        if unknown:
            raise InputError(
                f"the attack {self.name} has no parameter {unknown[0]}; "
                f"it has {', '.join(self.defaults)}."
            )
        parameters = {**self.defaults, **overrides}
        _check(parameters)
        module = importlib.import_module(f"dd_jax.attacks.{self.module}")
        result = getattr(module, self.function)(key, self, **parameters)
        return replace(result, parameters=parameters)


def _check(parameters: Mapping[str, Number]) -> None:
    """Refuse what no attack can use; the attack's module refuses the rest."""
    for name, value in parameters.items():
        if isinstance(value, int) and value > LARGEST_NUMBER:
            raise InputError(f"{name} = {value}; give at most {LARGEST_NUMBER} (32-bit numbers).")
    checks.whole("seeds", parameters["seeds"], least=1, most=MOST_SEEDS)
    check_confidence(parameters["confidence"])
    if parameters["confidence"] > MOST_CONFIDENCE:
        raise InputError(f"confidence = {parameters['confidence']!r}; give at most 1 - 1e-10.")


_ATTACKS = (
    Attack(
        "sum",
        "four values and their sum: perfect retraining, yet the deleted value is read off",
        Claim(
            "an output that equals retraining without the record reveals nothing about it",
            "def:guo, def:sekhari; def:ginart where requests depend on the model",
            "prior work",
        ),
        "sum_example",
        {"seeds": 10_000, "confidence": CONFIDENCE},
    ),
    Attack(
        "median",
        "a 1-adaptive requester copies the released median into rows that stay",
        Claim(
            "a (0, 0)-adaptive-unlearning algorithm hides the deleted record",
            "dfn:unlearning, refuted by thm:adaptive_violation",
            "prior work",
        ),
        "median",
        {"seeds": 10_000, "n": 101, "step": 12, "confidence": CONFIDENCE},
    ),
    Attack(
        "secret-count",
        "a noisy count with a secret state leaks a deleted record over many certified releases",
        Claim(
            "(ε, 0)-non-adaptive-unlearning of every release bounds what all of them reveal",
            "dfn:unlearning, refuted by thm:unlrn_vs_forget once repaired (erratum E6)",
            "prior work",
        ),
        "secret_count",
        {
            "seeds": 2_000,
            "n": 100,
            "step": 1,
            "releases": 3_000,
            "epsilon": 1.0,
            "confidence": CONFIDENCE,
        },
    ),
    Attack(
        "fixed-model",
        "a curator that always answers with one fixed model: deletes perfectly, fails unlearning",
        Claim(
            "every valid deletion algorithm is indistinguishable from retraining",
            "def:ginart, dfn:unlearning; sec:deletion_vs_unlearn (incompleteness)",
            "prior work",
        ),
        "incompleteness",
        {"seeds": 10_000, "n": 10, "confidence": CONFIDENCE},
        function="run_fixed_model",
    ),
    Attack(
        "two-outputs",
        "one fixed output for no deletion, another for any: deletes perfectly, fails unlearning",
        Claim(
            "every valid deletion algorithm is indistinguishable from a run without the record",
            "def:sekhari, def:guo; app:two_stage_unlearning (incompleteness)",
            "prior work",
        ),
        "incompleteness",
        {"seeds": 10_000, "n": 10, "confidence": CONFIDENCE},
        function="run_two_outputs",
    ),
    Attack(
        "password",
        "an adaptive requester repeats a released password and so arms a leak",
        Claim(
            "non-adaptive (q, ε_dd)-data-deletion and (q, ε_dp)-Rényi DP give "
            "(q, ε_dd + pε_dp)-data-deletion under p-adaptive requesters",
            "thm:reduction as stated (erratum E2)",
            "paper",
        ),
        "password",
        {"seeds": 10_000, "n": 10, "passwords": 1_000, "order": 2.0, "confidence": CONFIDENCE},
    ),
    Attack(
        "re-encoding",
        "an individual is exposed, its group leaves: retraining tells who the deleted one was",
        Claim(
            "retraining on the data that is left, perfect unlearning, hides the deleted record",
            "dfn:unlearning; sec:intro",
            "prior work",
        ),
        "re_encoding",
        {
            "seeds": 2_000,
            "group": 20,
            "l2": 0.05,
            "eps_dp": 1.0,
            "eps_dd": 0.1,
            "order": 2.0,
            "confidence": CONFIDENCE,
        },
    ),
    Attack(
        "sisa",
        "users whose surest model is in the first shards leave: SISA no longer looks retrained",
        Claim(
            "SISA equals retraining with freshly drawn shards, whoever leaves",
            "Bourtoule et al. 2021; subsec:gupta_compare",
            "prior work",
        ),
        "sisa",
        {"seeds": 300, "shards": 6, "noise": 8.0, "confidence": CONFIDENCE},
    ),
    Attack(
        "clipping",
        "a clipped convex loss that is no GLM is never forgotten, whatever its certificate says",
        Claim(
            "gradient clipping keeps convexity, so thm:unlearning_accuracy_convex certifies "
            "(q, ε_dp)-Rényi DP and (q, ε_dd)-data-deletion with any clipped convex loss",
            "lem:clipping_retains_convexity (erratum E1)",
            "paper",
        ),
        "clipping",
        {"seeds": 4_000, "n": 100_000, "order": 2.0, "confidence": 1 - 1e-6},
    ),
    Attack(
        "recoding",
        "one release seen, the other rows recoded by its sign: no deletion step undoes it",
        Claim(
            "a deletion bound for non-adaptive requests, ε_dd, also holds once a release was seen",
            "ε_dd of thm:unlearning_accuracy_convex without its condition (erratum E2)",
            "paper",
        ),
        "recoding",
        {
            "seeds": 20_000,
            "n": 20,
            "releases": 8,
            "epsilon": 1.0,
            "order": 2.0,
            "confidence": CONFIDENCE,
        },
    ),
    Attack(
        "necessity",
        "a membership test of the learner is turned into a database, and so outlives deletion",
        Claim(
            "Adv(MI) = Adv(Test)·Adv(Test̄) if both tests have their advantage from every start",
            "the proof of thm:dp_necessary (erratum E8)",
            "paper",
        ),
        "necessity",
        {"seeds": 20_000, "n": 10, "epsilon": 4.0, "order": 2.0, "confidence": CONFIDENCE},
    ),
    Attack(
        "low-bits",
        "the last bits of float32 releases name a record, after one step of noise",
        Claim(
            "a certificate about real numbers holds for float32 releases published as they are",
            "dd_jax.noisy_gd.Schedule, which has no certificate",
            "control",
        ),
        "low_bits",
        {
            "seeds": 400,
            "n": 100,
            "l2": 1.0,
            "eps_dp": 1.0,
            "eps_dd": 0.5,
            "order": 2.0,
            "releases": 10,
            "confidence": CONFIDENCE,
        },
    ),
    Attack(
        "stall",
        "summed in the wrong order, float32 rounds the drift away and never forgets",
        Claim(
            "θ - ηg + noise, summed from the left in float32, keeps the law of real numbers",
            "alg:noisygd as written, in single precision",
            "control",
        ),
        "stall",
        {
            "seeds": 4_000,
            "n": 100_000,
            "l2": 1e-4,
            "eps_dp": 1.0,
            "eps_dd": 1e-4,
            "order": 2.0,
            "confidence": CONFIDENCE,
        },
    ),
    Attack(
        "early-release",
        "a bit of a release, seen before the record came in, stays in a non-convex model",
        Claim(
            "a release seen before the record came in costs a non-convex certificate nothing",
            "ε_dd of thm:deletion_accuracy_nonconvex with p counted from the insertion",
            "control",
        ),
        "early_release",
        {
            "seeds": 20_000,
            "n": 20_000,
            "l2": 1.0,
            "eps_dp": 1.0,
            "eps_dd": 0.3,
            "order": 2.0,
            "confidence": CONFIDENCE,
        },
    ),
    Attack(
        "noisy-gd",
        "all adversaries turned on Noisy-GD: none beats its certificate, at any p tried",
        Claim(
            "no adversary's advantage against a deleted record exceeds the certified 2Φ(μ/2) - 1",
            "dd_jax.plans.Plan.certificate, accountant optimal",
            "ours",
        ),
        "against_noisy_gd",
        {"seeds": 2_000, "n": 20, "order": 2.0, "confidence": CONFIDENCE},
    ),
)

ATTACKS: Mapping[str, Attack] = {attack.name: attack for attack in _ATTACKS}


def find(name: str) -> Attack:
    """The attack of that name.

    Raises:
        InputError: there is none.
    """
    if name not in ATTACKS:
        raise InputError(f"no attack {name!r}; choose one of {', '.join(sorted(ATTACKS))}.")
    return ATTACKS[name]
