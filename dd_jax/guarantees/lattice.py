"""Counted rounding: bounds that hold for a program on a lattice, and not for its idealisation.

The state is a point of the lattice ΔZ^d, and one step of the program is

    y = round_Δ(the computed T(θ)),   θ ← y + ΔZ

where T is a c-Lipschitz step of gradient descent, what is computed is within ηE of T(θ), rounding
is to the nearest point of the lattice, and Z has independent coordinates of the discrete Gaussian
law P(z) ∝ exp(-z²Δ²/(2ς²)). As for the continuous one, R_q between that law and its shift by v in
ΔZ^d is at most q‖v‖²/(2ς²), for every order q (Canonne, Kamath & Steinke, 2020).

Every step, with the record or without it, counts with a gap larger by

    g = 2Δ√d + 2ηE

in the accountant of `schedules.pooled`, which is otherwise unchanged: with s_k + g in place of s_k,
R_q ≤ qμ²/2 for every order, both ways.

Proof. Let φ = round_Δ ∘ (computed T) be the map of one run and φ' that of the other, X a state of
the first and X̃ of the coupled run with ‖X - X̃‖ ≤ z. Then D = φ(X) - φ'(X̃) is a point of ΔZ^d and
‖D‖ ≤ D̄ = cz + s + 2ηE + Δ√d: T(X) and T'(X̃) are at most cz + s apart, each is computed within ηE,
and each rounding moves by at most Δ√d/2. Let the accountant hide a ≥ 0 in this step. If a ≥ D̄ take
V = D, else V = (a/D̄)D with every coordinate rounded towards 0 on ΔZ; so V is on the lattice and
‖V‖ ≤ a. Let the coupled run go on with X̃⁺ = φ'(X̃) + V + ΔZ and the same Z as X⁺ = φ(X) + ΔZ. Then
‖X⁺ - X̃⁺‖ = ‖D - V‖ is 0, or at most (1 - a/D̄)D̄ + Δ√d = cz + s + g - a, which is the next z. At the
end z = 0, so that the coupled run ends at X. The shift V depends on the past alone. Given its past
X̃⁺ is a mixture over V of shifted laws, e^{(q-1)R_q} is jointly convex, so a step adds at most
qa²/(2ς²), and the chain rule adds up the steps. Both runs start from one law, free of the record.

Clamping every coordinate of θ to a public box keeps the lattice and is 1-Lipschitz, so it may be a
part of T. Steps after a deletion have s = 0, and still the gap g: two states that are close may be
rounded apart.

The rounding alone leaves a floor, μ_f² = (g/ς)² (1+c)/(1-c) after many steps. The least Σa²/ς² is a
squared norm of the gaps (the solutions for two sequences of gaps add up to one for their sum), so
that μ ≤ μ_exact + μ_f with the μ_exact of real numbers: `counted`.
"""

import math

import numpy as np

from dd_jax import checks
from dd_jax.guarantees import floats, schedules

# The noise that is drawn, P(z) ∝ 2^-(z/k)² with k a power of two, has ς = kΔ · DEVIATION.
DEVIATION = 1 / math.sqrt(2 * math.log(2))


def rounding_gap(spacing, dim, step_size, gradient_error):
    """g = 2Δ√d + 2ηE, what rounding adds to the gap of every step.

    Args:
        spacing: Δ. dim: d. step_size: η.
        gradient_error: E; before rounding, what is computed is within ηE of the step.
    """
    spacing = checks.finite_nonnegative("spacing", spacing)
    error = checks.finite_nonnegative("gradient_error", gradient_error)
    step = checks.positive("step_size", step_size)
    return floats.plain(2 * spacing * np.sqrt(checks.count("dim", dim)) + 2 * step * error)


def floor(gap, deviation, step_size, l2, steps=np.inf):
    """μ_f of K steps that differ by nothing but rounding.

    μ_f² = (g/ς)² (1+c)/(1-c) · (1-c^K)/(1+c^K)

    Args:
        gap: g. deviation: ς, the parameter of one step's noise. step_size, l2: η and λ. steps: K.
    """
    share = checks.finite_nonnegative("gap", gap) / checks.positive("deviation", deviation)
    steps = checks.steps("steps", steps)
    return floats.plain(np.sqrt(schedules.cyclic(step_size, l2, 1, steps, 0.0, share, share)))


def counted(order, eps, floor):
    """The bound of the program: ε = (q/2)(√(2ε/q) + μ_f)², where ε is that of real numbers.

    Guarantee: R_q ≤ ε for every order q, both ways; ε is linear in the order (zCDP with ρ = ε/q).
    Assumes: an ε linear in the order, from `schedules.pooled` or a case of it, over the steps that
    the floor counts.
    """
    order, eps = checks.order(order), checks.nonnegative("eps", eps)
    mu = np.sqrt(2 / order) * np.sqrt(eps) + checks.nonnegative("floor", floor)
    return floats.plain(floats.product(0.5, order, mu, mu))
