"""What a request did: the records that stages exchange. Facts only; measures are derived (`analysis.measures`).

All instants are integers in nanoseconds on the monotonic clock of the process that wrote them. A file that holds them
carries one anchor (wall clock and monotonic clock read together), so that files of several hosts can be laid side by
side. A missing value is None, and the reason stands beside it (`outcome`, `error`, `unread`).
"""

from collections.abc import Sequence
from typing import Final

import msgspec

# Outcomes (DESIGN §4). HTTP 200 is not success.
OK: Final = "ok"
ERROR: Final = "error"  # an HTTP error, or an error object inside the answer
EMPTY: Final = "empty"  # it ended well and carried nothing
INCOMPLETE: Final = "incomplete"  # it broke off: no terminal event, or the connection was lost
TIMEOUT: Final = "timeout"  # our own limit; a replayed request counts as censored at it
CANCELLED: Final = "cancelled"  # cut by us: the proxy stopped, or the replay was interrupted
CANCELLED_BY_CLIENT: Final = "cancelled_by_client"
OUTCOMES: Final = (OK, ERROR, EMPTY, INCOMPLETE, TIMEOUT, CANCELLED, CANCELLED_BY_CLIENT)

# Who ended it badly.
ENGINE: Final = "engine"
CLIENT: Final = "client"
PROXY: Final = "proxy"


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """A line of a journal. Unknown keys are ignored on reading: a later minor version may add some."""


class ResponseFacts(Record, frozen=True, kw_only=True):
    """A response body as it arrived. Written by `stream.ResponseReader`."""

    first_byte_ns: int | None = None
    # The first event with generated output of any kind, and the first with text that a person sees.
    first_token_ns: int | None = None
    first_content_ns: int | None = None
    last_token_ns: int | None = None
    last_byte_ns: int | None = None
    # Gaps between events that carry tokens, so that first_token_ns plus their running sum gives every instant.
    token_gaps_ns: list[int] = []
    coalesced: int = 0  # token-bearing events that share the instant of the one before: they came in one read
    events: int = 0
    malformed: int = 0
    comments: int = 0
    body_bytes: int = 0
    reads: int = 0
    # Tokens in the first token-bearing event, where the engine tells (token ids, running usage); else None.
    first_event_tokens: int | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    # Of speculative decoding, where the answer itself tells: proposed, and those of them that held.
    draft_tokens: int | None = None
    accepted_tokens: int | None = None
    # Verification steps by how many tokens of their draft held, from 0 on; a step without a draft is none of them.
    draft_steps: list[int] | None = None
    finish: str | None = None
    output: bool = False  # it carried generated output, streamed or whole
    done: bool = False  # the marker after which nothing comes was seen
    error: str | None = None  # type or code of an error object inside the answer
    error_code: int | None = None  # its code, where that is a number
    unread: str | None = None  # why the body could not be read (an encoding, a size)

    @property
    def token_events(self) -> int:
        """How many events carried tokens."""
        return 0 if self.first_token_ns is None else 1 + len(self.token_gaps_ns)


# Characters of one hashed block. Shorter blocks tell more to an attacker, longer ones hide shared prefixes.
BLOCK_CHARS: Final = 64


class KeyedMessage(Record, frozen=True, kw_only=True, array_like=True, gc=False):
    """One message of a hashed prompt, written as [role, chars, chain, own].

    `chain` stands for the whole list up to and with this message: two requests that share it share all before it.
    `own` stands for this message alone, wherever it stands: only what an assistant said has it, and not "Yes.".
    """

    role: str  # one of requests.ROLES
    chars: int
    chain: str
    own: str | None = None


class KeyedMedium(Record, frozen=True, kw_only=True, array_like=True, gc=False):
    """An image, audio clip or video, written as [id, bytes]. The size of one that is fetched is not known."""

    id: str
    bytes: int | None


class KeyedFacts(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Which requests share what, without what it is: ids made with the key of the capture. Written by `digests`.

    An id is 32 hexadecimal digits. Equal things have equal ids under one key; ids of different kinds never compare.
    """

    # Each covers BLOCK_CHARS characters of the prompt and all blocks before it. A last block that is not full has none.
    blocks: list[str] = []
    prompt_chars: int = 0  # of the text that the blocks were cut from: role marks, tools and tool calls included
    # System text outside the list of messages comes first, as a message of role system.
    messages: list[KeyedMessage] = []
    media: list[KeyedMedium] = []
    schema: str | None = None  # JSON schema, choices, expression or grammar that the answer must follow
    schema_bytes: int = 0
    cache_salt: str | None = None  # requests with different salts share no prefix in the engine's cache
    session: str | None = None
    session_source: str | None = None  # what named the session: a header, or a field of the body as `body.NAME`
    parent_session: str | None = None
    agent: str | None = None  # a sub-agent inside the session
    parent_agent: str | None = None
    previous_response: str | None = None  # the response of which this request is the next turn
    tenant: str | None = None


class KeyedAnswer(Record, frozen=True, kw_only=True, omit_defaults=True):
    """An answer, without what it says: by these ids the next turn is known. Written by `digests`."""

    chain: str | None = None  # of the request's messages with the answer behind them; compares with KeyedMessage.chain
    own: list[str] = []  # of its messages alone, as KeyedMessage.own
    response: str | None = None  # the id that the engine gave it, as KeyedFacts.previous_response


class RequestFacts(Record, frozen=True, kw_only=True):
    """What a request asked for: lengths and parameters, never its text. Written by `requests.describe`.

    A word in here is from a fixed list, except the name of the model; what is not on the list is "other".
    """

    model: str | None = None
    stream: bool = False
    body_bytes: int = 0
    messages: int = 0
    user_turns: int = 0
    last_role: str | None = None
    system_chars: int = 0
    input_chars: int = 0  # text of all messages, or of the prompt
    tools: int = 0
    tools_chars: int = 0
    tool_results: int = 0  # messages that bring a tool's answer
    images: int = 0
    audios: int = 0
    videos: int = 0
    # text, json_object, json_schema, guided_json, choice, regex, grammar, structural_tag, other
    response_format: str | None = None
    tool_choice: str | None = None  # auto, none, required, named, other
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    n: int = 1
    logprobs: bool = False
    reasoning: bool = False  # reasoning was asked for
    reasoning_effort: str | None = None  # none, minimal, low, medium, high, xhigh, max, other
    code_share: float | None = None  # of the last user message's lines, those that look like code
    language: str | None = None  # of the user's text; None where it cannot be told
    unread: str | None = None  # why the body could not be read
    cut: str | None = None  # what was too much to be looked at or kept: then counts are lower bounds
    # From the headers that may be read at all, each a word of a fixed list in `capture.redact`.
    client: str | None = None
    media_type: str | None = None
    accepts: str | None = None
    encoding: str | None = None  # content coding of the body; body_bytes counts what was sent
    sampled: bool = True  # False where its session was left out of what is kept of bodies
    scrubbed: int = 0  # credentials taken out of the body before it was kept
    keyed: KeyedFacts | None = None


UNASKED: Final = RequestFacts(unread="its request line is missing")


class Exchange(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One recorded request with its answer: the `end` line of a capture segment. Its `request` comes from the `request`
    line where it has none itself."""

    id: str
    endpoint: str
    method: str
    path: str  # without its query string: a query may hold a key
    arrival_ns: int  # request headers in
    dispatch_ns: int | None = None  # request body complete
    headers_ns: int | None = None  # response headers in
    end_ns: int
    status: int | None = None
    outcome: str
    origin: str | None = None  # who ended it, where it did not end well
    reason: str | None = None  # why, where there was no answer of the engine to tell it
    in_flight: int = 0  # others in flight at arrival
    request: RequestFacts = UNASKED
    response: ResponseFacts
    answer: KeyedAnswer | None = None
    late_ns: int = 0  # how late the recorder's own event loop was around this request


class Outcome(Record, frozen=True, kw_only=True):
    """One replayed request: a line of outcomes.jsonl."""

    window: str
    c: int  # concurrency that the window holds; 0 where it follows the recorded arrivals
    index: int  # position in the window's list; the same in all arms
    request: int  # row of the profile
    workload: str  # class of the request
    measured: bool = True  # False for warm-up and for what a time limit cut
    due_ns: int | None = None  # when the schedule wanted it
    send_started_ns: int | None = None
    send_done_ns: int | None = None
    headers_ns: int | None = None
    end_ns: int
    status: int | None = None
    resent: int = 0  # sent again because the engine closed the kept connection at the moment of sending
    outcome: str
    origin: str | None = None
    reason: str | None = None
    response: ResponseFacts


def outcome_of(status: int | None, facts: ResponseFacts, *, body_complete: bool) -> tuple[str, str | None]:
    """Outcome and origin of an answer that the engine ended. A cut by a client or by us is the caller's to say.

    Success is a terminal event, output, and no error object (DESIGN §4); HTTP 200 alone is not.
    """
    if status is None:
        return INCOMPLETE, ENGINE
    if status >= 400 or facts.error is not None:
        return ERROR, ENGINE
    if facts.unread is not None:
        return (OK, None) if body_complete else (INCOMPLETE, ENGINE)
    terminal = facts.done or facts.finish is not None
    if not facts.output:
        return (EMPTY, ENGINE) if body_complete else (INCOMPLETE, ENGINE)
    return (OK, None) if terminal else (INCOMPLETE, ENGINE)


def token_instants_ns(facts: ResponseFacts) -> Sequence[int]:
    """The instant of every token-bearing event."""
    if facts.first_token_ns is None:
        return ()
    instants = [facts.first_token_ns]
    for gap in facts.token_gaps_ns:
        instants.append(instants[-1] + gap)
    return instants
