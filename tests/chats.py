"""Conversations whose text is known, for tests of what is rebuilt without it: self-written, seeded, in three kinds.

A tokenizer of our own stands in for an engine's: short words are one token, long and accented ones several, and code is
mostly marks. So the kinds differ in characters per token, as they do in real ones.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from random import Random
from typing import Any

import numpy as np

type Messages = list[dict[str, str]]

_ENGLISH = (
    "please explain why the {n} of our {m} is slower than the {k} that we measured last week",
    "the {m} should keep every {n} until the {k} has been written, and then tell us which of them failed",
    "I would like a short summary of the {n}, with one line for each {m} and nothing about the {k}",
    "thank you, that works; now the {k} and the {m} disagree about the {n}",
)
_ENGLISH_NOUNS = (
    "order letter station garden engine record price window report queue market village answer table".split()
)
_HUNGARIAN = (
    "kérem, magyarázza el, hogy a {n} miért lassabb, mint a múlt héten mért {k} vagy {m}",
    "a {m} őrizze meg az összes {n} tartalmát, amíg a {k} elkészül, utána írja meg, melyik nem sikerült",
    "rövid összefoglalót szeretnék a {n} állapotáról, minden {m} külön sorban legyen, a {k} nélkül",
    "köszönöm szépen, működik; most viszont a {k} és a {m} ellentmond egymásnak a {n} ügyében",
)
_HUNGARIAN_NOUNS = (
    "megrendelés levél állomás kertészet gépkönyv feljegyzés árjegyzék ablakkeret jelentés várósor".split()
)
_CODE = (
    "def read_{n}(path, {m}=None):\n    with open(path) as file:\n        return [{k}(line) for line in file]",
    "for {n} in {m}.items():\n    if {n}.size > 16:\n        total += {k}[{n}.key] * 2",
    "class {n}Reader:\n    def __init__(self, {m}):\n        self.{m} = {m}\n        self.{k} = {{}}",
)
_CODE_NOUNS = "row block cache queue node token batch page index buffer".split()

_SYSTEMS = (4, 9, 20, 35, 50)  # sentences in each system prompt; a few applications share one engine


def _say(random: Random, kind: str, sentences: int) -> str:
    forms, nouns = {
        "english": (_ENGLISH, _ENGLISH_NOUNS),
        "hungarian": (_HUNGARIAN, _HUNGARIAN_NOUNS),
        "code": (_CODE, _CODE_NOUNS),
    }[kind]
    said = []
    for _ in range(sentences):
        n, m, k = (f"{random.choice(nouns)}" for _ in range(3))
        said.append(random.choice(forms).format(n=n, m=m, k=k))
    return (".\n" if kind != "code" else "\n\n").join(said)


def chats(count: int, seed: int) -> Iterator[tuple[str, Messages]]:
    """Kind and messages of every request of `count` conversations, as they would arrive: turns of several mixed."""
    random = Random(seed)
    systems = [_say(random, "english", sentences) for sentences in _SYSTEMS]
    open_chats: list[tuple[str, Messages, int]] = []
    begun = 0
    while begun < count or open_chats:
        if begun < count and (len(open_chats) < 6 or random.random() < 0.3):
            kind = random.choice(("english", "english", "hungarian", "code"))
            first: Messages = [{"role": "system", "content": random.choice(systems)}]
            open_chats.append((kind, first, random.randint(2, 3)))
            begun += 1
        at = random.randrange(len(open_chats))
        kind, messages, turns = open_chats[at]
        messages = [*messages, {"role": "user", "content": _say(random, kind, random.randint(1, 6))}]
        yield kind, messages
        if turns == 1:
            del open_chats[at]
        else:
            answer = {"role": "assistant", "content": _say(random, kind, random.randint(2, 8))}
            open_chats[at] = kind, [*messages, answer], turns - 1


_PIECES = re.compile(r"\n[ ]*|[ ]?\w+|[^\w\s]|\s")
_TOKENS: dict[str, int] = {}


@cache
def tokens_of(text: str) -> list[str]:
    """A word of up to 7 plain letters is a token, a space in front included; longer ones are cut, more if accented."""
    out = []
    for piece in _PIECES.findall(text):
        word = piece.strip()
        if not word or (len(piece) <= 8 and word.isascii()):
            out.append(piece)
        else:
            step = 5 if word.isascii() else 3
            out += [piece[at : at + step] for at in range(0, len(piece), step)]
    return out


def prompt_tokens(messages: Sequence[dict[str, Any]]) -> list[str]:
    """All tokens of a prompt behind a chat template: three around each message, and three that open the answer."""
    out: list[str] = []
    for message in messages:
        out += ["<|start|>", message["role"], "\n", *tokens_of(message["content"]), "<|end|>"]
    return [*out, "<|start|>", "assistant", "\n"]


def numbered(tokens: Sequence[str]) -> "np.ndarray[Any, Any]":
    """Tokens as numbers, the same for the same token."""
    return np.array([_TOKENS.setdefault(token, len(_TOKENS)) for token in tokens], np.int64)
