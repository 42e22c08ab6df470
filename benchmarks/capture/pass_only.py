"""The recorder's proxy alone: `python -m benchmarks.capture.pass_only --upstream URL --listen HOST:PORT`."""

import sys

from capture.options import drop_type_checks


def main(arguments: list[str]) -> None:
    """Pass traffic on until SIGTERM. Says `listening on HOST:PORT` on stderr."""
    drop_type_checks()
    from capture.proxy import run, run_proxy

    told = dict(zip(arguments[::2], arguments[1::2], strict=True))
    host, _, port = told["--listen"].rpartition(":")

    def on_listening(listen: str) -> None:
        sys.stderr.write(f"listening on {listen}\n")
        sys.stderr.flush()

    run(lambda: run_proxy(None, told["--upstream"], host, int(port), on_listening))


if __name__ == "__main__":
    main(sys.argv[1:])
