"""What may be kept of a request. Pure policy: bytes in, facts and perhaps a body out. No file is read or written here.

    mode     facts                                                               body
    none     lengths and parameters                                              no
    hashed   the same, and keyed ids: blocks, messages, schema, media, session   no
    full     the same, and keyed ids of messages and session                     yes, without credentials

Of an answer, modes hashed and full keep keyed ids, by which the next turn is known; mode none keeps nothing.

Of headers only those of `headers.headers_read` are looked at at all, and what is kept of them is a word of a fixed list
or a keyed id. No header, query or credential is stored in any mode.

Sampling goes by session: all turns of a conversation are kept, or none. A session is what a header or a field of the
body names so; without one it is its model, its system text and its first message of a user.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import msgspec

from capture.headers import TENANT_HEADERS, client_of, encoding_of, first_of_each, media_type_of
from capture.outbox import FAULT
from capture.settings import BODY_MODES, FULL, HASHED, NONE
from profiles.answers import Answer
from profiles.credentials import TooManyValues, clean_json, without_tokens
from profiles.digests import MOST_BLOCKS, Digests
from profiles.prompts import ENCODINGS, Prompt, Reading, prompt_of, read_body
from profiles.records import KeyedAnswer, KeyedFacts, RequestFacts
from profiles.requests import OTHER, facts_of
from profiles.session_names import session_of


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

    def read_answer(self, answer: Answer | None, after: str) -> KeyedAnswer | None:
        """What is kept of an answer to a request whose messages have a chain that ends with `after` (`chain_of`)."""
        return None if answer is None else self._digests.answer(answer, after)

    def _keep(self, facts: RequestFacts, reading: Reading, prompt: Prompt | None, found: dict[str, bytes]) -> Asked:
        keyed = KeyedFacts()
        sampled = True
        body: bytes | None = None
        document = reading.document or {}
        if self.mode != NONE and self.sample < 1:
            sampled = self._in_sample(session_of(found, document)[0], reading, prompt)
        if self.mode != NONE and sampled and reading.document is not None and prompt is not None:
            if self.mode == HASHED:
                keyed, cut = self._digests.content(document, prompt)
                facts = _cut(facts, f"no blocks beyond {MOST_BLOCKS}") if cut else facts
            else:
                keyed = KeyedFacts(messages=self._digests.messages(prompt, self._digests.media(prompt)))
        if self.mode == FULL and sampled:
            body, scrubbed, why_not = without_credentials(reading)
            facts = msgspec.structs.replace(facts, scrubbed=scrubbed)
            facts = _cut(facts, why_not) if why_not else facts
        names = self._digests.names(found, document) if self.mode != NONE else {}
        if self.tenants:
            names |= self._tenant(found)
        keyed = msgspec.structs.replace(keyed, **names)
        facts = msgspec.structs.replace(facts, sampled=sampled, keyed=None if keyed == KeyedFacts() else keyed)
        return Asked(facts, body)

    def _tenant(self, found: dict[str, bytes]) -> dict[str, str]:
        for name in TENANT_HEADERS:
            value = found.get(name)
            if value:
                if value[:7].lower() == b"bearer ":  # a client may send one key in either header
                    value = value[7:].strip()
                return {"tenant": self._digests.id_of("tenant", value)}
        return {}

    def _in_sample(self, session: bytes | None, reading: Reading, prompt: Prompt | None) -> bool:
        root = session
        if root is None and reading.document is not None and prompt is not None:
            model = reading.document.get("model")
            pieces = [text.encode() for text in _root_of(model if isinstance(model, str) else "", prompt)]
            root = b"".join(len(piece).to_bytes(8) + piece for piece in pieces)
        if root is None:
            root = reading.plain or b""
        return self._digests.share_of(root) < self.sample


def chain_of(facts: RequestFacts) -> str | None:
    """Where the messages of a request end, as `read_answer` needs it. None where no answer of it is to be kept."""
    return facts.keyed.messages[-1].chain if facts.keyed is not None and facts.keyed.messages else None


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
