"""Passages with facts: each is about one thing of its own, and no other passage tells the same of it.

A passage is made of sentences about attributes (when it was built, who runs it, how much it holds). Each attribute has
a question, so that any passage of a collection can be asked about, and its answer stands in that passage alone.
"""

from dataclasses import dataclass

from profiles.builtin.draws import Draw
from profiles.builtin.subjects import PEOPLE, SUBJECTS, Attribute, Subject

RAG_SYSTEM = (
    "You answer questions from the passages that you are given, and from nothing else. Name the number of the passage"
    " that you rely on and quote the sentence. If no passage answers the question, say so."
)
LONG_SYSTEM = (
    "You are an analyst. You read the whole report before you answer, and name the section for each statement."
)

_FIRST_PARTS = (
    "Alder Ash Birch Black Bram Brin Carn Cold Crag Dal Dun East Elm Fal Fen Fern Gale Glen Grim Hal Haw Hol Kel Kin"
    " Lang Lark Lin Mar Mel Mill Moss Nar Nor Oak Or Pen Quill Rav Red Row Sal Sel Stan Thorn Tor Ul Wald West Wick Yar"
).split()
_SECOND_PARTS = (
    "beck bourne bridge by combe dale den field fold ford gate ham haven holm hurst ley marsh mere mouth ness"
    " port ridge rigg shaw stead stoke thorpe ton wade wick worth"
).split()


@dataclass(frozen=True, slots=True)
class Passage:
    """A text about one thing, and what can be asked about it: a question, and the sentence that answers it."""

    title: str
    text: str
    questions: tuple[tuple[str, str], ...]


def places(draw: Draw, count: int) -> list[str]:
    """Names of places, none twice; where simple ones run out, one is Upper Such and another is Lower Such."""
    simple = [first + second for first in _FIRST_PARTS for second in _SECOND_PARTS]
    names = draw.some(simple, count)
    for prefix in ("Upper", "Lower", "Old", "New", "Great", "Little"):
        names += [f"{prefix} {name}" for name in simple[: count - len(names)]]
    return names


def passage(draw: Draw, place: str, subject: Subject | None = None) -> Passage:
    """A passage about something at a place."""
    subject = draw.one(SUBJECTS) if subject is None else subject
    name = subject.name.format(place=place)
    chosen = draw.some(subject.attributes, draw.whole(5, min(8, len(subject.attributes))))
    sentences = [draw.one(subject.openings).format(name=name, place=place)]
    # No aside comes twice: it would tell two years of one thing.
    asides = draw.some(subject.asides, draw.whole(0, 2))
    questions = []
    for at, attribute in enumerate(chosen):
        value = _value(draw, attribute)
        # The name is said now and then, as a writer would; in between a pronoun stands for it.
        who = name if at % 3 == 2 else draw.one(subject.pronouns)
        said = draw.one(attribute.sentences).format(it=who, value=value)
        said = said[0].upper() + said[1:] + "."
        sentences.append(said)
        questions.append((attribute.question.format(name=name), said))
        if asides and draw.chance(0.4):
            sentences.append(asides.pop().format(name=name, person=_person(draw), year=draw.whole(1950, 2024)))
    return Passage(name[0].upper() + name[1:], " ".join(sentences), tuple(questions))


def _value(draw: Draw, attribute: Attribute) -> str:
    if attribute.choices:
        return draw.one(attribute.choices)
    if attribute.low == attribute.high:
        return _person(draw)
    number = draw.whole(attribute.low, attribute.high)
    return f"{number:,} {attribute.unit}" if attribute.unit else str(number)


def _person(draw: Draw) -> str:
    first, last = PEOPLE
    return f"{draw.one(first)} {draw.one(last)}"


@dataclass(frozen=True, slots=True)
class Reading:
    """A text to read with a question at its end, and the sentences that answer it."""

    text: str
    passages: tuple[str, ...]
    answers: tuple[str, ...]


def retrieved(draw: Draw, chars: int) -> Reading:
    """Numbered passages, as a search returns them, and a question that one of them answers."""
    names = places(draw, 2 + chars // 300)
    found: list[Passage] = []
    size = 0
    for name in names:
        if found and size + len(found[-1].text) // 2 > chars - 300:
            break
        one = passage(draw, name)
        found.append(one)
        size += len(_numbered(len(found), one)) + 2
    about = draw.one(found)
    question, sentence = draw.one(about.questions)
    related = draw.one(
        ("and two related facts from the same passage", "and what else the passage says about its upkeep")
    )
    asked = f"Question: {question} Give the answer {related}."
    shown = [_numbered(at, one) for at, one in enumerate(found, start=1)]
    text = "Passages:\n\n" + "\n\n".join(shown) + f"\n\n{asked}"
    return Reading(text, tuple(shown), (sentence,))


def _numbered(number: int, one: Passage) -> str:
    return f"[{number}] {one.title}\n{one.text}"


def report(draw: Draw, chars: int) -> Reading:
    """A long report of numbered sections in chapters, and a task that needs several sections of it."""
    names = iter(places(draw, 8 + chars // 300))
    order = draw.some(SUBJECTS, len(SUBJECTS))
    title = f"Regional survey {draw.whole(2018, 2026)}, volume {draw.whole(1, 40)}"
    parts: list[str] = [f"{title}\n\nThe survey describes what the region runs and owns, one thing to a section."]
    found: list[tuple[str, Passage]] = []
    size, chapter = len(parts[0]), 0
    per_chapter = max(2, min(24, chars // 700 // 4))
    while size < chars - 1_000 or len(found) < 3:
        subject = order[chapter % len(order)]
        chapter += 1
        parts.append(f"Chapter {chapter}: {subject.chapter}")
        size += len(parts[-1]) + 2
        for section in range(1, per_chapter + 1):
            one = passage(draw, next(names), subject)
            number = f"{chapter}.{section}"
            parts.append(f"{number} {one.title}\n{one.text}")
            found.append((number, one))
            size += len(parts[-1]) + 2
            if size >= chars - 1_000 and len(found) >= 3:
                break
    asked = draw.some(found, 3)
    questions, answers = [], []
    for _, one in asked:
        question, sentence = draw.one(one.questions)
        questions.append(question)
        answers.append(sentence)
    listed = "\n".join(f"{at}. {question}" for at, question in enumerate(questions, start=1))
    number, one = draw.one(found)
    task = (
        f"Answer these questions from the survey, with the number of the section for each:\n{listed}\n"
        f"Then sum up section {number} ({one.title}) in one paragraph, and say which of the sections that you named"
        " describes the oldest thing, as far as the survey tells."
    )
    text = "\n\n".join([*parts, task])
    return Reading(text, tuple(parts[1:]), tuple(answers))
