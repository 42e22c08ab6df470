"""What the model answers, how long, and how predictable that is. All of it follows from the request alone.

The answer is drawn from a hash of the conversation, so the same prompt gives the same text in every arm, at every
concurrency and after every boot. The draft model's luck is drawn the same way, one number per position of the answer:
with a longer draft the same draws are met with one more chance, so arms are compared on common random numbers.

Acceptance belongs to the text, not to the arm. `ACCEPTANCE` gives, for each class of request, the probability that at
least the first, second, third draft token holds. Its sums are the tokens accepted per step; they come from a published
ladder on a GB10 (k = 2 against k = 3, one run per arm):

    class       k=2     k=3     tokens per step, k=3 over k=2     at 1.11 times the step
    json        1.990   2.949   1.321                             +19 %   as published
    long        1.750   2.571   1.299                             +17 %   sums chosen to give the published change
    code        1.600   2.260   1.254                             +13 %   sums chosen to give the published change
    short       1.292   1.314   1.010                              −9 %   as published
    hungarian   1.164   1.296   1.061                              −4 %   sums as published, where −3 % was measured
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from profiles.records import RequestFacts

JSON: Final = "json"
LONG: Final = "long"
CODE: Final = "code"
HUNGARIAN: Final = "hungarian"
SHORT: Final = "short"

ACCEPTANCE: Final[dict[str, tuple[float, float, float]]] = {
    JSON: (0.998, 0.992, 0.959),
    LONG: (0.915, 0.835, 0.821),
    CODE: (0.880, 0.720, 0.660),
    SHORT: (0.800, 0.492, 0.022),
    HUNGARIAN: (0.700, 0.464, 0.132),
}

# Natural length of an answer in tokens, shortest and longest. JSON ends below 64, a usual cap for extraction.
LENGTHS: Final[dict[str, tuple[int, int]]] = {
    JSON: (36, 60),
    LONG: (48, 160),
    CODE: (64, 240),
    SHORT: (32, 96),
    HUNGARIAN: (48, 128),
}

LONG_PROMPT_TOKENS = 1_000
CODE_SHARE = 0.4

WORDS: Final = (
    "the a this each and or with from into under over after before while because system request answer number word "
    "value model prompt cache batch queue draft token first second third short long early late small large open closed "
    "green quiet steady simple careful exact plain heavy light fresh warm cold river harbour station garden market "
    "village library window letter paper engine signal record minute morning evening winter summer order price "
    "weight distance measure balance account report summary reason result method question example detail source "
    "note line page list table column entry figure change growth supply demand travel delivery repair service "
    "gives takes keeps holds shows finds makes needs reads writes counts moves starts ends waits follows carries"
).split()


@dataclass(frozen=True, slots=True)
class Script:
    """The answer to one request, fixed before its first step."""

    workload: str
    words: tuple[str, ...]
    finish: str  # "stop" at its natural end, "length" when cut by a limit
    digest: bytes

    def accepted(self, produced: int, drafts: int) -> int:
        """How many of `drafts` draft tokens hold after `produced` tokens of the answer."""
        return accepted_length(self.workload, uniform(self.digest, produced), drafts)


def prompt_words(messages: Sequence[tuple[str, str]], tools: Sequence[Any] = ()) -> list[str]:
    """The prompt's tokens: the words of all messages, four tokens of template around each, three that open the answer.

    `messages` are pairs of role and text. The next turn of a conversation starts with exactly this prompt and its
    answer, so the prefix cache sees what a real template would show it.
    """
    words: list[str] = []
    if tools:
        words += ["<|im_start|>", "tools", "<|sep|>", *orjson.dumps(list(tools)).decode().split(), "<|im_end|>"]
    for role, text in messages:
        words += ["<|im_start|>", role, "<|sep|>", *text.split(), "<|im_end|>"]
    words += ["<|im_start|>", "assistant", "<|sep|>"]
    return words


def workload_of(facts: RequestFacts, prompt_tokens: int) -> str:
    """The class whose predictability this request has. First match wins."""
    if facts.response_format not in (None, "text"):
        return JSON
    if prompt_tokens >= LONG_PROMPT_TOKENS:
        return LONG
    if (facts.code_share or 0.0) >= CODE_SHARE:
        return CODE
    return HUNGARIAN if facts.language == "hu" else SHORT


def write_script(
    workload: str,
    prompt: Sequence[str],
    *,
    limit: int,
    min_tokens: int = 0,
    ignore_eos: bool = False,
    drift: float = 1.0,
    luck: bytes = b"",
    plain: bool = False,
) -> Script:
    """The answer to `prompt` in at most `limit` tokens. `ignore_eos` makes it exactly `limit` long.

    The faults of an answer: `drift` stretches its natural length, `luck` gives it other words of the same number, and
    `plain` says JSON as text.
    """
    digest = hashlib.blake2b("\0".join((workload, *prompt)).encode(), digest_size=16).digest()
    shortest, longest = LENGTHS[workload]
    natural = shortest + int(uniform(digest, -1) * (longest - shortest + 1))
    length = limit if ignore_eos else max(round(natural * drift), min_tokens, 1)
    drawn = [WORDS[byte % len(WORDS)] for byte in hashlib.shake_128(digest + luck).digest(length)]
    words = json_words(drawn) if workload == JSON and not plain else drawn
    finish = "length" if ignore_eos or length > limit else "stop"
    return Script(workload, tuple(words[:limit]), finish, digest)


def json_words(words: Sequence[str]) -> list[str]:
    """A JSON object in exactly as many white-space separated pieces as `words` has: a key, a value, a key, a value."""
    if len(words) < 2:
        return ["{}"] * len(words)
    opening = ["{"] if len(words) % 2 else []
    pieces = list(words[len(opening) :])
    pairs = len(pieces) // 2
    out = list(opening)
    for number in range(pairs):
        key, value = pieces[2 * number], pieces[2 * number + 1]
        before = "{" if number == 0 and not opening else ""
        after = "}" if number == pairs - 1 else ","
        out += [f'{before}"{key}_{number}":', f'"{value}"{after}']
    return out


def uniform(digest: bytes, index: int) -> float:
    """A number in [0, 1) for one position of one text."""
    drawn = hashlib.blake2b(index.to_bytes(8, "big", signed=True), key=digest, digest_size=8).digest()
    return int.from_bytes(drawn, "big") / 2**64


def hold_chance(workload: str, position: int) -> float:
    """Probability that draft tokens 0 … `position` all hold. Beyond the table the last two go on as a ratio."""
    table = ACCEPTANCE[workload]
    if position < len(table):
        return table[position]
    return float(table[-1] * (table[-1] / table[-2]) ** (position - len(table) + 1))


def accepted_length(workload: str, draw: float, drafts: int) -> int:
    """How many drafts a draw accepts: the positions whose chance lies above it. Chances fall, so these are a run."""
    accepted = 0
    while accepted < drafts and draw < hold_chance(workload, accepted):
        accepted += 1
    return accepted
