"""The two errors users meet: bad input, and a certificate that would be false."""


class InputError(ValueError):
    """Input that cannot be used: the message names the value and the remedy."""


class CertificateRefused(InputError):
    """A guarantee whose conditions fail: the message names the condition and what satisfies it."""
