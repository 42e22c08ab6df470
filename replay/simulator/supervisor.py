"""A supervisor that starts a dead engine again, as systemd and Docker's restart policy do.

The leader stays, and with it its pid; what serves is a child of it. Same port, same log, a new boot.
"""

import os
import signal
from collections.abc import Callable
from typing import Final

# An engine that dies in every boot must not be started for ever.
MOST_RESTARTS: Final = 3
_STOPS: Final = (signal.SIGTERM, signal.SIGINT)


def supervise(serve: Callable[[int], int], say: Callable[[str], None]) -> int:
    """Run `serve(boot)` in a child, again and again until one ends by itself. Returns its exit code.

    `boot` counts from 0. SIGTERM and SIGINT are passed on to the child. Call it before an event loop exists.
    """
    child = 0
    stopping = False

    def pass_on(number: int, _frame: object) -> None:
        nonlocal stopping
        stopping = True
        if child:
            os.kill(child, number)

    for number in _STOPS:
        signal.signal(number, pass_on)
    boot = 0
    while True:
        # Held back meanwhile: a signal must not find a child that nobody knows, or one with the parent's ear.
        signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
        child = os.fork()
        if child == 0:
            for number in _STOPS:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
            os._exit(serve(boot))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        child = 0
        if code == 0 or stopping or boot == MOST_RESTARTS:
            return code if code >= 0 else 128 - code
        boot += 1
        say(f"(Supervisor pid={os.getpid()}) engine exited with code {code}, restarting it (restart {boot})")
