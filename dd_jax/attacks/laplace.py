"""The best test between two sequences of independent Laplace releases, exactly.

Release j is Lap(0, 1) or, in the other world, Lap(u_j, 1), with u_j = ε · shift_j. By symmetry the
best test asks for the sign of the log-likelihood ratio Λ = Σ_j (|z_j| - |z_j - u_j|), and its
advantage is the total variation P₀[Λ < 0] - P₀[Λ > 0] = -E₀[sign Λ]. Host-side, float64, no JAX.
"""

import numpy as np

# Terms of the series: enough for an error below 1e-4 where Λ has atoms (few releases), less work
# where it has next to none (many).
MOST_TERMS = 50_000
FEWEST_TERMS = 1_000
WORK = 4_000_000


def optimal_advantage(shifts) -> float:
    """Total variation between Π Lap(0, 1) and Π Lap(u_j, 1).

    |Λ| ≤ S = Σ u_j, and on that range sign is a square wave of period 4S, so its Fourier series
    gives E₀[sign Λ] = (4/π) Σ_{k odd} Im χ(kπ/(2S)) / k with χ the characteristic function of Λ, a
    product of closed forms. One release gives 1 - e^{-u/2}.
    """
    shifts = np.abs(np.asarray(shifts, dtype=np.float64))
    shifts = shifts[shifts > 0]
    if shifts.size == 0:
        return 0.0
    values, counts = np.unique(shifts, return_counts=True)
    terms = int(np.clip(WORK / values.size, FEWEST_TERMS, MOST_TERMS))
    odd = 2 * np.arange(terms) + 1
    frequency = odd * np.pi / (2 * shifts.sum())
    product = np.ones(terms, dtype=np.complex128)
    for value, count in zip(values, counts, strict=True):
        product *= _characteristic(frequency, value) ** count
    return float(np.clip(-(4 / np.pi) * np.sum(product.imag / odd), 0.0, 1.0))


def _characteristic(frequency: np.ndarray, shift: float) -> np.ndarray:
    """E₀[exp(it(|z| - |z - u|))]: atoms 1/2 at -u and e^{-u}/2 at u, a density between them.

    The density's part is ∫_0^u e^{-z} e^{it(2z-u)} dz / 2 = (e^{itu-u} - e^{-itu}) / (4it - 2).
    """
    turn = np.exp(1j * frequency * shift)
    rate = 1j * frequency - 0.5
    shrink = np.exp(-shift)
    between = 0.25 * (turn * shrink - 1 / turn) / rate
    return 0.5 / turn + 0.5 * shrink * turn + between


def advantage_beyond(last_shift_index: int, epsilon: float) -> float:
    """The most that releases after number J can add when shift_j = 1/j: ε / (2√J).

    KL(Lap(0,1) ‖ Lap(u,1)) = e^{-u} - 1 + u ≤ u²/2, Σ_{j>J} 1/j² ≤ 1/J, then Pinsker; total
    variation of a product is at most the sum.
    """
    return float(epsilon / (2 * np.sqrt(last_shift_index)))
