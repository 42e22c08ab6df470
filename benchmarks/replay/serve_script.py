"""vLLM's own `benchmarks/serve.py` without vLLM and torch: `python serve_script.py FOLDER [its arguments]`.

FOLDER holds `vllm/benchmarks` out of the wheel. What sends, stamps and writes the results is vLLM's. What it imports
from the rest of vLLM has a stand-in here: data set, tokenizer, logger, three small functions. So its timing is its own;
its start, its memory and its `--help` are less than those of a real installation.
"""

import argparse
import dataclasses
import gc
import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclasses.dataclass
class SampleRequest:
    """The fields that serve.py reads of a request."""

    prompt: Any
    prompt_len: int
    expected_output_len: int
    request_id: str | None = None
    multi_modal_data: Any = None
    lora_request: Any = None
    timestamp: float | None = None
    request_overrides: dict[str, Any] | None = None
    chat_messages: list[Any] | None = None


def add_dataset_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--num-prompts", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dataset-name", default="numbered")
    parser.add_argument("--dataset-path")
    for name in ("trust-remote-code", "no-oversample", "skip-chat-template", "enable-multimodal-chat"):
        parser.add_argument(f"--{name}", action="store_true")


def get_samples(args: argparse.Namespace, tokenizer: object) -> list[SampleRequest]:
    numbers = range(args.num_prompts)
    texts = [f"prompt number {number}: say hi please, thanks" for number in numbers]
    return [SampleRequest(text, 32, 40, f"{args.request_id_prefix}{number}") for number, text in enumerate(texts)]


def freeze_gc_heap() -> None:
    gc.collect()
    gc.freeze()


STAND_INS: dict[str, dict[str, Any]] = {
    "vllm.logger": {"init_logger": logging.getLogger},
    "vllm.tokenizers": {"TokenizerLike": object, "get_tokenizer": lambda *given, **named: None},
    "vllm.utils": {"__path__": []},
    "vllm.utils.argparse_utils": {"FlexibleArgumentParser": argparse.ArgumentParser},
    "vllm.utils.gc_utils": {"freeze_gc_heap": freeze_gc_heap},
    "vllm.utils.network_utils": {"join_host_port": "{}:{}".format},
    "vllm.benchmarks.datasets": {
        "SampleRequest": SampleRequest,
        "add_dataset_parser": add_dataset_parser,
        "get_samples": get_samples,
    },
}


def main() -> None:
    folder = Path(sys.argv.pop(1))
    for name, contents in {"vllm": {"__path__": [str(folder / "vllm")]}, **STAND_INS}.items():
        stand_in = sys.modules[name] = ModuleType(name)
        vars(stand_in).update(contents)
    from vllm.benchmarks import serve  # type: ignore[import-not-found]

    parser = argparse.ArgumentParser()
    serve.add_cli_args(parser)
    serve.main(parser.parse_args())


if __name__ == "__main__":
    main()
