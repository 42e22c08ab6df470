"""What one event of an LLM answer means, in each of the dialects that engines speak.

    chat          /v1/chat/completions   choices[].delta: content, reasoning or reasoning_content, tool_calls
    completions   /v1/completions        choices[].text
    responses     /v1/responses          named events, usage inside response.completed, no [DONE]
    messages      /v1/messages           Anthropic's events: content_block_delta, message_delta, message_stop
    embeddings    /v1/embeddings         one JSON body

An event carries *tokens* when it carries generated output of any kind: text, reasoning under either field name, the
name or the arguments of a tool call. A role, an empty string, a usage object and a comment are not tokens (DESIGN §4).
It carries *content* when a person would see text of it: reasoning and tool calls are tokens but not content.
"""

import re
from collections.abc import Callable
from typing import Any, Final, TypeGuard

import msgspec
import orjson

CHAT: Final = "chat"
COMPLETIONS: Final = "completions"
RESPONSES: Final = "responses"
MESSAGES: Final = "messages"
EMBEDDINGS: Final = "embeddings"
OTHER: Final = "other"

# snake_case, or a class of an error. A key or a name of a person has digits, capitals or a mark somewhere.
_PLAIN_WORD = re.compile(r"[a-z]{2,20}(?:_[a-z]{1,20}){0,5}|(?:[A-Z][a-z]{1,20}){1,4}(?:Error|Exception)|[A-Z]{3,5}")

_PATHS = {
    "/chat/completions": CHAT,
    "/completions": COMPLETIONS,
    "/responses": RESPONSES,
    "/messages": MESSAGES,
    "/embeddings": EMBEDDINGS,
}
# Other endpoints that engines have are told apart by their path alone. Longer endings stand first.
_ENDINGS = (
    *("/rerank", "/score", "/classify", "/audio/transcriptions", "/audio/translations", "/audio/speech"),
    *("/images/generations", "/infill", "/fim/completions", *_PATHS),
)


def endpoint_of(path: str) -> str:
    """The dialect that a request path speaks, by its end: gateways put prefixes in front. `other` if none."""
    clean = path.partition("?")[0].rstrip("/")
    for ending, endpoint in _PATHS.items():
        if clean.endswith(ending):
            return endpoint
    return OTHER


def canonical_path(path: str) -> str:
    """The path of a known endpoint without what a gateway puts in front, which may hold a key or a name."""
    clean = path.partition("?")[0].rstrip("/")
    ending = next((ending for ending in _ENDINGS if clean.endswith(ending)), "")
    return f"/v1{ending}" if clean.endswith(f"/v1{ending}") else ending


class Usage(msgspec.Struct, frozen=True):
    """Token counts that the engine reported. None where it said nothing; cached tokens are part of the prompt."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    # Of speculative decoding, where the answer itself tells (llama.cpp, vLLM when asked): proposed, and those of them
    # that held; steps that had a draft, by how many of its tokens held, from 0 on (vLLM).
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    draft_steps: tuple[int, ...] | None = None


class Reading(msgspec.Struct, frozen=True):
    """What one event says. The texts are for those who asked to keep them; nothing here stores them."""

    tokens: bool = False
    content: str = ""
    reasoning: str = ""
    tool_text: str = ""
    token_count: int | None = None  # tokens in this event, where the engine tells (token ids)
    usage: Usage | None = None
    finish: str | None = None
    done: bool = False  # the marker after which nothing comes: [DONE], message_stop
    error: str | None = None  # type or code of an error, never its message: messages may quote the prompt
    error_code: int | None = None
    malformed: bool = False
    other: bool = False  # a whole answer that holds no generated text by its nature: an embedding, a list of models


NOTHING: Final = Reading()
DONE: Final = Reading(done=True)
MALFORMED: Final = Reading(malformed=True)


type Keep = Callable[[dict[str, Any]], None]


def read_event(data: bytes, name: str = "", keep: Keep | None = None) -> Reading:
    """What one data line of a stream means. Never raises: what is not JSON is `malformed`.

    `keep` is handed what was parsed, unless it is an error: for those who keep more than what it means (`answers`).
    """
    text = data.strip()
    if text == b"[DONE]":
        return DONE
    if not text:
        return NOTHING
    event = _load(text)
    if isinstance(event, Reading):
        return event
    if keep is not None:
        keep(event)
    kind = event.get("type")
    if kind == "error":  # Responses puts code and message beside the type, without an `error` object
        return _read_error({"code": event.get("code")})
    if isinstance(kind, str):
        if kind.startswith("response."):
            return _read_responses_event(kind, event)
        if kind in _ANTHROPIC_EVENTS or name in _ANTHROPIC_EVENTS:
            return _read_messages_event(kind, event)
    return _read_choices(event)


def read_body(body: bytes, keep: Keep | None = None) -> Reading:
    """What a whole JSON answer means (not a stream). Tokens, text, usage and finish in one reading. As `read_event`."""
    answer = _load(body)
    if isinstance(answer, Reading):
        return answer
    if keep is not None:
        keep(answer)
    if answer.get("object") == "response":
        return _read_responses_answer(answer)
    if answer.get("type") == "message":
        return _read_messages_answer(answer)
    if not isinstance(answer.get("choices"), list):
        return Reading(usage=read_usage(answer.get("usage")), other=True)
    return _read_choices(answer)


def _load(data: bytes) -> dict[str, Any] | Reading:
    """The JSON object, or what there is to say instead of it: it is malformed, or it is an error."""
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError:
        return MALFORMED
    if not isinstance(document, dict):
        return MALFORMED
    if document.get("error"):
        return _read_error(document["error"])
    return document


def _read_error(error: Any, usage: Usage | None = None) -> Reading:
    code = error.get("code") if isinstance(error, dict) else None
    counts = isinstance(code, int) and not isinstance(code, bool) and 0 < code < 10_000
    return Reading(usage=usage, error=error_kind(error), error_code=code if counts else None)


def error_kind(error: Any) -> str:
    """A short word for an error object: its type, else its code. Never its message."""
    if isinstance(error, dict):
        for key in ("type", "code", "status"):
            value = error.get(key)
            if value not in (None, ""):
                return plain_word(value, "error")
    return "error"


def plain_word(value: Any, other: str) -> str:
    """A reason or a kind as engines name them, in words or as a number; `other` for whatever else stands there.

    These are the only texts of an answer that are kept, and an engine may put anything there, what it was asked
    included.
    """
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10_000:
        return str(value)
    return value if isinstance(value, str) and _PLAIN_WORD.fullmatch(value) else other


def read_usage(usage: Any) -> Usage | None:
    """Token counts of a usage object in OpenAI's or Anthropic's words."""
    if not isinstance(usage, dict):
        return None
    prompt = _count(usage, "prompt_tokens", "input_tokens")
    output = _count(usage, "completion_tokens", "output_tokens")
    details = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    cached = _count(details, "cached_tokens") if isinstance(details, dict) else None
    if cached is None:
        cached = _count(usage, "cache_read_input_tokens")
    spent = usage.get("completion_tokens_details") or usage.get("output_tokens_details") or {}
    reasoning = _count(spent, "reasoning_tokens") if isinstance(spent, dict) else None
    if prompt is None and output is None and cached is None:
        return None
    return Usage(prompt, output, cached, reasoning)


def _read_timings(usage: Usage | None, timings: Any) -> Usage | None:
    """Usage with what llama.cpp tells beside it: drafts, and the counts themselves where usage was not asked for."""
    if not isinstance(timings, dict):
        return usage
    known = usage or Usage()
    cached, computed = _count(timings, "cache_n"), _count(timings, "prompt_n")
    whole = None if cached is None or computed is None else cached + computed
    drafted = _count(timings, "draft_n")
    return Usage(
        whole if known.prompt_tokens is None else known.prompt_tokens,
        _count(timings, "predicted_n") if known.output_tokens is None else known.output_tokens,
        cached if known.cached_tokens is None else known.cached_tokens,
        known.reasoning_tokens,
        drafted,
        None if drafted is None else _count(timings, "draft_n_accepted"),
    )


def _read_metrics(usage: Usage | None, metrics: Any) -> Usage | None:
    """Usage with what vLLM tells of this request's drafts (--per-request-spec-decode-metrics)."""
    told = _mapping(_mapping(metrics).get("speculative_decoding"))
    drafted = _count(told, "num_draft_tokens")
    if drafted is None:
        return usage
    steps = told.get("acceptance_histogram")
    counted = tuple(steps) if isinstance(steps, list) and all(_is_count(number) for number in steps) else None
    return msgspec.structs.replace(
        usage or Usage(),
        draft_tokens=drafted,
        accepted_tokens=_count(told, "num_accepted_draft_tokens"),
        draft_steps=counted,
    )


def _count(mapping: dict[str, Any], *keys: str) -> int | None:
    for key in keys:
        value = mapping.get(key)
        if _is_count(value):
            return int(value)
    return None


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _read_choices(event: dict[str, Any]) -> Reading:
    """Chat and completions, streamed (`delta`) or whole (`message`)."""
    content = reasoning = tool_text = ""
    finish: str | None = None
    token_count: int | None = None
    for choice in _mappings(event.get("choices")):
        said = _mapping(choice.get("delta") or choice.get("message"))
        content += _text(said.get("content")) + _text(said.get("refusal"))
        # vLLM says `reasoning`, older vLLM, SGLang and llama.cpp say `reasoning_content`; some say both.
        reasoning += _text(said.get("reasoning")) or _text(said.get("reasoning_content"))
        tool_text += _read_tool_calls(said)
        content += _text(choice.get("text"))
        if choice.get("finish_reason"):  # some engines send "" in every chunk
            finish = plain_word(choice["finish_reason"], OTHER)
        ids = choice.get("token_ids")
        if isinstance(ids, list) and ids:
            token_count = (token_count or 0) + len(ids)
    return Reading(
        tokens=bool(content or reasoning or tool_text),
        content=content,
        reasoning=reasoning,
        tool_text=tool_text,
        token_count=token_count,
        usage=_read_metrics(_read_timings(read_usage(event.get("usage")), event.get("timings")), event.get("metrics")),
        finish=finish,
    )


def _read_tool_calls(said: dict[str, Any]) -> str:
    functions = [call.get("function") for call in _mappings(said.get("tool_calls"))]
    functions.append(said.get("function_call"))
    return "".join(_text(function.get("name")) + _text(function.get("arguments")) for function in _mappings(functions))


_RESPONSES_TEXT = ("response.output_text.delta", "response.refusal.delta")
_RESPONSES_REASONING = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")
_RESPONSES_TOOL = ("response.function_call_arguments.delta", "response.custom_tool_call_input.delta")


def _read_responses_event(kind: str, event: dict[str, Any]) -> Reading:
    delta = _text(event.get("delta"))
    if kind == "response.output_item.added":
        item = _mapping(event.get("item"))
        name = _text(item.get("name")) if item.get("type") == "function_call" else ""
        return Reading(tokens=bool(name), tool_text=name)
    if kind in _RESPONSES_TEXT:
        return Reading(tokens=bool(delta), content=delta)
    if kind in _RESPONSES_REASONING:
        return Reading(tokens=bool(delta), reasoning=delta)
    if kind in _RESPONSES_TOOL:
        return Reading(tokens=bool(delta), tool_text=delta)
    answer = _mapping(event.get("response"))
    usage = read_usage(answer.get("usage"))
    if kind == "response.completed":
        return Reading(usage=usage, finish="stop", done=True)
    if kind == "response.incomplete":
        reason = _mapping(answer.get("incomplete_details")).get("reason") or "length"
        return Reading(usage=usage, finish=plain_word(reason, OTHER), done=True)
    if kind == "response.failed":
        return _read_error(answer.get("error"), usage)
    return NOTHING


def _read_responses_answer(answer: dict[str, Any]) -> Reading:
    content = reasoning = tool_text = ""
    for item in _mappings(answer.get("output")):
        if item.get("type") == "function_call":
            tool_text += _text(item.get("name")) + _text(item.get("arguments"))
        for part in _mappings(item.get("content")):
            if item.get("type") == "reasoning":
                reasoning += _text(part.get("text"))
            else:
                content += _text(part.get("text"))
    status = answer.get("status")
    return Reading(
        tokens=bool(content or reasoning or tool_text),
        content=content,
        reasoning=reasoning,
        tool_text=tool_text,
        usage=read_usage(answer.get("usage")),
        finish="stop" if status == "completed" else plain_word(status, OTHER) if status else None,
    )


_ANTHROPIC_EVENTS = frozenset(
    "message_start content_block_start content_block_delta content_block_stop message_delta message_stop ping".split()
)


def _read_messages_event(kind: str, event: dict[str, Any]) -> Reading:
    if kind == "content_block_delta":
        delta = _mapping(event.get("delta"))
        content, reasoning = _text(delta.get("text")), _text(delta.get("thinking"))
        tool_text = _text(delta.get("partial_json"))
        return Reading(bool(content or reasoning or tool_text), content, reasoning, tool_text)
    if kind == "content_block_start":
        block = _mapping(event.get("content_block"))
        name = _text(block.get("name")) if block.get("type") == "tool_use" else ""
        text = _text(block.get("text"))
        return Reading(tokens=bool(name or text), content=text, tool_text=name)
    if kind == "message_start":
        return Reading(usage=read_usage(_mapping(event.get("message")).get("usage")))
    if kind == "message_delta":
        reason = _mapping(event.get("delta")).get("stop_reason")
        return Reading(usage=read_usage(event.get("usage")), finish=plain_word(reason, OTHER) if reason else None)
    if kind == "message_stop":
        return DONE
    return NOTHING


def _read_messages_answer(answer: dict[str, Any]) -> Reading:
    content = reasoning = tool_text = ""
    for block in _mappings(answer.get("content")):
        content += _text(block.get("text"))
        reasoning += _text(block.get("thinking"))
        if block.get("type") == "tool_use":
            tool_text += _text(block.get("name")) + orjson.dumps(block.get("input")).decode()
    reason = answer.get("stop_reason")
    return Reading(
        tokens=bool(content or reasoning or tool_text),
        content=content,
        reasoning=reasoning,
        tool_text=tool_text,
        usage=read_usage(answer.get("usage")),
        finish=plain_word(reason, OTHER) if reason else None,
    )
