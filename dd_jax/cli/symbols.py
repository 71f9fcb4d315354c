"""What the letters in help texts, headings and legends stand for: the only place that says it."""

import re
import textwrap

SYMBOLS = {
    "λ": "constant of the regulariser (λ/2)‖θ‖²",
    "θ": "the parameters of a model",
    "η": "step size",
    "σ²": "variance of the noise: a step adds N(0, 2ησ²)",
    "β": "smoothness: how fast the gradient of one record's loss can change",
    "L": "Lipschitz constant: the longest gradient of one record's loss",
    "b": "bound on the absolute loss of one record",
    "κ": "condition number (λ + β)/λ: large for a weak regulariser",
    "q": "order of a Rényi divergence",
    "ε": "size of a divergence, or of (ε, δ): small where two laws are alike",
    "δ": "probability of (ε, δ) that ε does not cover",
    "ε_dp": "budget for records that stay: what one release may tell of a record",
    "ε_dd": "budget for deleted records: what may remain of one of them",
    "μ": "Gaussian DP: two laws are as alike as N(0, 1) and N(μ, 1)",
    "n": "number of records",
    "d": "number of features, or of parameters",
    "r": "records that one request deletes or replaces",
    "p": "releases that the requester saw before the deletion",
    "m": "batches of records that take turns, one for each step",
    "K_L": "steps of learning",
    "K_U": "steps of one deletion",
    "k": "records a group has",
    "γ": "width of the smoothed hinge's corner",
    "V": "norm of the network's fixed output weights",
    "S": "seeds: models that are trained at the same time",
}
WIDTH = 80
# Greek letters with what belongs to them, K_L and K_U, and single letters that are no words.
_SYMBOL = re.compile(
    r"[α-ωϑϕ](?:_[a-z]{2}\b|²)?|\bK_[A-Z]\b|(?<![\w'’‖.-])[b-hj-zB-HJ-Z](?![\w'’.:-]\w|\w|')"
)


def named_in(text: str) -> list[str]:
    """The symbols that a text uses, in the order of the list."""
    found = {_known(symbol) for symbol in _SYMBOL.findall(text)}
    return [symbol for symbol in SYMBOLS if symbol in found]


def _needed_for(text: str) -> list[str]:
    """The symbols that a text uses, and those that their explanations use."""
    found: list[str] = []
    while found != (more := named_in(" ".join([text, *(SYMBOLS[s] for s in found)]))):
        found = more
    return found


def _known(symbol: str) -> str:
    """σ² is a symbol of its own; other squares are those of their letter."""
    return symbol if symbol in SYMBOLS else symbol.removesuffix("²")


def explained(text: str) -> list[str]:
    """A line, or several, for each symbol that a text or one of these lines uses: what it means."""
    return [
        line
        for symbol in _needed_for(text)
        for line in textwrap.wrap(
            f"{symbol}: {SYMBOLS[symbol]}", WIDTH, initial_indent="  ", subsequent_indent="    "
        )
    ]
