"""Samples to sound statements: lower bounds with confidence, verdicts on claims, and controls.

Samples refute an upper bound; they never certify one. Whatever is chosen by looking at data
(direction, critic, threshold, bins) is chosen on one part of the seeds and judged on another.

Start with `audit(pair, claims, scores=…)`. `samples` makes the pairs, `claims` states what is
claimed and which bound may refute it, `scores` orders the outputs, and `verdict` judges.
"""

from dd_jax.audit.bounds import LowerBound
from dd_jax.audit.claims import (
    AdvantageClaim,
    ApproximateClaim,
    GaussianClaim,
    NumericClaim,
    RenyiClaim,
    of_certificate,
)
from dd_jax.audit.gibbs import gibbs_samples
from dd_jax.audit.samples import neighbouring_releases, one_release
from dd_jax.audit.scores import (
    Score,
    atoms,
    deleted_record_loss,
    float_noise,
    gaussian_likelihood_ratio,
    likelihood_ratio,
    linear,
    network,
    quadratic,
)
from dd_jax.audit.verdict import GateResult, Report, Verdict, audit
from dd_jax.claims import Claim, Finding

__all__ = [
    "AdvantageClaim",
    "ApproximateClaim",
    "Claim",
    "Finding",
    "GateResult",
    "GaussianClaim",
    "LowerBound",
    "NumericClaim",
    "RenyiClaim",
    "Report",
    "Score",
    "Verdict",
    "atoms",
    "audit",
    "deleted_record_loss",
    "float_noise",
    "gaussian_likelihood_ratio",
    "gibbs_samples",
    "likelihood_ratio",
    "linear",
    "neighbouring_releases",
    "network",
    "of_certificate",
    "one_release",
    "quadratic",
]
