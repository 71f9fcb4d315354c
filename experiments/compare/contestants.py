"""The register of the comparison: every system, by its name on the command line."""

from collections.abc import Callable

from dd_jax.errors import InputError
from experiments.compare import exact_systems, near_retraining, private_systems
from experiments.compare.contestant import Contestant
from experiments.compare.scene import Scene

CONTESTANTS: dict[str, Callable[[Scene], Contestant]] = {
    "noisy-gd": private_systems.noisy_gd_entry("optimal"),
    "noisy-gd-paper": private_systems.noisy_gd_entry("paper"),
    "retraining": private_systems.retrained,
    "fixed-model": private_systems.untrained,
    "perturbed-gd": near_retraining.perturbed_with_secret("published"),
    "perturbed-gd-best": near_retraining.perturbed_with_secret("best"),
    "perturbed-gd-equal-risk": near_retraining.perturbed_with_secret("best", equal_risk=True),
    "perturbed-gd-stateless": near_retraining.perturbed_stateless("published"),
    "perturbed-gd-stateless-best": near_retraining.perturbed_stateless("best"),
    "noisy-m-a-sgd": exact_systems.accelerated,
    "sisa": exact_systems.sisa_plain,
    "sisa-private": exact_systems.sisa_noisy,
    "certified-removal": near_retraining.removal,
    "sekhari": near_retraining.newton_step,
    "projective-residual": near_retraining.projective,
    "q-k-means": exact_systems.quantised,
    "dc-k-means": exact_systems.divided,
    "langevin": private_systems.langevin_entry("published"),
    "langevin-optimal": private_systems.langevin_entry("optimal"),
    "pnsgd": private_systems.pnsgd_entry,
    "noisy-fine-tuning": near_retraining.fine_tuning,
}


def find(names: tuple[str, ...]) -> dict[str, Callable[[Scene], Contestant]]:
    """The named systems, all of them if none is named.

    Raises:
        InputError: a name that is not known.
    """
    for name in names:
        if name not in CONTESTANTS:
            raise InputError(f"no system {name!r}; choose from {', '.join(CONTESTANTS)}.")
    return {name: CONTESTANTS[name] for name in names or CONTESTANTS}
