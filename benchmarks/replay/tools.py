"""How each peer is started against the engine, and where it keeps its own per-request figures.

Requests are matched one by one: by the request id that AIPerf and vLLM send, by the response id that GuideLLM and
inference-perf keep.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.replay.jobs import request_of
from benchmarks.replay.pairs import Reading
from benchmarks.replay.peers import AIPERF, GUIDELLM, INFERENCE_PERF, VLLM, Peers
from benchmarks.replay.schedule import MODEL, Truth

MS, S = 1e6, 1e9
SERVE = Path(__file__).with_name("serve_script.py")
PREFIX = "x-"


class Load(NamedTuple):
    """What a tool plays in one start: at each level of concurrency so many requests; `folder` is new and empty."""

    folder: Path
    port: int
    requests: int
    levels: tuple[int, ...]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def prompts(self, count: int) -> list[str]:
        return [request_of(number)["messages"][0]["content"] for number in range(count)]


class Tool(NamedTuple):
    """`prepare` writes the inputs and gives the arguments; `read` finds the figures, by request or response id.

    One that takes several levels plays them one after another, with the same number of requests each.
    """

    help: tuple[str, ...]
    by_request_id: bool
    many_levels: bool
    prepare: Callable[[Load, Peers], list[str]]
    read: Callable[[Path], Iterator[tuple[str, Reading]]]

    def key(self, truth: Truth) -> str | None:
        return truth.request_id if self.by_request_id else truth.id


def _prepare_aiperf(load: Load, peers: Peers) -> list[str]:
    bodies = load.folder / "bodies.jsonl"
    bodies.write_text("".join(json.dumps(request_of(number)) + "\n" for number in range(load.requests)))
    return [
        *("profile", "-m", MODEL, "--url", load.url, "--endpoint-type", "chat", "--streaming"),
        *("--tokenizer", str(peers.tokenizer), "--use-server-token-count"),
        *("--input-file", str(bodies), "--custom-dataset-type", "raw_payload"),
        *("--concurrency", str(load.levels[0]), "--request-count", str(load.requests)),
        *("--ui", "none", "--no-gpu-telemetry", "--no-server-metrics"),
        *("--output-artifact-dir", str(load.folder / "out")),
    ]


def _read_aiperf(folder: Path) -> Iterator[tuple[str, Reading]]:
    for line in (folder / "out" / "profile_export.jsonl").read_text().splitlines():
        record = json.loads(line)
        found = {name: metric["value"] for name, metric in record["metrics"].items()}
        gaps = found.get("inter_chunk_latency")
        yield (
            record["metadata"]["x_request_id"],
            Reading(
                _scaled(found.get("time_to_first_token"), MS),
                None if gaps is None else [gap * MS for gap in gaps],
                _scaled(found.get("inter_token_latency"), MS),
                _whole(found.get("output_sequence_length")),
            ),
        )


def _prepare_vllm(load: Load, peers: Peers) -> list[str]:
    return [
        *(str(SERVE), str(peers.vllm_source), "--backend", "openai-chat", "--base-url", load.url),
        *("--endpoint", "/v1/chat/completions", "--model", MODEL, "--skip-tokenizer-init"),
        *("--num-prompts", str(load.requests), "--max-concurrency", str(load.levels[0])),
        *("--request-id-prefix", PREFIX, "--save-result", "--save-detailed"),
        *("--result-filename", str(load.folder / "result.json")),
    ]


def _read_vllm(folder: Path) -> Iterator[tuple[str, Reading]]:
    found = json.loads((folder / "result.json").read_text())
    columns = zip(found["ttfts"], found["itls"], found["output_lens"], strict=True)
    for number, (ttft_s, gaps_s, tokens) in enumerate(columns):
        per_token_s = sum(gaps_s) / len(gaps_s) if gaps_s else None  # what it calls ITL
        # It writes 0 where it saw no token.
        reading = Reading(
            _scaled(ttft_s or None, S), [gap * S for gap in gaps_s], _scaled(per_token_s, S), _whole(tokens)
        )
        yield f"{PREFIX}{number}", reading


def _prepare_guidellm(load: Load, peers: Peers) -> list[str]:
    data = load.folder / "prompts.jsonl"
    data.write_text(
        "".join(json.dumps({"prompt": text}) + "\n" for text in load.prompts(load.requests * len(load.levels)))
    )
    return [
        *("run", "--backend", f"kind=openai_http,target={load.url},model={MODEL}"),
        *("--profile", json.dumps({"kind": "concurrent", "streams": load.levels})),
        *("--constraint", f"kind=max_requests,count={load.requests}"),
        *("--tokenizer", f"kind=hf_auto,model={peers.tokenizer}", "--data", f"kind=json_file,path={data}"),
        *("--output", f"kind=json,path={load.folder / 'out.json'}", "--disable-progress"),
    ]


def _read_guidellm(folder: Path) -> Iterator[tuple[str, Reading]]:
    for benchmark in json.loads((folder / "out.json").read_text())["benchmarks"]:
        for request in benchmark["requests"]["successful"]:
            yield (
                request["response_id"],
                Reading(
                    _scaled(request.get("time_to_first_token_ms"), MS),
                    None,
                    _scaled(request.get("inter_token_latency_ms"), MS),
                    _whole(request.get("output_tokens")),
                ),
            )


def _prepare_inference_perf(load: Load, peers: Peers) -> list[str]:
    chats = load.folder / "chats.json"
    turns = [
        [{"from": "human", "value": text}, {"from": "gpt", "value": "hi " * 20}]
        for text in load.prompts(
            max(load.requests * len(load.levels), 100) + 10
        )  # it drops some, and wants more than it sends
    ]
    chats.write_text(json.dumps([{"conversations": turn} for turn in turns]))
    stages = [{"num_requests": load.requests, "concurrency_level": level} for level in load.levels]
    config = {
        "api": {"type": "chat", "streaming": True},
        "data": {"type": "shareGPT", "path": str(chats)},
        "load": {"type": "concurrent", "num_workers": 1, "stages": stages},
        "server": {"type": "vllm", "model_name": MODEL, "base_url": load.url, "ignore_eos": True},
        "tokenizer": {"pretrained_model_name_or_path": str(peers.tokenizer)},
        "report": {"request_lifecycle": {"summary": True, "per_stage": True, "per_request": True}},
        "storage": {"local_storage": {"path": str(load.folder / "out")}},
    }
    file = load.folder / "config.yml"
    file.write_text(json.dumps(config))  # JSON is YAML
    return ["-c", str(file)]


def _read_inference_perf(folder: Path) -> Iterator[tuple[str, Reading]]:
    (file,) = (folder / "out").rglob("per_request_lifecycle_metrics.json")
    for request in json.loads(file.read_text()):
        name = re.search(r"chatcmpl-\d+", json.dumps(request))  # inside the response that it has kept
        if name is None:
            continue
        info: dict[str, Any] = request["info"].get("response_metrics") or request["info"]
        times_s = info.get("output_token_times") or info.get("chunk_times") or []
        tokens = _whole(info.get("output_tokens", request["info"].get("output_tokens")))
        if not times_s:
            yield name[0], Reading(tokens=tokens)
            continue
        gaps_ns = [(after - before) * S for before, after in pairwise(times_s)]
        mean_ns = sum(gaps_ns) / len(gaps_ns) if gaps_ns else None
        yield name[0], Reading((times_s[0] - request["start_time"]) * S, gaps_ns, mean_ns, tokens)


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else value * unit


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


TOOLS: Mapping[str, Tool] = {
    AIPERF: Tool(("--help",), True, False, _prepare_aiperf, _read_aiperf),
    GUIDELLM: Tool(("--help",), False, True, _prepare_guidellm, _read_guidellm),
    INFERENCE_PERF: Tool(("--help",), False, True, _prepare_inference_perf, _read_inference_perf),
    VLLM: Tool((str(SERVE), "{source}", "--help"), True, False, _prepare_vllm, _read_vllm),
}
