"""Keyed digests of a prompt: which requests share a prefix, a session or a schema, without what it says.

    block     chain over 64 characters each:  d[i] = H(key, d[i-1] || characters of block i)
    message   chain over canonical messages:  d[i] = H(key, d[i-1] || H(key, message i))
    others    H(key, thing)

H is BLAKE2b with a key and 16 bytes of result. Each kind of thing has its own H (the `person` argument), so that the
id of a text as one kind tells nothing about it as another. A plain hash of short text is found by guessing: the key is
what protects it.

The recorder makes them as requests pass; a build makes the same of recorded bodies, with a key that it forgets.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import orjson

from profiles.answers import Answer
from profiles.prompts import Message, Prompt, calls_of, constraint_of, json_of, prompt_of, read_body
from profiles.records import BLOCK_CHARS, KeyedAnswer, KeyedFacts, KeyedMedium, KeyedMessage
from profiles.requests import OTHER, ROLES
from profiles.session_names import AGENT_HEADER, PARENT_AGENT_HEADER, PARENT_HEADERS, session_of

DIGEST_BYTES: Final = 16
# Four million characters, the text of a million tokens. What is longer has no blocks beyond it.
MOST_BLOCKS: Final = 65_536
# White space is folded up to here; a longer text counts as it is from there on, which is as canonical.
_FOLDED_CHARS: Final = 65_536
# A message of the assistant has an id of its own from this length on: "Yes." is said by everybody.
SHORTEST_KNOWN_CHARS: Final = 16
_MARK: Final = "\x02"  # opens each message, so that a text cannot pass for a role
_THINK, _THOUGHT = "<think>", "</think>"


class Digests:
    """Makes the ids of one key. An id is a string of 32 hexadecimal digits."""

    def __init__(self, key: bytes) -> None:
        # A key may have any length from 16 bytes up; BLAKE2b takes 64 at most.
        self._key = hashlib.blake2b(key, digest_size=32, person=b"firsttoken-key").digest()
        self._started: dict[str, hashlib.blake2b] = {}

    def id_of(self, kind: str, thing: str | bytes) -> str:
        """The id of one thing. `kind` has at most 13 ASCII letters."""
        return self._digest(kind, thing).hex()

    def share_of(self, thing: str | bytes) -> float:
        """A number from 0 up to, not including, 1 that is always the same for the same thing."""
        # 53 bits: all that a float can tell apart below 1.
        return (int.from_bytes(self._digest("share", thing)[:8]) >> 11) / (1 << 53)

    def _digest(self, kind: str, thing: str | bytes) -> bytes:
        hashing = self._start(kind)
        hashing.update(thing.encode() if isinstance(thing, str) else thing)
        return hashing.digest()

    def _start(self, kind: str) -> "hashlib.blake2b":
        started = self._started.get(kind)
        if started is None:
            person = f"ft-{kind}".encode()
            started = hashlib.blake2b(key=self._key, digest_size=DIGEST_BYTES, person=person)
            self._started[kind] = started
        return started.copy()  # the key is a block of its own, hashed once

    def media(self, prompt: Prompt) -> list[list[KeyedMedium]]:
        """The media of each message: an id over the data, or over the address where the engine fetches it."""
        return [
            [KeyedMedium(id=self.id_of("medium", medium.payload), bytes=medium.bytes) for medium in message.media]
            for message in prompt.messages
        ]

    def blocks(self, pieces: Iterator[str]) -> tuple[list[str], int, bool]:
        """The chain over blocks of a text given in pieces, the characters of the text, and whether it was cut.

        The last block is left out where it is not full: it changes as soon as the text goes on.
        """
        most = MOST_BLOCKS * BLOCK_CHARS
        chars = 0
        kept: list[str] = []
        for piece in pieces:
            if chars < most:
                kept.append(piece[: most - chars] if chars + len(piece) > most else piece)
            chars += len(piece)
        return self._chain("".join(kept)), chars, chars > most

    def _chain(self, text: str) -> list[str]:
        start = self._start("block").copy
        last = b""
        out: list[str] = []
        whole = len(text) - len(text) % BLOCK_CHARS
        if text.isascii():  # then a character is a byte, and the text is encoded once
            data = text.encode()
            blocks = (data[at : at + BLOCK_CHARS] for at in range(0, whole, BLOCK_CHARS))
        else:
            blocks = (text[at : at + BLOCK_CHARS].encode() for at in range(0, whole, BLOCK_CHARS))
        for block in blocks:
            hashing = start()
            hashing.update(last + block)
            last = hashing.digest()
            out.append(last.hex())
        return out

    def messages(
        self, prompt: Prompt, media: Sequence[Sequence[KeyedMedium]], *, after: str = ""
    ) -> list[KeyedMessage]:
        """The chain over the messages in their canonical form, behind a list whose chain ends with `after`.

        Canonical: role, text with white space folded and thoughts removed, names and arguments of tool calls, media by
        their ids. The ids of tool calls are left out, for they differ between turns, and so are items that hold
        nothing but reasoning. A message of the assistant that is long enough also has an id of its own.
        """
        last = bytes.fromhex(after)
        out: list[KeyedMessage] = []
        listed: list[tuple[Message, Sequence[KeyedMedium]]] = list(zip(prompt.messages, media, strict=True))
        if prompt.system:
            listed.insert(0, (Message("system", prompt.system), ()))
        for message, seen in listed:
            if isinstance(message.source, dict) and message.source.get("type") == "reasoning":
                continue
            text = canonical(message.text)
            calls = [piece for name, given in calls_of(message) for piece in (name, canonical_arguments(given))]
            hashing = self._start("said")
            for piece in (message.role, text, *calls, *(medium.id for medium in seen)):
                data = piece.encode()
                hashing.update(len(data).to_bytes(8))  # or two pieces could be read as two others
                hashing.update(data)
            own = hashing.digest()
            hashing = self._start("message")
            hashing.update(last + own)
            last = hashing.digest()
            role = message.role if message.role in ROLES else OTHER
            known = role == "assistant" and len(text) + sum(map(len, calls)) >= SHORTEST_KNOWN_CHARS
            out.append(
                KeyedMessage(role=role, chars=len(message.text), chain=last.hex(), own=own.hex() if known else None)
            )
        return out

    def content(self, document: Mapping[str, Any], prompt: Prompt) -> tuple[KeyedFacts, bool]:
        """All ids of what a request says, and whether its blocks were cut."""
        media = self.media(prompt)
        blocks, chars, cut = self.blocks(prompt_text(prompt, media))
        constraint = constraint_of(dict(document))
        schema = b"" if constraint is None or constraint[1] is None else _bytes_of(constraint[1])
        salt = document.get("cache_salt")
        facts = KeyedFacts(
            blocks=blocks,
            prompt_chars=chars,
            messages=self.messages(prompt, media),
            media=[medium for of_message in media for medium in of_message],
            schema=self.id_of("schema", schema) if constraint is not None and constraint[1] is not None else None,
            schema_bytes=len(schema),
            cache_salt=None if salt is None else self.id_of("salt", _bytes_of(salt)),
        )
        return facts, cut

    def names(self, headers: Mapping[str, bytes], document: Mapping[str, Any]) -> dict[str, str]:
        """The fields of KeyedFacts that tell whose turn a request is. Names of headers are in lower case."""
        session, source = session_of(headers, document)
        keyed: dict[str, str] = {}
        if session is not None and source is not None:
            keyed = {"session": self.id_of("session", session), "session_source": source}
        for key, kind, names in (
            ("parent_session", "session", PARENT_HEADERS),
            ("agent", "agent", (AGENT_HEADER,)),
            ("parent_agent", "agent", (PARENT_AGENT_HEADER,)),
        ):
            value = next((headers[name] for name in names if headers.get(name)), None)
            if value is not None:
                keyed[key] = self.id_of(kind, value)
        previous = document.get("previous_response_id")
        if isinstance(previous, str) and previous:
            keyed["previous_response"] = self.id_of("response", previous)
        return keyed

    def answer(self, answer: Answer, after: str) -> KeyedAnswer:
        """The ids of an answer to a request whose list of messages has a chain that ends with `after`."""
        prompt = prompt_of({"messages": answer.messages})
        said = self.messages(prompt, self.media(prompt), after=after)
        return KeyedAnswer(
            chain=said[-1].chain if said else None,
            own=[message.own for message in said if message.own is not None],
            response=None if answer.response_id is None else self.id_of("response", answer.response_id),
        )


def keyed_facts_of(
    body: bytes, digests: Digests, headers: Mapping[str, bytes] | None = None, *, encoding: str = ""
) -> KeyedFacts | None:
    """What `record --bodies hashed` keeps of a request, made of its body. None where the body cannot be read.

    Names of `headers` are in lower case; `encoding` is the content coding of the body.
    """
    document = read_body(body, encoding).document
    if document is None:
        return None
    facts, _ = digests.content(document, prompt_of(document))
    return msgspec.structs.replace(facts, **digests.names(headers or {}, document))


def canonical_arguments(text: str) -> str:
    """Arguments of a tool call, which clients read and write anew: the same JSON has one form."""
    if text in ("", "{}"):
        return "{}"
    try:
        return orjson.dumps(orjson.loads(text), option=orjson.OPT_SORT_KEYS).decode()
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return text


def canonical(text: str) -> str:
    """A text without its `<think>` parts, white space folded: what a client sends back of an answer it got."""
    if _THINK in text:
        text = "".join(_unthought(text))
    return " ".join(text[:_FOLDED_CHARS].split()) + text[_FOLDED_CHARS:]


def _unthought(text: str) -> Iterator[str]:
    # By hand: an expression looks for the end again from each beginning, which costs a text of beginnings its square.
    done = 0
    while (start := text.find(_THINK, done)) >= 0 and (end := text.find(_THOUGHT, start)) >= 0:
        yield text[done:start]
        done = end + len(_THOUGHT)
    yield text[done:]


def prompt_text(prompt: Prompt, media: Sequence[Sequence[KeyedMedium]]) -> Iterator[str]:
    """The text that blocks are cut from, in pieces: system text, tools, then each message behind its role."""
    if prompt.system:
        yield f"{_MARK}system\n"
        yield prompt.system
    if prompt.tools:
        yield f"{_MARK}tools\n"
        yield (json_of(prompt.tools) or b"").decode()
    for message, seen in zip(prompt.messages, media, strict=True):
        yield f"{_MARK}{message.role}\n"
        done = 0
        for medium, keyed in zip(message.media, seen, strict=True):
            yield message.text[done : medium.at]
            yield f"{_MARK}{medium.kind} {keyed.id}"
            done = medium.at
        yield message.text[done:] if done else message.text
        for name, arguments in calls_of(message):
            yield f"{_MARK}{name}({arguments})"


def _bytes_of(value: Any) -> bytes:
    """A JSON value as what is hashed of it: a string as it is, anything else as JSON."""
    return value.encode() if isinstance(value, str) else json_of(value) or b""
