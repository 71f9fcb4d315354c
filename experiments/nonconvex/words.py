"""What the non-convex figure says: its caption and its tables, from the run's numbers."""

from collections.abc import Iterator

import numpy as np
from scipy import stats

from experiments.nonconvex import network_cost
from experiments.nonconvex.drawing import FORMS
from experiments.page import Table

_MINUTE, _DAY, _YEAR = 60.0, 86_400.0, 3.15576e7


def caption(config, results: dict[str, np.ndarray]) -> str:
    """What to see and which claim it tests."""
    return "\n".join(
        (
            *_flows(config, results),
            *_divergences(config, results),
            *_neighbours(results),
            *_risk(results),
            *_network(config, results),
        )
    )


def _flows(config, results: dict[str, np.ndarray]) -> Iterator[str]:
    noise = " and ".join(f"σ² = {noise:g} at d = {j + 1}" for j, noise in enumerate(config.noises))
    yield (
        f"The loss -tanh(y⟨a, θ⟩), n = {config.n}, λ = β, from N(0, σ²/λ I). Above: its law flows "
        f"to the Gibbs law of the database (half of it inside the orange lines). Below: exact "
        f"R_{config.order:g} at the paper's step size, {noise} (features along the axes, so that "
        f"the law is a product), against thm:deletion_accuracy_nonconvex with both step conditions "
        f"(erratum E4) and its tuned forms (erratum E5)."
    )


def _divergences(config, results: dict[str, np.ndarray]) -> Iterator[str]:
    """Whether every bound holds, and the steps that each needs."""
    dims = range(1, len(config.noises) + 1)
    broken = [
        f"{form} (d = {dim}, {phase})"
        for dim in dims
        for phase in ("learning", "deletion")
        for form in FORMS
        if np.any(results[f"d = {dim}: {phase}"] > results[f"d = {dim}: {phase}, {form}"])
    ]
    if broken:
        yield f"THE EXACT DIVERGENCE EXCEEDS: {', '.join(broken)}."
    else:
        yield "The exact divergence is within every bound at every step shown."
    for dim in dims:
        steps = (results[f"d = {dim}: steps, {form}"] for form in FORMS)
        words = (f"{f} {k:,.0f} / {u:,.0f}" for f, (k, u) in zip(FORMS, steps, strict=True))
        start = results[f"d = {dim}: learning"][0]
        yield (
            f"K_L / K_U for ε_dd = {config.eps_dd:g} at d = {dim}: {', '.join(words)}; in truth "
            f"R_q is {start:.2g} after the first step."
        )


def _neighbours(results: dict[str, np.ndarray]) -> Iterator[str]:
    """What is left between neighbouring runs, by the run sum and in truth."""
    exact = results["d = 1: deletion, neighbours"]
    bound = float(results["d = 1: deletion, run sum"])
    held = np.all(exact <= bound)
    held &= np.all(results["d = 1: learning, neighbours"] <= results["d = 1: learning, run sum"])
    verdict = "which holds" if held else "WHICH FAILS"
    yield (
        f"Between neighbouring runs (d = 1) the run sum of erratum E2 promises {bound:.1g} after "
        f"the deletion, {verdict}: {exact[0]:.1g} remains after one step."
    )


def _risk(results: dict[str, np.ndarray]) -> Iterator[str]:
    """Where each bound, and the truth, beats the model 0."""
    zero = float(results["risk: model 0"][0])
    parts = []
    for name, words in (("paper", "the paper's bound"), ("E3", "E3's"), ("exact", "the truth")):
        below = results["risk: noise"][results[f"risk: {name}"] < zero]
        where = f"up to σ² = {below.max():.2g}" if below.size else "nowhere shown"
        parts.append(f"{words} {where}")
    least = results["risk: paper"].min()
    yield (
        f"Excess risk of the Gibbs law (d = 1) is below the model 0's, {zero:.2g}: "
        f"{', '.join(parts)}; of the noises shown the paper's (thm:gibbs_optimal) is least at "
        f"{least:.2g}, as erratum E3 says."
    )
    exact, (mended, stated) = results["d = 1: risk"][0], results["d = 1: risk bound"]
    holds = "" if exact <= mended else ", WHICH FAILS"
    yield (
        f"The learned model has {exact:.2f}, by E3's bound at most {mended:.2f}{holds}, by the "
        f"paper's {stated:.2f}."
    )


def _network(config, results: dict[str, np.ndarray]) -> Iterator[str]:
    """The price of the network's certificate, and what it bought."""
    seconds = float(results["network: seconds per step"])
    sizes = f"{config.hidden} hidden units, d = {config.hidden * network_cost.FEATURES}"
    words = []
    for form in network_cost.FORMS:
        learn, delete = results[f"network, {form}: run"][:2]
        if np.isfinite(learn):
            spent = duration((learn + delete) * seconds)
            words.append(f"{form} {learn:,.0f} + {delete:,.0f} steps ({spent} for one model)")
        else:
            words.append(f"{form} refused")
    yield (
        f"Network ({sizes}, n = {config.network_n}, bounded tanh output) at σ² = "
        f"{config.network_noise:g}, learning + one deletion: {'; '.join(words)}, extrapolated from "
        f"{seconds * 1e6:.0f} µs a step here. Where K_L = 1 the start is already within ε_dd and "
        f"nothing is learned."
    )
    if "network: objective" not in results:
        yield "The certificate is refused at that noise, so nothing was run."
        return
    low, mean, high = interval(results["network: objective"][:, 0])
    best = float(results["network: best"])
    accuracy = results["network: accuracy"].mean(axis=0)
    place = "worse than" if low > 0 else ("better than" if high < 0 else "not told from")
    moral = ": the noise that makes it forget leaves nothing to forget" if low > 0 else ""
    yield (
        f"Run as certified with {config.network_seeds} seeds, the learned model's objective is "
        f"{mean:.2f} [{low:.2f}, {high:.2f}], {place} the model 0's (0; best found {best:.2f}), "
        f"accuracy {accuracy[0]:.2f} learned and {accuracy[1]:.2f} after the "
        f"deletion{moral}."
    )


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """A 95% t-interval of the mean over seeds: (low, mean, high)."""
    half = float(stats.t.isf(0.025, len(values) - 1) * stats.sem(values))
    mean = float(np.mean(values))
    return mean - half, mean, mean + half


def duration(seconds: float) -> str:
    """A time in the unit that reads best."""
    units = ((_YEAR, "years"), (_DAY, "days"), (3600.0, "hours"), (_MINUTE, "minutes"))
    for size, words in units:
        if seconds >= 2 * size:
            return f"{seconds / size:,.0f} {words}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"


def tables(config, results: dict[str, np.ndarray]) -> list[Table]:
    """Exact values beside bounds, and the network's price over the noise."""
    return [_divergence_table(config, results), _price_table(config, results)]


def _divergence_table(config, results: dict[str, np.ndarray]) -> Table:
    """R_q at the first and last step shown of each phase."""
    rows = []
    for dim, noise in enumerate(config.noises, start=1):
        for phase, clock in (("learning", "learn steps"), ("deletion", "delete steps")):
            for place in (0, -1):
                values = [results[f"d = {dim}: {phase}, {form}"][place] for form in FORMS]
                exact = results[f"d = {dim}: {phase}"][place]
                count = results[f"d = {dim}: {clock}"][place]
                rows.append([dim, noise, phase, int(count), *map(float, (exact, *values))])
    columns = ["d", "σ²", "phase", "steps", "exact", *(f"{form} bound" for form in FORMS)]
    return Table(f"R_{config.order:g} from the Gibbs law", columns, rows)


def _price_table(config, results: dict[str, np.ndarray]) -> Table:
    """Steps, time and risk bound over the noise."""
    seconds, rows = float(results["network: seconds per step"]), []
    for form in network_cost.FORMS:
        columns = [results[f"network, {form}: {name}"] for name in network_cost.COSTS]
        for noise, *numbers in zip(results["network: noise"], *columns, strict=True):
            known = [float(v) if np.isfinite(v) else None for v in numbers]
            spent = None if known[0] is None else duration((numbers[0] + numbers[1]) * seconds)
            rows.append([form, float(noise), *known, spent])
    columns = ["form", "σ²", *network_cost.COSTS, "time for one model"]
    return Table(
        "The network's certificate; empty where it breaks the privacy budget", columns, rows
    )
