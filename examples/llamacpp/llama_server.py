"""llama.cpp's HTTP server for a processor that cannot run the prebuilt `llama-server`: the same flags, by xllamacpp.

xllamacpp holds the real server, compiled for any x86-64 processor, and no command line. This is the command line, for
the flags that the ladder and the tests use. Flags have llama-server's names.
"""

import argparse
import os
import signal
import sys
import types

import xllamacpp

SPECULATION = xllamacpp.common_speculative_type
KINDS = {
    "none": SPECULATION.COMMON_SPECULATIVE_TYPE_NONE,
    "draft-simple": SPECULATION.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE,
    "ngram-simple": SPECULATION.COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE,
    "ngram-mod": SPECULATION.COMMON_SPECULATIVE_TYPE_NGRAM_MOD,
}


def read_flags() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--alias", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("-c", "--ctx-size", type=int, default=8192, help="tokens of all slots together")
    parser.add_argument("-np", "--parallel", type=int, default=2)
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("--metrics", action="store_true")
    parser.add_argument("--no-ui", action="store_true")
    parser.add_argument("-kvu", "--kv-unified", action="store_true", help="all slots share one KV cache")
    parser.add_argument("--cache-ram", type=int, default=8192, help="MiB of host memory for old prompts")
    parser.add_argument("--no-cache-prompt", action="store_true")
    parser.add_argument("--spec-type", choices=KINDS, default="none")
    parser.add_argument("-md", "--model-draft", default="")
    parser.add_argument("--spec-draft-n-max", type=int, default=4)
    parser.add_argument("--spec-ngram-simple-size-n", type=int, default=12)
    parser.add_argument("--spec-ngram-simple-size-m", type=int, default=48)
    return parser.parse_args()


def settings_of(flags: argparse.Namespace) -> "xllamacpp.CommonParams":
    settings = xllamacpp.CommonParams()
    settings.model.path = flags.model
    settings.model_alias = {flags.alias}
    settings.hostnames = [flags.host]
    settings.port = flags.port
    settings.n_ctx = flags.ctx_size
    settings.n_parallel = flags.parallel
    settings.kv_unified = flags.kv_unified
    settings.endpoint_metrics = flags.metrics
    settings.ui = not flags.no_ui
    settings.cache_ram_mib = flags.cache_ram
    settings.cache_prompt = not flags.no_cache_prompt
    speculation = settings.speculative
    speculation.types = [KINDS[flags.spec_type]]
    speculation.draft.mparams.path = flags.model_draft
    speculation.draft.n_max = flags.spec_draft_n_max
    speculation.ngram_simple.size_n = flags.spec_ngram_simple_size_n
    speculation.ngram_simple.size_m = flags.spec_ngram_simple_size_m
    for threads in (settings.cpuparams, settings.cpuparams_batch):
        threads.n_threads = flags.threads
    for threads in (speculation.draft.cpuparams, speculation.draft.cpuparams_batch):
        threads.n_threads = flags.threads
    return settings


def leave(_number: int, _frame: types.FrameType | None) -> None:
    os._exit(0)  # the binding offers no orderly stop


def main() -> None:
    signal.signal(signal.SIGTERM, leave)
    server = xllamacpp.Server(settings_of(read_flags()))
    sys.stderr.write(f"serving on {server.listening_address}\n")
    sys.stderr.flush()
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
