"""Keyed digests of a prompt: which requests share a prefix, a session or a schema, without what it says.

    block     chain over 64 characters each:  d[i] = H(key, d[i-1] || characters of block i)
    message   chain over canonical messages:  d[i] = H(key, d[i-1] || message i)
    others    H(key, thing)

H is BLAKE2b with a key and 16 bytes of result. Each kind of thing has its own H (the `person` argument), so that the
id of a text as one kind tells nothing about it as another. A plain hash of short text is found by guessing: the key is
what protects it.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

from profiles.prompts import Message, Prompt, calls_of, json_of
from profiles.records import BLOCK_CHARS, KeyedMedium, KeyedMessage
from profiles.requests import OTHER, ROLES

DIGEST_BYTES: Final = 16
# Four million characters, the text of a million tokens. What is longer has no blocks beyond it.
MOST_BLOCKS: Final = 65_536
# White space is folded up to here; a longer text counts as it is from there on, which is as canonical.
_FOLDED_CHARS: Final = 65_536
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

    def messages(self, prompt: Prompt, media: Sequence[Sequence[KeyedMedium]]) -> list[KeyedMessage]:
        """The chain over the messages in their canonical form.

        Canonical: role, text with white space folded and thoughts removed, names and arguments of tool calls, media by
        their ids. The ids of tool calls are left out: they differ between turns.
        """
        last = b""
        out: list[KeyedMessage] = []
        listed: list[tuple[Message, Sequence[KeyedMedium]]] = list(zip(prompt.messages, media, strict=True))
        if prompt.system:
            listed.insert(0, (Message("system", prompt.system), ()))
        for message, seen in listed:
            calls = [piece for call in calls_of(message) for piece in call]
            hashing = self._start("message")
            hashing.update(last)
            for piece in (message.role, canonical(message.text), *calls, *(medium.id for medium in seen)):
                data = piece.encode()
                hashing.update(len(data).to_bytes(8))  # or two pieces could be read as two others
                hashing.update(data)
            last = hashing.digest()
            role = message.role if message.role in ROLES else OTHER
            out.append(KeyedMessage(role=role, chars=len(message.text), chain=last.hex()))
        return out


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


def text_of(value: Any) -> str | bytes:
    """A JSON value as what is hashed of it: a string as it is, anything else as JSON."""
    return value if isinstance(value, str) else json_of(value) or b""
