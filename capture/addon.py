"""The recorder for a stock mitmdump, in the environment where firsttoken is installed:

    mitmdump -s capture/addon.py --mode reverse:http://127.0.0.1:8000 --listen-host 127.0.0.1 --listen-port 8100 \\
        --set firsttoken_out=CAPTURE [--set firsttoken_bodies=full]

`firsttoken record` does the same at about half the CPU per request.
"""

import logging
import sys
import time
from pathlib import Path

from mitmproxy import ctx
from mitmproxy.addonmanager import Loader

# mitmdump puts the folder of a script on the path, which is one too deep to find a checkout's packages.
sys.path.append(str(Path(__file__).resolve().parent.parent))

from capture.options import PROXY_OPTIONS, set_options
from capture.session import Session
from capture.settings import BODY_MODES, NONE, Settings
from profiles.errors import FirsttokenError


class MitmdumpShim:
    """Turns mitmdump's options into a session. Its sub-addons get every hook that it gets."""

    def __init__(self) -> None:
        self.addons: list[Session] = []

    def load(self, loader: Loader) -> None:
        loader.add_option("firsttoken_out", str, "", "Directory of the capture.")
        loader.add_option("firsttoken_bodies", str, NONE, "What is kept of request bodies.", choices=BODY_MODES)

    def running(self) -> None:
        options = ctx.options
        if not options.firsttoken_out:
            logging.error("firsttoken: say where to record with --set firsttoken_out=DIRECTORY")
            return
        # What the user set stays; mitmproxy's defaults make way for those that a recorder needs.
        set_options(options, PROXY_OPTIONS, keep_changed=True)
        settings = Settings(
            folder=str(Path(options.firsttoken_out).expanduser().absolute()),
            upstream=options.mode[0].removeprefix("reverse:"),
            listen=f"{options.listen_host}:{options.listen_port or 8080}",
            prefix=f"{time.time_ns():x}",
            bodies=options.firsttoken_bodies,
            quiet=True,
        )
        try:
            session = Session(settings, release_content=False)
        except FirsttokenError as problem:
            logging.error(f"firsttoken: {problem}")  # mitmdump stops at an error while it starts
        else:
            session.start(f"http://{settings.listen}")
            self.addons.append(session)

    def done(self) -> None:
        for session in self.addons:
            session.done()
            try:
                session.finish()
            except FirsttokenError as problem:
                logging.error(f"firsttoken: {problem}")


addons = [MitmdumpShim()]
