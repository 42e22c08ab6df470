"""Headless Chromium for tests, driven over its debugging pipe. No network, no driver, nothing to install.

The pipe carries JSON messages that end with a zero byte: the browser reads file descriptor 3 and writes 4.
"""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_LONGEST_S: Final = 30.0
_QUIET = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-extensions",
    "--hide-scrollbars",
)
_ALONE = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage")


def find_chromium() -> str | None:
    """The path of a Chromium, or None."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab. `errors` holds what the console and the page reported, `requests` every address that it asked for."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._buffer = b""
        self._number = 0
        self._session: str | None = None
        self.errors: list[str] = []
        self.requests: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> Any:
        """Send a command and wait for its answer. Raises AssertionError where the browser refuses it."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return answer["result"]

    def open(self, path: Path, width: int, height: int = 900, **media: str) -> None:
        """Open a file at this width, and wait until it is loaded. `media` are features, such as a colour scheme."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        features = [{"name": name.replace("_", "-"), "value": value} for name, value in media.items()]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Page.navigate", url=path.as_uri())
        self.wait_for("document.readyState === 'complete'")

    def run(self, code: str) -> Any:
        """The value of an expression in the page, which may be a promise."""
        found = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, condition: str) -> None:
        """Wait until an expression is true."""
        limit = time.monotonic() + _LONGEST_S
        while not self.run(condition):
            assert time.monotonic() < limit, f"never true: {condition}"
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """One key, down and up."""
        codes = {"Tab": 9, "Enter": 13, "Escape": 27}
        for kind in ("rawKeyDown", "char", "keyUp") if key == "Enter" else ("rawKeyDown", "keyUp"):
            more = {"text": "\r"} if kind == "char" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key], **more)

    def point_at(self, x: float, y: float) -> None:
        """Move the mouse there."""
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path: Path) -> None:
        """The whole page, below the fold too."""
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=self._whole())
        path.write_bytes(base64.b64decode(shot["data"]))

    def _whole(self) -> dict[str, float]:
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], _LONGEST_S)
            assert ready, "the browser says nothing"
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser is gone"
            self._buffer += piece
        line, self._buffer = self._buffer.split(b"\0", 1)
        message: dict[str, Any] = json.loads(line)
        self._note(message.get("method"), message.get("params") or {})
        return message

    def _note(self, method: str | None, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(str(params["request"]["url"]))
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(str(params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(str(params["entry"]))


@contextmanager
def browser(folder: Path) -> Iterator[Page]:
    """A browser whose profile lies in `folder`. It has no network: each name resolves to nothing."""
    path = find_chromium()
    assert path is not None
    to_browser, ours_out = os.pipe()
    ours_in, from_browser = os.pipe()

    def place() -> None:
        # Copies first: either end may itself be 3 or 4.
        read, write = os.dup(to_browser), os.dup(from_browser)
        os.dup2(read, 3)
        os.dup2(write, 4)

    arguments = [
        path,
        *_QUIET,
        *_ALONE,
        "--host-resolver-rules=MAP * ~NOTFOUND",
        "--remote-debugging-pipe",
        f"--user-data-dir={folder}",
        "about:blank",
    ]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(
        arguments, stdin=quiet, stdout=quiet, stderr=quiet, preexec_fn=place, close_fds=False, start_new_session=True
    )
    os.close(to_browser)
    os.close(from_browser)
    try:
        yield Page(ours_in, ours_out)
    finally:
        os.close(ours_out)  # a browser without its pipe leaves
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        os.close(ours_in)
