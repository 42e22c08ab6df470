"""Parts of a benchmark that are processes of their own: Python modules that speak lines and end with their stdin."""

import os
import select
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import IO, Self

ROOT = Path(__file__).parents[1]
START_LIMIT_S = 60.0
GRACE_S = 30.0


def environment() -> dict[str, str]:
    """What our processes are started with: proxies of the environment have no say on loopback, and bytecode is kept, as
    it is for a user: otherwise every start compiles what changed."""
    kept = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    return kept


class Helper:
    """A Python module that runs as a child and speaks lines."""

    def __init__(self, module: str, *arguments: str) -> None:
        self._module = module
        self._arguments = arguments

    def __enter__(self) -> Self:
        argv = [sys.executable, "-m", self._module, *self._arguments]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(argv, cwd=ROOT, env=environment(), stdin=pipe, stdout=pipe)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._pipe(self._process.stdin).close()
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._pipe(self._process.stdout).close()

    def say(self, line: bytes) -> None:
        stream = self._pipe(self._process.stdin)
        stream.write(line + b"\n")
        stream.flush()

    def hear(self, limit_s: float) -> bytes:
        """The next line. Raises TimeoutError, or ChildProcessError where the helper has ended."""
        stream = self._pipe(self._process.stdout)
        # One line per answer, so nothing of it waits in the buffer while the pipe is empty.
        if not select.select([stream], [], [], limit_s)[0]:
            raise TimeoutError(f"{self._module} has said nothing for {limit_s:.0f} s")
        line = stream.readline()
        if not line:
            raise ChildProcessError(f"{self._module} has ended")
        return line

    @staticmethod
    def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
        assert stream is not None
        return stream
