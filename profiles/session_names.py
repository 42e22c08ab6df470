"""What names a session: headers and fields of a request, in order of evidence. Values go in and come out; none is kept.

The names that won are kept as `KeyedFacts.session_source`: of a header its name, of a field its path behind `body.`.
"""

from collections.abc import Mapping
from typing import Any, Final

# Headers that name a session, the strongest evidence first, with those that name its parent beside them.
SESSION_HEADERS: Final = tuple(
    "x-dynamo-session-id x-claude-code-session-id session-id session_id x-session-id x-session-affinity "
    "x-litellm-session-id helicone-session-id conversation-id".split()
)
PARENT_HEADERS: Final = ("x-dynamo-parent-session-id", "x-parent-session-id")
AGENT_HEADER: Final = "x-claude-code-agent-id"
PARENT_AGENT_HEADER: Final = "x-claude-code-parent-agent-id"
# Fields of the body that name a session. Never `user` or `metadata.user_id`: a user has parallel chats.
_FIELDS: Final = ("conversation", "prompt_cache_key", "session_id")
_METADATA: Final = ("session_id", "conversation_id", "thread_id", "chat_id")
_IN_BODY: Final = "body."


def session_of(headers: Mapping[str, bytes], document: Mapping[str, Any]) -> tuple[bytes | None, str | None]:
    """The name of the session and where it stood. Names of headers are in lower case."""
    for name in SESSION_HEADERS:
        if headers.get(name):
            return headers[name], name
    for name in _FIELDS:
        value = document.get(name)
        if isinstance(value, dict):
            value = value.get("id")
        if isinstance(value, str) and value:
            return value.encode(), f"{_IN_BODY}{name}"
    metadata = document.get("metadata")
    if isinstance(metadata, dict):
        for name in _METADATA:
            value = metadata.get(name)
            if isinstance(value, str) and value:
                return value.encode(), f"{_IN_BODY}metadata.{name}"
    return None, None


def stood_in_header(source: str) -> bool:
    """Whether a `session_source` is the name of a header. Captures of earlier versions name fields without `body.`."""
    return source in SESSION_HEADERS
