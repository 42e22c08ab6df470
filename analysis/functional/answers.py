"""What the functional probes of a run brought, by boot, and which answers are right. Pure but for the reading."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Final, Literal

from analysis.bench import Bench
from analysis.load import counting_boots
from profiles.functional import FunctionalOutcome
from profiles.records import OK
from profiles.runs import read_functional

type Status = Literal["kept", "broken", "not shown", "not offered", "not measured"]

LENGTH: Final = "output_length"
IDENTITY: Final = "identical_output"

# Trait → its name in a list, and what is said where it is broken.
WORDS: Final = {
    "finish_reason": ("finish reasons", "answers do not end as the baseline's do"),
    "tool_call": ("tool calls", "tool calls are missing or their arguments do not fit"),
    "streamed_arguments": ("streamed arguments", "streamed tool-call arguments do not parse"),
    "json_schema": ("JSON", "what was asked for as JSON is not, or not of the schema"),
    "reasoning_apart": ("reasoning apart", "reasoning is not kept apart from the answer"),
    "stream_agrees": ("streams like whole answers", "a streamed answer has another shape than the whole one"),
    LENGTH: ("output length", "the length of answers drifts"),
    IDENTITY: ("identical outputs", "outputs differ"),
}


@dataclass(frozen=True, slots=True)
class FunctionalFinding:
    """One trait of the answers to the fixed prompts: `finish_reason`, `tool_call`, `streamed_arguments`, `json_schema`,
    `reasoning_apart`, `stream_agrees`, `output_length`, `identical_output`.

    `own` of `own_asked` probes of the arm agree with the baseline or are right, each counted once per boot; `copy` of
    `copy_asked` those of the baseline's second copy. `not offered`: the baseline cannot do it either.
    """

    trait: str
    status: Status
    own: int
    own_asked: int
    copy: int
    copy_asked: int
    sentence: str
    probes: tuple[str, ...] = ()  # names of those that differ
    asked: tuple[int, int] = (0, 0)  # probes of the whole set, and boots of the arm in which they were asked


# Of one probe in one boot: its answers by whether they were streamed, and by repeat.
type Answers = tuple[FunctionalOutcome, ...]
# Block → probe → its answers there.
type Boots = Mapping[int, Mapping[str, Answers]]


@dataclass(frozen=True, slots=True)
class Sides:
    own: Boots
    base: Boots
    copy: Boots

    def traits(self) -> dict[str, list[str]]:
        """Trait → the probes that test it, in the order in which they were asked."""
        found: dict[str, dict[str, None]] = {}
        for boot in chain(self.base.values(), self.copy.values(), self.own.values()):
            for probe, answers in boot.items():
                for trait in answers[0].traits:
                    found.setdefault(trait, {})[probe] = None
        return {trait: list(found[trait]) for trait in WORDS if trait in found}


def boots_of(bench: Bench, name: str) -> Boots:
    boots: dict[int, dict[str, Answers]] = {}
    for (arm, block), boot in counting_boots(bench.run).items():
        if arm == name and block in bench.course.blocks:
            answers: dict[str, Answers] = {}
            for outcome in read_functional(boot.path):
                answers[outcome.probe] = (*answers.get(outcome.probe, ()), outcome)
            if answers:
                boots[block] = answers
    return boots


_OF_LENGTH: Final = {"stop", "length"}


def _calls_fit(answers: Answers, *, streamed: bool) -> bool | None:
    own = [answer for answer in answers if answer.streamed == streamed]
    return None if not own else all(map(_call_fits, own))


def _call_fits(answer: FunctionalOutcome) -> bool:
    enough = len(answer.calls) >= answer.wanted_calls > 0
    return answer.outcome == OK and enough and all(call.known and call.parses and call.fits for call in answer.calls)


def _json_fits(answers: Answers) -> bool:
    return all(answer.outcome == OK and answer.json is True and answer.misfit is None for answer in answers)


def _reasoning_apart(answers: Answers) -> bool:
    return all(answer.outcome == OK and answer.reasoning_chars > 0 and not answer.leaked for answer in answers)


def _stream_agrees(answers: Answers) -> bool | None:
    """Streamed and whole answers of each pass have one shape. None where only one way was asked, or where one of the
    two was cut at its limit and the other was not."""
    shapes: dict[int, dict[bool, tuple[object, ...]]] = {}
    for answer in answers:
        shape = (answer.ending, answer.text_chars > 0, len(answer.calls), answer.reasoning_chars > 0)
        shapes.setdefault(answer.repeat, {})[answer.streamed] = shape
    both = [shape for shape in shapes.values() if len(shape) == 2 and {shape[True][0], shape[False][0]} != _OF_LENGTH]
    if not both:
        return None
    ended = all(answer.outcome == OK for answer in answers)
    return ended and all(shape[True] == shape[False] for shape in both)


type Right = Callable[[Answers], bool | None]
RIGHT: Final[dict[str, Right | None]] = {
    "finish_reason": None,  # against the baseline's own endings: `ends_like`
    "tool_call": lambda answers: _calls_fit(answers, streamed=False),
    "streamed_arguments": lambda answers: _calls_fit(answers, streamed=True),
    "json_schema": _json_fits,
    "reasoning_apart": _reasoning_apart,
    "stream_agrees": _stream_agrees,
}


def ends_like(sides: Sides, probe: str) -> Right:
    """Ends as most answers of the baseline and its copy do, each way for itself. A refusal is right nowhere."""
    usual: dict[bool, str] = {}
    given = [answer for boot in chain(sides.base.values(), sides.copy.values()) for answer in boot.get(probe, ())]
    for streamed in {answer.streamed for answer in given}:
        endings = Counter(answer.ending for answer in given if answer.streamed == streamed and answer.outcome == OK)
        usual[streamed] = endings.most_common(1)[0][0] if endings else ""

    def right(answers: Answers) -> bool:
        return all(
            answer.outcome == OK
            and (answer.ending == (other := usual.get(answer.streamed, "")) or _ends_truly(answer, other))
            for answer in answers
        )

    return right


def _ends_truly(answer: FunctionalOutcome, other: str) -> bool:
    """It met its limit where the other one ended by itself, or the reverse, and says so. How long it is, is another
    trait: an arm with another rounding may think for longer."""
    if {answer.ending, other} != _OF_LENGTH or answer.output_tokens is None or answer.limit is None:
        return False
    return (answer.ending == "length") == (answer.output_tokens >= answer.limit)
