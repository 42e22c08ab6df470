"""A name and a seed to a table of requests with their bodies. The same seed and version give the same bytes."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import polars as pl

from profiles.builtin.draws import Draw
from profiles.builtin.lengths import HUNGARIAN, chars_for, count_prompt
from profiles.builtin.workloads import BUILTINS, WORKLOADS, Builtin, Task, Workload
from profiles.dialects import CHAT
from profiles.errors import UsageError
from profiles.files import encode
from profiles.requests import describe
from profiles.shape import NOMINAL_STEP_NS, stratify
from profiles.table import facts_row

# Raised whenever the same seed gives other bytes.
GENERATOR: Final = 1
PATH: Final = "/v1/chat/completions"
REQUESTS: Final = 24
# An answer of fewer tokens would be a label, and has no decode rate.
LEAST_OUTPUT_TOKENS: Final = 24
_TRIES: Final = 200


@dataclass(frozen=True, slots=True)
class Generated:
    """Requests in the order in which they are sent, one row and one body each. `answers` says what is right."""

    requests: pl.DataFrame
    bodies: list[bytes]
    answers: list[str | None]
    source: dict[str, Any]


def generate(
    name: str, *, seed: int = 0, scale: float = 1.0, requests: int | None = None, model: str = "default"
) -> Generated:
    """The built-in profile `name`. `requests` counts those of each workload of `single-stream`, and all those of a mix.

    `scale` multiplies the lengths of prompts and answers, down to what still makes sense. Nothing ran, so there are no
    ends and no windows: `arrival_ns` is an order, one second apart.

    Raises UsageError for a name that is not in `BUILTINS`, a scale outside 0 … 1, or more requests than differ.
    """
    if name not in BUILTINS:
        raise UsageError(f"there is no built-in profile {name}", f"There are {', '.join(BUILTINS)}.")
    if not 0 < scale <= 1:
        raise UsageError(f"a scale lies above 0 and is at most 1, not {scale:g}", "Write --scale 0.05, for example.")
    if requests is not None and requests < 1:
        raise UsageError(f"at least one request is needed, not {requests}", "Write --requests 24, for example.")
    builtin = BUILTINS[name]
    order, counts = _order(builtin, requests, seed)
    written = {each: iter(_write(WORKLOADS[each], count, seed, scale, model)) for each, count in counts.items()}
    rows, bodies, answers = [], [], []
    schemas: dict[bytes, int] = {}
    for at, workload in enumerate(order):
        request = next(written[workload])
        schema = None
        if request.task.schema is not None:
            schema = schemas.setdefault(encode(request.task.schema[1]), len(schemas))
        rows.append(_row(request, at, schema))
        bodies.append(request.body)
        answers.append(request.task.answer)
    source = {
        "kind": "builtin",
        "inputs": [],
        "name": name,
        "seed": seed,
        "scale": scale,
        "generator": GENERATOR,
        "shares": builtin.shares,
        "slots": builtin.slots,
        "notes": [
            "generated: nobody sent these requests, and nothing is known of any production",
            "tokens are estimated from characters",
            "arrivals are an order, one second apart, and no load",
        ],
    }
    return Generated(pl.DataFrame(rows, infer_schema_length=None), bodies, answers, source)


@dataclass(frozen=True, slots=True)
class _Request:
    workload: Workload
    task: Task
    body: bytes
    prompt_tokens: int
    output_tokens: int


def _order(builtin: Builtin, requests: int | None, seed: int) -> tuple[list[str], dict[str, int]]:
    """The workload of each request, and how many there are of each."""
    shares = builtin.shares
    if builtin.slots == 1:
        counts = dict.fromkeys(shares, REQUESTS if requests is None else requests)
        return [name for name, count in counts.items() for _ in range(count)], counts
    total = sum(shares.values())
    wanted = REQUESTS * total if requests is None else requests
    names = np.array([name for name in shares for _ in range(wanted)])
    weights = {name: share / total for name, share in shares.items()}
    sizes = np.ones(len(names), np.int64)
    # As many of each as there are requests in all, of which the first so many are taken: shares hold up to any point.
    drawn = stratify(names, sizes, weights, np.random.default_rng(seed))
    order = [str(names[at]) for at in drawn[:wanted]]
    return order, {name: order.count(name) for name in shares}


def _write(workload: Workload, count: int, seed: int, scale: float, model: str) -> list[_Request]:
    """So many requests of a workload, no two alike. They are the same in every profile that has them."""
    found: dict[str, _Request] = {}
    tries = 0
    while len(found) < count:
        tries += 1
        if tries > count + _TRIES:
            raise UsageError(
                f"{workload.name} has about {len(found)} different requests, not {count}", "Ask for fewer of them."
            )
        request = _request(workload, Draw(seed, workload.name, tries), scale, model)
        found.setdefault(request.task.text, request)
    return list(found.values())


def _request(workload: Workload, draw: Draw, scale: float, model: str) -> _Request:
    low, high = workload.spread
    length = draw.real(low, high)
    tokens = max(round(workload.prompt_tokens * scale), workload.least_tokens) * length
    task = workload.write(draw, lambda kind: chars_for(round(tokens), kind, workload.system))
    output_tokens = task.output_tokens
    if output_tokens is None:
        output_tokens = max(round(workload.output_tokens * scale * draw.real(0.75, 1.25)), LEAST_OUTPUT_TOKENS)
    messages = [{"role": "user", "content": task.text}]
    if workload.system:
        messages.insert(0, {"role": "system", "content": workload.system})
    asked: dict[str, Any] = {
        "model": model,
        "messages": messages,
        # A copied answer may come with other blanks: one that is cut is no JSON.
        "max_tokens": output_tokens * 2 if task.schema is not None else output_tokens,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if task.schema is not None:
        name, schema = task.schema
        asked["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": name, "strict": True, "schema": schema},
        }
    return _Request(workload, task, encode(asked), count_prompt(messages, task.kind), output_tokens)


def _row(request: _Request, at: int, schema: int | None) -> dict[str, Any]:
    row = facts_row(describe(request.body)) | {
        "arrival_ns": at * NOMINAL_STEP_NS,
        "endpoint": CHAT,
        "path": PATH,
        "prompt_tokens": request.prompt_tokens,
        "output_tokens": request.output_tokens,
        "token_source": "estimated",
        "schema": schema,
        "body": True,
    }
    if request.task.kind == HUNGARIAN:
        row["language"] = "hu"  # of a short question it cannot always be told from outside; who wrote it knows
    return row
