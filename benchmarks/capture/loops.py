"""How the engine and the client run: on uvloop where it is installed, and before others where that is allowed."""

import asyncio
import os
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec

NICE = -10
HAS_UVLOOP = find_spec("uvloop") is not None


def new_loop() -> asyncio.AbstractEventLoop:
    if HAS_UVLOOP:
        loop: asyncio.AbstractEventLoop = import_module("uvloop").new_event_loop()
        return loop
    return asyncio.new_event_loop()


def go_first() -> None:
    """Wait less for a core than the proxies do: a late engine or client would count against them. Needs privilege."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
