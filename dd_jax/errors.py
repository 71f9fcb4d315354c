"""Errors of the library: bad input, missing data, a false certificate, a lost process."""


class InputError(ValueError):
    """Input that cannot be used: the message names the value and the remedy."""


class MissingData(InputError):
    """A data set that was not downloaded, or not completely, and can be fetched.

    Attributes:
        command: the command that downloads it.
    """

    def __init__(self, message: str, command: str):
        super().__init__(message)
        self.command = command


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


class ProcessLost(RuntimeError):
    """Another process of the same job ended or stopped answering, so this one cannot go on."""
