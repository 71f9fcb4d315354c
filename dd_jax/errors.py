"""The two errors users meet: bad input, and a certificate that would be false."""


class InputError(ValueError):
    """Input that cannot be used: the message names the value and the remedy."""


class EditRefused(InputError):
    """An edit that was not served; nothing before it is lost.

    Attributes:
        curator: the curator's state after the last request that was served.
        transcript: what happened until then.
    """

    def __init__(self, message: str, curator, transcript):
        super().__init__(message)
        self.curator = curator
        self.transcript = transcript


class CertificateRefused(InputError):
    """A guarantee whose conditions fail: the message names the condition and what satisfies it."""
