"""llama.cpp's HTTP server as a process of its own, with the few flags that the test's arms need.

xllamacpp holds the real server but no command line. usage: llamacpp_server.py MODEL --port N [--no-cache-prompt]
"""

import argparse
import os
import signal
import sys
import types

import xllamacpp


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--no-cache-prompt", action="store_true")
    arguments = parser.parse_args()

    settings = xllamacpp.CommonParams()
    settings.model.path = arguments.model
    settings.model_alias = {"small"}
    settings.n_ctx = 2 * 4096  # of both slots together
    settings.n_parallel = 2
    settings.cpuparams.n_threads = 1  # the client and the recorder need the other core
    settings.cpuparams_batch.n_threads = 1
    settings.port = arguments.port
    settings.endpoint_metrics = True
    settings.cache_prompt = not arguments.no_cache_prompt
    # Host memory for old prompts: without it only what a slot still holds is reused, and that is what we test.
    settings.cache_ram_mib = 0
    server = xllamacpp.Server(settings)
    sys.stderr.write(f"serving on {server.listening_address}\n")
    sys.stderr.flush()

    def leave(_number: int, _frame: types.FrameType | None) -> None:
        os._exit(0)  # the binding offers no orderly stop

    signal.signal(signal.SIGTERM, leave)
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
