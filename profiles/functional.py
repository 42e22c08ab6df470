"""The functional guard's nouns: a probe, what is tested with it, and what an engine made of it.

A fixed prompt set is asked in every boot beside the load, sequentially, at temperature 0, each probe in `REPEATS`
passes, and never timed. What came back is kept as facts and hashes: no text of an answer is stored.

    finish_reason       it ends for the same reason as the baseline's answer, and leaves no stop sequence behind; one
                        that ended by itself where the other met its limit, or the reverse, says so truly
    tool_call           a whole answer calls the tools that were offered, with arguments that parse and fit
    streamed_arguments  the same of a streamed answer, its deltas joined by their index as clients join them
    json_schema         the answer is JSON, and of the schema where one was asked for
    reasoning_apart     there is reasoning, it has a field of its own, and no mark of it is left in the answer
    stream_agrees       streamed and whole answers have the same shape: ending, text, calls, reasoning
    output_length       how long the answer is, against the baseline's
    identical_output    whether it is the baseline's answer, character by character

A prompt set of one's own is a file of JSON lines, one probe a line, and comments are not JSON:

    {"name": "weather", "traits": ["tool_call"], "body": {"messages": [...], "tools": [...], "tool_choice": "auto"}}

`body` is an OpenAI chat body. Model, stream and cache_salt are set by the replay; temperature 0 and a seed are added
where it has none. `path` is /v1/chat/completions unless it says /v1/completions; `calls` is how many tool calls an
answer needs at least, 1 unless it says otherwise. The built-in set, `functional_probes.jsonl`, has the same form.
"""

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

import msgspec
import orjson

from profiles.errors import FormatError, RuleError
from profiles.experiment_file import Experiment
from profiles.files import decode_line, opened
from profiles.records import Record
from profiles.toml_lines import line_of

type Trait = Literal[
    "finish_reason",
    "tool_call",
    "streamed_arguments",
    "json_schema",
    "reasoning_apart",
    "stream_agrees",
    "output_length",
    "identical_output",
]
TRAITS: Final[tuple[str, ...]] = get_args(Trait.__value__)
# How often each probe is asked in one boot, each time apart from the others in the prefix cache.
REPEATS: Final = 2
CHAT_PATH: Final = "/v1/chat/completions"
COMPLETIONS_PATH: Final = "/v1/completions"
BUILTIN: Final = Path(__file__).with_name("functional_probes.jsonl")
# Traits that only a whole answer shows; every probe is asked for a stream, those with one of these also for a whole.
_OF_WHOLE: Final = frozenset({"tool_call", "stream_agrees"})
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Probe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One prompt and what is tested with it: a line of a prompt set."""

    name: str
    traits: list[Trait]
    body: dict[str, Any]
    path: str = CHAT_PATH
    calls: int = 1

    @property
    def ways(self) -> tuple[bool, ...]:
        """How it is asked: True for a stream, False for a whole answer."""
        return (False, True) if _OF_WHOLE & set(self.traits) else (True,)


class ToolCall(Record, frozen=True, kw_only=True, omit_defaults=True):
    """One tool call of an answer, without what it says."""

    known: bool = False  # its name is that of a tool which was offered
    parses: bool = False  # its arguments are a JSON object
    fits: bool = False  # of the form that the tool's schema asks for (`schema_subset`)
    deltas: int = 0  # in how many pieces of a stream they came; 0 of a whole answer


class FunctionalOutcome(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What one probe brought: a line of functional.jsonl. Facts and hashes, no text."""

    probe: str
    repeat: int  # from 1
    streamed: bool
    traits: list[str]
    status: int | None = None
    outcome: str  # as of any request (`records`)
    reason: str | None = None  # why it did not end well: a status, a kind of error, a time-out; never its message
    finish: str | None = None
    stop_left: bool = False  # a stop sequence stands in the text
    calls: list[ToolCall] = []
    wanted_calls: int = 0
    json: bool | None = None  # the text is JSON; None where none was asked for
    misfit: str | None = None  # where it is not of the schema: keys of the schema, never a value
    reasoning_chars: int = 0
    leaked: bool = False  # a mark of reasoning stands in the text
    output_tokens: int | None = None
    limit: int | None = None  # of output tokens, as asked for
    text_chars: int = 0  # of what a person sees
    sha256: str | None = None  # of the text and the tool calls; None where there is neither
    malformed: int = 0  # events that were no JSON

    @property
    def ending(self) -> str:
        """How it ended, in a word or two: the finish reason, or what went wrong."""
        if self.outcome != "ok":
            return self.reason or self.outcome
        return f"{self.finish or 'no finish reason'}{' with its stop sequence' if self.stop_left else ''}"


@dataclass(frozen=True, slots=True)
class ProbeSet:
    """The probes of a run. `sha256` stands for their meaning: the same where only spaces of the file differ."""

    source: Literal["builtin", "file", "off"]
    probes: tuple[Probe, ...] = ()

    @property
    def sha256(self) -> str:
        meaning = [msgspec.to_builtins(probe) for probe in self.probes]
        return hashlib.sha256(orjson.dumps(meaning, option=orjson.OPT_SORT_KEYS)).hexdigest()

    def stated(self) -> dict[str, Any]:
        """For the manifest of a run."""
        names = {probe.name: list(probe.traits) for probe in self.probes}
        return {"source": self.source, "sha256": self.sha256, "repeats": REPEATS, "probes": names}


def probe_set(experiment: Experiment) -> ProbeSet:
    """The probes that a rule asks for. Raises RuleError, or FormatError with file and line."""
    asked = experiment.file.functional
    if asked.prompts == "off":
        if asked.file:
            text = experiment.path.read_text(encoding="utf-8") if experiment.path.exists() else ""
            problem = 'functional.prompts is "off", so its prompts would never be asked'
            line = line_of(text, "functional.file")
            raise RuleError(experiment.path, "functional.file", problem, line=line, hint="Take one of the two out.")
        return ProbeSet("off")
    if asked.file:
        return ProbeSet("file", read_probes(experiment.path.parent / asked.file))
    return ProbeSet("builtin", read_probes(BUILTIN))


def read_probes(path: Path) -> tuple[Probe, ...]:
    """A prompt set from its file. Raises FormatError with file, line and what is wrong."""
    probes: list[Probe] = []
    with opened(path) as file:
        lines = file.read().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        probe: Probe = decode_line(path, number, line, Probe)
        problem = next(_problems(probe), None)
        if problem is None and any(probe.name == other.name for other in probes):
            problem = f"a second probe of the name {probe.name!r}"
        if problem is not None:
            raise FormatError(path, problem, line=number)
        probes.append(probe)
    if not probes:
        raise FormatError(
            path, "no probe in it", hint='Write one JSON object a line, or [functional] prompts = "off" for none.'
        )
    return tuple(probes)


def _problems(probe: Probe) -> Iterator[str]:
    body = probe.body
    if not _NAME.fullmatch(probe.name):
        yield f"name {probe.name!r}: letters, digits, dot, dash and underscore, 64 at most"
    if probe.path not in (CHAT_PATH, COMPLETIONS_PATH):
        yield f"path {probe.path!r}: {CHAT_PATH} or {COMPLETIONS_PATH}"
    wanted = "messages" if probe.path == CHAT_PATH else "prompt"
    if not body.get(wanted):
        yield f"body has no {wanted}"
    if "stream" in body:
        yield "body.stream is set by the replay, by the traits that are tested"
    if body.get("n", 1) != 1:
        yield "body.n must be 1"
    if not probe.traits:
        yield f"traits is empty: some of {', '.join(TRAITS)}"
    if {"tool_call", "streamed_arguments"} & set(probe.traits) and not body.get("tools"):
        yield "a tool call is tested, and body has no tools"
    if "json_schema" in probe.traits and _json_asked(body) is None:
        yield "json_schema is tested, and body.response_format is neither json_schema nor json_object"
    if probe.calls < 1:
        yield "calls must be 1 or more"


def _json_asked(body: dict[str, Any]) -> dict[str, Any] | None:
    asked = body.get("response_format")
    return asked if isinstance(asked, dict) and asked.get("type") in ("json_schema", "json_object") else None


def schema_asked(body: dict[str, Any]) -> dict[str, Any] | None:
    """The schema that the answer to a body must have, `{"type": "object"}` for json_object; None where none is."""
    asked = _json_asked(body)
    if asked is None:
        return None
    named = asked.get("json_schema")
    schema = named.get("schema") if isinstance(named, dict) else None
    return schema if isinstance(schema, dict) else {"type": "object"}
