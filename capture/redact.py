"""What may be kept of a request. Pure policy: bytes in, facts and perhaps a body out. No file is read or written here.

    mode     facts                                                               body
    none     lengths and parameters                                              no
    hashed   the same, and keyed ids: blocks, messages, schema, media, session   no
    full     the same, and the keyed id of the session                           yes, without credentials

Of headers only those of `headers.headers_read` are looked at at all, and what is kept of them is a word of a fixed list
or a keyed id. No header, query or credential is stored in any mode.

Sampling goes by session: all turns of a conversation are kept, or none. A session is what a header or a field of the
body names so; without one it is its model, its system text and its first message of a user.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from capture.digests import MOST_BLOCKS, Digests, prompt_text, text_of
from capture.headers import (
    AGENT_HEADER,
    PARENT_AGENT_HEADER,
    PARENT_HEADERS,
    TENANT_HEADERS,
    client_of,
    encoding_of,
    first_of_each,
    media_type_of,
    session_of,
)
from capture.outbox import FAULT
from capture.settings import BODY_MODES, FULL, HASHED, NONE
from profiles.credentials import TooManyValues, clean_json, without_tokens
from profiles.prompts import ENCODINGS, Prompt, Reading, constraint_of, prompt_of, read_body
from profiles.records import KeyedFacts, RequestFacts
from profiles.requests import OTHER, facts_of


@dataclass(frozen=True, slots=True)
class Asked:
    """What is kept of a request. `body` is None unless bodies are kept and its session is in the sample."""

    facts: RequestFacts
    body: bytes | None = None


def needs_key(mode: str, *, tenants: bool) -> bool:
    """Whether ids of this recording must outlast a restart: digests, sessions and tenants, and what a sample keeps.

    With another key after each restart, a session would fall on the other side of the sample in its middle.
    """
    return mode != NONE or tenants


class Redactor:
    """The policy of one recording. `sample` is the share of sessions, 0 to 1, of which blocks or bodies are kept.

    `key` has at least 16 bytes. Raises ValueError for arguments that make no sense.
    """

    def __init__(
        self,
        mode: str = NONE,
        key: bytes | None = None,
        sample: float = 1.0,
        tenants: bool = False,
        *,
        draw: Callable[[int], bytes] = os.urandom,
    ) -> None:
        if mode not in BODY_MODES:
            raise ValueError(f"mode is one of {', '.join(BODY_MODES)}, not {mode}")
        if not 0 <= sample <= 1:
            raise ValueError(f"the share of sessions is between 0 and 1, not {sample}")
        if key is None and needs_key(mode, tenants=tenants):
            raise ValueError(f"mode {mode} with tenants {tenants} needs a key")
        if key is not None and len(key) < 16:
            raise ValueError("a key has at least 16 bytes")
        self.mode = mode
        self.sample = sample
        self.tenants = tenants
        self._digests = Digests(draw(32) if key is None else key)

    def read(self, body: bytes | None, headers: Iterable[tuple[bytes, bytes]] = (), *, why_none: str = "") -> Asked:
        """What is kept of a request with this body and these headers. Never raises.

        `why_none` says why there is no body, in words of ours. Header names may be in any case; of several with one
        name the first counts.
        """
        size = len(body) if body is not None else 0
        try:
            found = first_of_each(headers)
            encoding = encoding_of(found.get("content-encoding"))
            reading = Reading(unread=why_none) if body is None and why_none else read_body(body, encoding)
            prompt = None if reading.document is None else prompt_of(reading.document)
            if reading.document is None or prompt is None:
                facts = RequestFacts(body_bytes=size, unread=reading.unread)
            else:
                facts = facts_of(reading.document, prompt, size)
            facts = msgspec.structs.replace(
                facts,
                client=client_of(found.get("user-agent")),
                media_type=media_type_of(found.get("content-type")),
                accepts=media_type_of(found.get("accept")),
                encoding=(encoding if encoding in ENCODINGS else OTHER) if encoding else None,
            )
        except Exception as problem:  # a message may quote the prompt; the type does not
            return Asked(RequestFacts(body_bytes=size, unread=f"{FAULT}: {type(problem).__name__}"))
        if self.mode == NONE and not self.tenants:
            return Asked(facts)
        try:
            return self._keep(facts, reading, prompt, found)
        except Exception as problem:
            return Asked(_cut(facts, f"{FAULT}: {type(problem).__name__}"))

    def _keep(self, facts: RequestFacts, reading: Reading, prompt: Prompt | None, found: dict[str, bytes]) -> Asked:
        keyed: dict[str, Any] = {}
        if self.tenants:
            keyed |= self._tenant(found)
        sampled = True
        body: bytes | None = None
        if self.mode != NONE:
            evidence, session = self._session(found, reading.document or {})
            keyed |= evidence
            sampled = self._in_sample(session, reading, prompt)
        if self.mode == HASHED and sampled and reading.document is not None and prompt is not None:
            more, cut = self._content(reading.document, prompt)
            keyed |= more
            facts = _cut(facts, cut) if cut else facts
        if self.mode == FULL and sampled:
            body, scrubbed, why_not = without_credentials(reading)
            facts = msgspec.structs.replace(facts, scrubbed=scrubbed)
            facts = _cut(facts, why_not) if why_not else facts
        return Asked(
            msgspec.structs.replace(facts, sampled=sampled, keyed=KeyedFacts(**keyed) if keyed else None), body
        )

    def _tenant(self, found: dict[str, bytes]) -> dict[str, Any]:
        for name in TENANT_HEADERS:
            value = found.get(name)
            if value:
                if value[:7].lower() == b"bearer ":  # a client may send one key in either header
                    value = value[7:].strip()
                return {"tenant": self._digests.id_of("tenant", value)}
        return {}

    def _session(self, found: dict[str, bytes], document: dict[str, Any]) -> tuple[dict[str, Any], bytes | None]:
        """The keyed ids of the session, and its name, which is not to be kept."""
        session, source = session_of(found, document)
        keyed: dict[str, Any] = {}
        if session is not None:
            keyed = {"session": self._digests.id_of("session", session), "session_source": source}
        for key, kind, names in (
            ("parent_session", "session", PARENT_HEADERS),
            ("agent", "agent", (AGENT_HEADER,)),
            ("parent_agent", "agent", (PARENT_AGENT_HEADER,)),
        ):
            value = next((found[name] for name in names if found.get(name)), None)
            if value is not None:
                keyed[key] = self._digests.id_of(kind, value)
        previous = document.get("previous_response_id")
        if isinstance(previous, str) and previous:
            keyed["previous_response"] = self._digests.id_of("response", previous)
        return keyed, session

    def _in_sample(self, session: bytes | None, reading: Reading, prompt: Prompt | None) -> bool:
        if self.sample >= 1:
            return True
        root = session
        if root is None and reading.document is not None and prompt is not None:
            model = reading.document.get("model")
            pieces = [text.encode() for text in _root_of(model if isinstance(model, str) else "", prompt)]
            root = b"".join(len(piece).to_bytes(8) + piece for piece in pieces)
        if root is None:
            root = reading.plain or b""
        return self._digests.share_of(root) < self.sample

    def _content(self, document: dict[str, Any], prompt: Prompt) -> tuple[dict[str, Any], str]:
        media = self._digests.media(prompt)
        blocks, chars, cut = self._digests.blocks(prompt_text(prompt, media))
        keyed: dict[str, Any] = {
            "blocks": blocks,
            "prompt_chars": chars,
            "messages": self._digests.messages(prompt, media),
            "media": [medium for of_message in media for medium in of_message],
        }
        constraint = constraint_of(document)
        if constraint is not None and constraint[1] is not None:
            schema = text_of(constraint[1])
            keyed["schema"] = self._digests.id_of("schema", schema)
            keyed["schema_bytes"] = len(schema.encode() if isinstance(schema, str) else schema)
        salt = document.get("cache_salt")
        if salt is not None:
            keyed["cache_salt"] = self._digests.id_of("salt", text_of(salt))
        return keyed, f"no blocks beyond {MOST_BLOCKS}" if cut else ""


def without_credentials(reading: Reading) -> tuple[bytes | None, int, str]:
    """A body as it may be kept, how many credentials were taken out of it, and why it may not be kept.

    Byte for byte the body that was sent where it holds none; otherwise JSON is written anew. What is no JSON object is
    cleaned as text. What cannot be looked through is not kept.
    """
    body = reading.plain
    if not body:
        return body, 0, "" if body is not None else "body not kept: not read"
    if reading.document is None:
        # In Latin-1 each byte is a character, so the rest stays as it was.
        text, removed = without_tokens(body.decode("latin-1"))
        return (text.encode("latin-1"), removed, "") if removed else (body, 0, "")
    try:
        clean, removed = clean_json(body, reading.document)
    except TooManyValues:
        return None, 0, "body not kept: too many values to look through"
    return clean, removed, "" if clean is not None else "body not kept: nested too deeply"


def _cut(facts: RequestFacts, why: str) -> RequestFacts:
    return msgspec.structs.replace(facts, cut=f"{facts.cut}; {why}" if facts.cut else why)


def _root_of(model: str, prompt: Prompt) -> list[str]:
    """What the turns of a conversation have in common."""
    system = [prompt.system]
    for message in prompt.messages:
        if message.role == "user":
            return [model, *system, message.text]
        if message.role in ("system", "developer"):
            system.append(message.text)
    return [model, *system]
