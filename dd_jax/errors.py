"""The errors users meet: bad input, data not there, a false certificate, a process that is gone."""


class InputError(ValueError):
    """Input that cannot be used: the message names the value and the remedy."""


class MissingData(InputError):
    """A data set that was not downloaded, or not whole, and can be fetched.

    Attributes:
        command: what to run to get it.
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
    """A process of a job of several is gone, or no longer answers: this one cannot go on."""
