"""The body of a copied request: another user's text, so it must not be found in the prefix cache.

A short mark stands at the head of the first message behind the system prompt, the same for all requests of a copy. So
copies share the system prompt, and requests within a copy share what they shared. The rest of the body stays as it is,
byte for byte.
"""

from typing import Any

import msgspec
import orjson

_SYSTEM_ROLES = ("system", "developer")


def mark(body: bytes, copy: int) -> bytes | None:
    """The body as user number `copy` would send it. None where it holds no prompt that can be marked."""
    try:
        fields: dict[str, msgspec.Raw] = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
        for key in ("messages", "prompt", "input"):
            if key in fields:
                marked = _marked(orjson.loads(bytes(fields[key])), f"[{copy}] ")
                if marked is None:
                    return None
                fields[key] = msgspec.Raw(orjson.dumps(marked))
                return msgspec.json.encode(fields)
    except (msgspec.DecodeError, orjson.JSONDecodeError, TypeError):
        pass
    return None


def _marked(prompt: Any, text: str) -> Any:
    if isinstance(prompt, str):
        return text + prompt
    if not isinstance(prompt, list) or not prompt:
        return None
    if all(isinstance(each, str) for each in prompt):  # a batch of prompts
        return [text + each for each in prompt]
    for at, message in enumerate(prompt):
        if isinstance(message, dict) and message.get("role") not in _SYSTEM_ROLES:
            content = _with_text(message.get("content"), text)
            return None if content is None else [*prompt[:at], message | {"content": content}, *prompt[at + 1 :]]
    return None


def _with_text(content: Any, text: str) -> Any:
    if isinstance(content, str):
        return text + content
    if isinstance(content, list):
        return [{"type": "text", "text": text}, *content]
    return None
