"""The body that is sent: the recorded bytes, with the declared overrides spliced in. Pure.

Only the values that an override names are replaced, and keys that were missing are added behind the last one. Every
other byte stays, whitespace and spelling of numbers included: an engine that hashes, tokenises or logs a body sees what
production sent. What the assistant said in earlier turns is sent as it was recorded, whatever this engine would answer.

How a pass is kept apart in the prefix cache is one override of the run (DESIGN §10.12):

    salt    `cache_salt`, which vLLM takes for chat, completions and responses
    nonce   a mark at the head of the conversation. Chat templates that print tools first share those between passes.
    reset   nothing in the body: the engine is asked to forget between passes
    none    nothing
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from profiles.dialects import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from profiles.errors import FirsttokenError
from profiles.profile import ProfileRow
from replay.splice import (
    Edit,
    Member,
    Members,
    read_elements,
    read_members,
    read_object,
    set_members,
    skip_space,
    splice,
)


@dataclass(frozen=True, slots=True)
class Dialect:
    """What can be overridden in the requests of an endpoint."""

    path: str
    limits: tuple[str, ...]  # keys that limit the output; the first is set where a body has none
    stream_options: bool = False  # else usage comes unasked
    salt: bool = False
    forced: tuple[str, ...] = ()  # what makes an answer go on to its limit; empty: it cannot be forced


SENT: Final = {
    CHAT: Dialect(
        "/v1/chat/completions",
        ("max_tokens", "max_completion_tokens"),
        stream_options=True,
        salt=True,
        forced=("min_tokens", "ignore_eos"),
    ),
    COMPLETIONS: Dialect(
        "/v1/completions", ("max_tokens",), stream_options=True, salt=True, forced=("min_tokens", "ignore_eos")
    ),
    RESPONSES: Dialect("/v1/responses", ("max_output_tokens",), salt=True, forced=("ignore_eos",)),
    MESSAGES: Dialect("/v1/messages", ("max_tokens",)),
}


@dataclass(frozen=True, slots=True)
class Override:
    """What is changed in every recorded body, the same for all arms. Written into the run."""

    model: str | None = None  # None keeps the recorded one
    cache_isolation: str = "salt"  # salt, nonce, reset, none
    output_length: str = "capped"  # capped, natural, forced
    running_usage: bool = False  # usage in every event: then TPOT knows the tokens of the first one

    def stated(self) -> dict[str, Any]:
        """The overrides for boot.json: `keys` names what is set in the bodies of each endpoint."""
        stated: dict[str, Any] = {"stream": True, "stream_options": dict.fromkeys(self.stream_options(), True)}
        if self.model is not None:
            stated["model"] = self.model
        stated["cache_isolation"] = self.cache_isolation
        stated["output_length"] = self.output_length
        stated["keys"] = {name: self._keys(dialect) for name, dialect in SENT.items()}
        return stated

    def stream_options(self) -> tuple[str, ...]:
        """The keys of stream_options that are set to true."""
        return ("include_usage", "continuous_usage_stats") if self.running_usage else ("include_usage",)

    def _keys(self, dialect: Dialect) -> list[str]:
        keys = ["stream"]
        if dialect.stream_options:
            keys += [f"stream_options.{name}" for name in self.stream_options()]
        if self.model is not None:
            keys.append("model")
        if self.cache_isolation == "salt" and dialect.salt:
            keys.append("cache_salt")
        if self.cache_isolation == "nonce":
            keys.append("head of the conversation")
        if self.output_length != "natural":
            keys.append(" or ".join(dialect.limits))
        return keys + list(dialect.forced if self.output_length == "forced" else ())


def why_not(row: ProfileRow, override: Override) -> str | None:
    """Why a request cannot be sent again under these overrides, in a few words; None if it can.

    Of what was not recorded but generated or imported it is not known how it ended.
    """
    if row.outcome not in ("ok", None):
        return "did not end well"
    if not row.body:
        return "no body was kept"
    dialect = SENT.get(row.endpoint or "")
    if dialect is None:
        return "of an endpoint that streams no tokens"
    if override.cache_isolation == "salt" and not dialect.salt:
        return f'of {dialect.path}, which takes no cache_salt (write cache_isolation = "nonce")'
    if override.output_length == "forced" and not dialect.forced:
        return f"of {dialect.path}, whose length cannot be forced"
    return None


def replayable(rows: Sequence[ProfileRow], override: Override | None = None) -> list[ProfileRow]:
    """The rows that a replay can send, by what the profile's table says (`why_not`)."""
    override = override if override is not None else Override()
    return [row for row in rows if why_not(row, override) is None]


def sendable(
    rows: Sequence[ProfileRow], override: Override, bodies: Iterable[tuple[int, bytes]]
) -> tuple[list[ProfileRow], dict[str, int]]:
    """The rows that a replay can send, and how many it cannot, by reason. `bodies` is read only where it matters."""
    reasons = {row.request: why_not(row, override) for row in rows}
    held = {row.request for row in rows if row.endpoint == RESPONSES and reasons[row.request] is None}
    for request, body in bodies if held else ():
        if request in held and _needs_its_server(body):
            reasons[request] = "goes on from what only the recorded engine has stored"
    left_out = Counter(reason for reason in reasons.values() if reason is not None)
    return [row for row in rows if reasons[row.request] is None], dict(sorted(left_out.items()))


def _needs_its_server(body: bytes) -> bool:
    """A Responses request that continues a stored answer, or is answered behind the connection."""
    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError:
        return True
    keys = ("previous_response_id", "conversation", "prompt", "background")
    return not isinstance(asked, dict) or any(asked.get(key) for key in keys)


@dataclass(frozen=True, slots=True)
class Template:
    """A body that can be sent, but for the name of its pass, which stands between the pieces."""

    pieces: tuple[bytes, ...]

    def body(self, pass_name: str) -> bytes:
        """The bytes to send in a pass: a copy, no encoding."""
        return orjson.dumps(pass_name)[1:-1].join(self.pieces)


# What stands for the name of the pass while a template is made. No JSON text holds it: it would be escaped there.
_PASS = "\x00"


def make_template(body: bytes, override: Override, *, output_tokens: int | None, endpoint: str = CHAT) -> Template:
    """Apply the overrides. `output_tokens` is the recorded length; None or 0 sets no limit.

    Raises FirsttokenError if the recorded body is not a JSON object, or cannot carry a nonce.
    """
    dialect = SENT[endpoint]
    try:
        text = body.decode("utf-8")
        asked = read_object(text)
        values = {key: json.dumps(value) for key, value in _changes(asked, dialect, override, output_tokens).items()}
        edits: list[Edit] = []
        if dialect.stream_options:
            options = asked.last("stream_options")
            if options is not None and text[options.begin] == "{":  # its other keys stay
                wanted = dict.fromkeys(override.stream_options(), "true")
                edits += set_members(read_members(text, options.begin), wanted)
            else:
                asked_for = (f'"{name}":true' for name in override.stream_options())
                values["stream_options"] = f"{{{','.join(asked_for)}}}"
        if override.cache_isolation == "salt" and dialect.salt:
            values["cache_salt"] = f'"{_PASS}"'
        elif override.cache_isolation == "nonce":
            edits += _mark_head(text, asked, endpoint)
        edits += set_members(asked, values)
    except ValueError as error:
        raise FirsttokenError(f"a recorded body is not a JSON object ({error})") from None
    return Template(tuple(piece.encode("utf-8") for piece in splice(text, edits).split(_PASS)))


def _changes(asked: Members, dialect: Dialect, override: Override, output_tokens: int | None) -> dict[str, Any]:
    changes: dict[str, Any] = {"stream": True}
    if override.model is not None:
        changes["model"] = override.model
    if output_tokens and override.output_length != "natural":
        present = [key for key in dialect.limits if asked.last(key) is not None]
        changes |= dict.fromkeys(present or dialect.limits[:1], output_tokens)
        if override.output_length == "forced":
            known = {"min_tokens": output_tokens, "ignore_eos": True}
            changes |= {key: known[key] for key in dialect.forced}
    return changes


def prepare(
    body: bytes, override: Override, *, pass_name: str, output_tokens: int | None, endpoint: str = CHAT
) -> bytes:
    """One body, ready to be sent: `make_template` for a single pass."""
    return make_template(body, override, output_tokens=output_tokens, endpoint=endpoint).body(pass_name)


def _mark_head(text: str, asked: Members, endpoint: str) -> list[Edit]:
    """A nonce where the conversation begins: sharing inside a pass stays, between passes it ends."""
    if endpoint == COMPLETIONS:
        return _mark_prompt(text, asked.last("prompt"))
    kind = "input_text" if endpoint == RESPONSES else "text"
    # What the engine puts before the conversation is its head.
    before = asked.last({RESPONSES: "instructions", MESSAGES: "system"}.get(endpoint, ""))
    if before is not None and text[before.begin] in '"[':
        return [_nonce(text, before.begin, kind)]
    said = asked.last("input" if endpoint == RESPONSES else "messages")
    if said is not None and text[said.begin] == '"':
        return [_nonce(text, said.begin, kind)]
    for begin in read_elements(text, said.begin) if said is not None and text[said.begin] == "[" else ():
        message = read_members(text, begin)
        content = message.last("content")
        if content is not None and text[content.begin] in '"[':
            return [_nonce(text, content.begin, kind)]
        if content is None and message.last("role") is not None:
            return set_members(message, {"content": f'"[{_PASS}] "'})
    return []


def _mark_prompt(text: str, prompt: Member | None) -> list[Edit]:
    if prompt is None:
        return []
    begins = read_elements(text, prompt.begin) if text[prompt.begin] == "[" else [prompt.begin]
    if any(text[begin] != '"' for begin in begins):
        raise FirsttokenError(
            "a recorded prompt is a list of token ids, which can carry no nonce",
            'Keep passes apart with cache_isolation = "salt" or "reset".',
        )
    return [_nonce(text, begin, "") for begin in begins]


def _nonce(text: str, at: int, kind: str) -> Edit:
    """Before the first character of a text; before content parts it is a part of its own."""
    if text[at] == '"':
        return Edit(at + 1, at + 1, f"[{_PASS}] ")
    comma = "" if text[skip_space(text, at + 1)] == "]" else ","
    return Edit(at + 1, at + 1, f'{{"type":"{kind}","text":"[{_PASS}] "}}{comma}')
