"""Exit statuses: 0 fine, 1 a claim was refuted, 2 bad input, 3 an error of the program itself, or a
process of a distributed job that is gone.
"""

import sys
import traceback
from collections.abc import Callable

from dd_jax.errors import InputError, ProcessLost

BAD_INPUT, INTERNAL_ERROR = 2, 3


def reported(label: str, work: Callable[[], int]) -> int:
    """The exit status of a piece of work; what went wrong is said in one line."""
    try:
        return work()
    except InputError as error:
        print(f"{label}: {error}", file=sys.stderr)
        return BAD_INPUT
    except BrokenPipeError:
        raise  # the reader went away, which is no bad input: see `dd_jax.cli.entry`
    except OSError as error:
        print(f"{label}: {error}; name another place.", file=sys.stderr)
        return BAD_INPUT
    except MemoryError:
        print(f"{label}: out of memory; ask for a smaller run.", file=sys.stderr)
        return BAD_INPUT
    except ProcessLost as error:
        print(
            f"{label}: {error}; start all processes again, whole chunks are kept.", file=sys.stderr
        )
        return INTERNAL_ERROR
    except Exception as error:
        # Status 1 would say that a claim was refuted.
        traceback.print_exc()
        print(
            f"{label}: internal error, no claim was judged: {type(error).__name__}: {error}",
            file=sys.stderr,
        )
        return INTERNAL_ERROR
