"""The body that is sent: the recorded JSON, its values byte for byte, with the declared overrides on top.

Only top-level keys that an override names are replaced. Everything else is copied as bytes: an engine that hashes,
tokenises or logs a body sees what production sent.
"""

from dataclasses import dataclass
from typing import Any

import msgspec
import orjson

from profiles.errors import FirsttokenError


@dataclass(frozen=True, slots=True)
class Override:
    """What is changed in every recorded body, the same for all arms. Written into the run."""

    model: str | None = None  # None keeps the recorded one
    cache_isolation: str = "salt"  # salt, nonce, none
    output_length: str = "capped"  # capped, natural, forced

    def stated(self) -> dict[str, Any]:
        """The overrides for boot.json."""
        stated: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
        if self.model is not None:
            stated["model"] = self.model
        stated["cache_isolation"] = self.cache_isolation
        stated["output_length"] = self.output_length
        return stated


def prepare(body: bytes, override: Override, *, pass_name: str, output_tokens: int | None) -> bytes:
    """The body to send. `pass_name` tells passes apart in the prefix cache, `output_tokens` is the recorded length.

    Raises FirsttokenError if the recorded body is not a JSON object.
    """
    try:
        fields: dict[str, msgspec.Raw] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except msgspec.DecodeError as error:
        raise FirsttokenError(f"a recorded body is not a JSON object ({error})") from None
    changed: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    if override.model is not None:
        changed["model"] = override.model
    if override.cache_isolation == "salt":
        changed["cache_salt"] = pass_name
    if override.output_length != "natural" and output_tokens:
        limit = "max_completion_tokens" if "max_completion_tokens" in fields else "max_tokens"
        changed[limit] = output_tokens
        if override.output_length == "forced":
            changed |= {"min_tokens": output_tokens, "ignore_eos": True}
    if override.cache_isolation == "nonce":
        _mark_head(fields, f"[{pass_name}] ")
    fields |= {key: msgspec.Raw(orjson.dumps(value)) for key, value in changed.items()}
    return msgspec.json.encode(fields)


def _mark_head(fields: dict[str, msgspec.Raw], nonce: str) -> None:
    """Put a nonce at the head of the conversation: sharing inside a pass stays, between passes it ends."""
    if "messages" in fields:
        messages: list[msgspec.Raw] = msgspec.json.decode(fields["messages"], type=list[msgspec.Raw])
        if messages:
            head: dict[str, msgspec.Raw] = msgspec.json.decode(messages[0], type=dict[str, msgspec.Raw])
            head["content"] = _with_nonce(head.get("content"), nonce)
            messages[0] = msgspec.Raw(msgspec.json.encode(head))
            fields["messages"] = msgspec.Raw(msgspec.json.encode(messages))
    elif "prompt" in fields:
        fields["prompt"] = _with_nonce(fields["prompt"], nonce)


def _with_nonce(raw: msgspec.Raw | None, nonce: str) -> msgspec.Raw:
    value = orjson.loads(bytes(raw)) if raw is not None else ""
    if isinstance(value, str):
        value = nonce + value
    elif isinstance(value, list):  # content parts: the nonce becomes a part of its own
        value = [{"type": "text", "text": nonce}, *value]
    return msgspec.Raw(orjson.dumps(value))
