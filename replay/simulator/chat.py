"""OpenAI's chat and completions, as vLLM speaks them: the body that is read, the objects that are written.

Not simulated, and refused with a 400: more than one choice. Not simulated, and ignored as an unknown field would be:
logprobs, sampling parameters. Reasoning and tool calls come in the `shape` that a request asks for, or as they are
`composed` for it.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import orjson

from profiles.dialects import CHAT
from replay.simulator.shape import PLAIN, TEXT, Shape, delta_of, joined

_AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
# The vocabulary that token ids are drawn from; the id of a word is a hash of it.
VOCABULARY = 151_936


class Refused(Exception):
    """A request that gets an error answer: HTTP status, and the `error` object in vLLM's form."""

    def __init__(self, status: int, message: str, kind: str = "BadRequestError", param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.body = error_object(message, kind, param, status)


class Message(msgspec.Struct):
    role: str
    content: str | list[Any] | None = None


class StreamOptions(msgspec.Struct):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class Ask(msgspec.Struct):
    """The fields of a request body that change something here."""

    model: str | None = None
    messages: list[Message] | None = None
    prompt: str | list[str | int] | None = None
    max_tokens: _AtLeastOne | None = None
    max_completion_tokens: _AtLeastOne | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    n: int | None = 1
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    tools: list[Any] | None = None
    # What is in these is looked at where it is used: an engine takes a body that says something odd there.
    tool_choice: Any = None
    parallel_tool_calls: Any = None
    response_format: Any = None
    stop: Any = None
    chat_template_kwargs: Any = None
    cache_salt: str | None = None
    return_token_ids: bool | None = False
    firsttoken_fault: str | None = None
    firsttoken_shape: str | None = None

    @property
    def limit(self) -> int | None:
        """The cap on output tokens that was asked for."""
        return self.max_completion_tokens or self.max_tokens


def read_ask(body: bytes, endpoint: str) -> Ask:
    """The request in a body. Raises Refused with what vLLM would answer."""
    try:
        ask = msgspec.json.decode(body, type=Ask)
    except msgspec.DecodeError as error:  # a ValidationError is one, and names the field
        raise Refused(400, str(error), "Bad Request", "body") from None
    wanted = "messages" if endpoint == CHAT else "prompt"
    if not getattr(ask, wanted):
        raise Refused(400, f"Field required: {wanted}", "Bad Request", f"body.{wanted}")
    if ask.n not in (None, 1):
        raise Refused(400, "This simulation answers with one choice; n must be 1.", param="n")
    if ask.min_tokens > (ask.limit or ask.min_tokens):
        raise Refused(400, f"min_tokens must be at most max_tokens={ask.limit}, got {ask.min_tokens}.")
    return ask


def messages_of(ask: Ask) -> list[tuple[str, str]]:
    """Role and text of each message. Parts that are not text count nothing."""
    return [(message.role, _text_of(message.content)) for message in ask.messages or ()]


def last_user_text(ask: Ask) -> str:
    """What the last message of a user says; the prompt of completions."""
    said = [_text_of(message.content) for message in ask.messages or () if message.role == "user"]
    return said[-1] if said else " ".join(bare_prompt_of(ask))


def bare_prompt_of(ask: Ask) -> list[str]:
    """The words of a completions prompt; a token id is a word."""
    parts = [ask.prompt] if isinstance(ask.prompt, str) else ask.prompt or ()
    return [word for part in parts for word in str(part).split()]


def _text_of(content: str | list[Any] | None) -> str:
    if not isinstance(content, list):
        return content or ""
    texts = (part.get("text") if isinstance(part, dict) else part for part in content)
    return "".join(text for text in texts if isinstance(text, str))


def error_object(message: str, kind: str, param: str | None, code: int) -> bytes:
    return orjson.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}})


def token_ids(words: Sequence[str]) -> list[int]:
    return [zlib.crc32(word.encode()) % VOCABULARY for word in words]


@dataclass(frozen=True, slots=True)
class Answer:
    """Writes one answer: whole, or as the chunks of a stream."""

    id: str
    endpoint: str
    model: str
    created_s: int
    prompt_tokens: int
    with_ids: bool = False
    usage_in_each: bool = False
    cached_in_usage: bool = True
    shape: Shape = PLAIN
    # What the tokens from one to another say, where the answer is `composed`: (start, stop, whole) to delta and kind.
    says: Callable[[int, int, bool], tuple[dict[str, Any], str]] | None = None
    calls_tools: bool = False
    wrong_finish: bool = False

    def role_chunk(self) -> bytes:
        """The first chunk of a chat: a role, and no token yet."""
        choice = {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
        return self._event([choice], 0, 0)

    def content_chunk(
        self, words: Sequence[str], produced: int, finish: str | None, cached_tokens: int
    ) -> tuple[bytes, str]:
        """The tokens of a chunk, and its kind. `produced` counts them too; the finish reason rides in the last one."""
        said, kind = self._said(words, produced - len(words), "delta")
        choice = {"index": 0, **said, "logprobs": None, "finish_reason": finish and self._finish(finish)}
        if finish is not None:
            choice["stop_reason"] = None
        if self.with_ids:
            choice["token_ids"] = token_ids(words)
        return self._event([choice], produced, cached_tokens), kind

    def usage_chunk(self, produced: int, cached_tokens: int) -> bytes:
        return self._event([], produced, cached_tokens, usage=True)

    def whole(self, words: Sequence[str], finish: str, cached_tokens: int) -> bytes:
        """The answer of a request that did not ask for a stream."""
        said, _ = self._said(words, 0, "message")
        if "message" in said:
            said["message"] = {"role": "assistant", "content": None} | said["message"]
        choice = {
            "index": 0,
            **said,
            "logprobs": None,
            "finish_reason": self._finish(finish),
            "stop_reason": None,
        }
        if self.with_ids:
            choice["token_ids"] = token_ids(words)
        kind = "chat.completion" if self.endpoint == CHAT else "text_completion"
        return orjson.dumps(self._head(kind, [choice]) | {"usage": self._usage(len(words), cached_tokens)})

    def _said(self, words: Sequence[str], start: int, field: str) -> tuple[dict[str, Any], str]:
        if self.endpoint != CHAT:
            return {"text": joined(words, start=start == 0)}, TEXT
        if self.says is not None:
            delta, kind = self.says(start, start + len(words), field == "message")
            return {field: delta}, kind
        delta, kind = delta_of(self.shape, words, start, f"call_{self.id[-16:]}")
        return {field: delta}, kind

    def _finish(self, finish: str) -> str:
        if self.wrong_finish:
            return "stop"
        return "tool_calls" if (self.shape.tools or self.calls_tools) and finish == "stop" else finish

    def _event(self, choices: list[Any], produced: int, cached_tokens: int, *, usage: bool = False) -> bytes:
        document = self._head("chat.completion.chunk" if self.endpoint == CHAT else "text_completion", choices)
        if usage or self.usage_in_each:
            document["usage"] = self._usage(produced, cached_tokens)
        return event(orjson.dumps(document))

    def _head(self, kind: str, choices: list[Any]) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created_s, "model": self.model, "choices": choices}

    def _usage(self, produced: int, cached_tokens: int) -> dict[str, Any]:
        usage: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + produced,
            "completion_tokens": produced,
        }
        return usage | {"prompt_tokens_details": {"cached_tokens": cached_tokens}} if self.cached_in_usage else usage


def event(data: bytes) -> bytes:
    """One server-sent event."""
    return b"data: " + data + b"\n\n"


DONE = event(b"[DONE]")
