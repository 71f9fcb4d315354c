"""An interrupt: one line, nothing half written is left, and then death by the signal itself.

Python runs handlers between two instructions of its main thread: not while XLA compiles, and its
KeyboardInterrupt then appears anywhere, also in callbacks that drop it. So there is no handler.
The signals are blocked in all threads, and one thread waits for them and does the whole ending
while the others go on. By default both signals kill, which is what the shell then sees.
"""

import os
import signal
import sys
import threading

_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
# Whoever has it decides how this process ends; it is never given back.
_END = threading.Lock()


def watch(label: str, kept: str = "") -> None:
    """End well from now on. Threads must be started later: they inherit the blocked signals.

    Args:
        label: what the command calls itself. kept: what is not lost, and how to go on.
    """
    numbers = {n for n in _WORDS if signal.getsignal(n) != signal.SIG_IGN}  # such as under nohup
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    for number in numbers:
        signal.signal(number, signal.SIG_DFL)
    waiting = threading.Thread(target=_end, args=(numbers, label, kept), daemon=True)
    if numbers:
        waiting.start()


def leave(status: int) -> None:
    """End with this status, unless a signal is ending this process already.

    The interpreter's own last steps are left out: they would not hear a signal, and the libraries
    of JAX have crashed in them.
    """
    import atexit

    atexit._run_exitfuncs()  # temporary folders of other libraries
    _END.acquire()
    os._exit(status)


def _end(numbers: set[signal.Signals], label: str, kept: str) -> None:
    number = signal.Signals(signal.sigwait(numbers))
    _END.acquire()
    try:
        stop()
        line = f"{label}: {_WORDS[number]}{'; ' * bool(kept)}{kept}.\n"
        if os.isatty(2):  # where the terminal shows ^C, or a bar that has hidden the cursor
            line = f"\r\x1b[2K\x1b[?25h{line}"
        os.write(2, line.encode())
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
        os._exit(128 + number)  # the first process of a container survives its own signals


def stop() -> None:
    """Stop writing and the programs that were started; other threads may wait for ever."""
    sys.setswitchinterval(1e-4)  # each of the steps below waits that long for the main thread
    # To import them here would take long; what is not imported has nothing to stop.
    steps = (("files", "stop_writing"), ("programs", "stop"), ("files", "remove_unfinished"))
    for module, name in steps:
        step = getattr(sys.modules.get(f"dd_jax.{module}"), name, None)
        if step is not None:
            step()
