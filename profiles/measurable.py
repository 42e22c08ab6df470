"""What a profile cannot answer, by name, and which flags of an engine ask for it.

The names stand in a profile's `not_measurable`. Later stages refuse by them: an arm that changes speculative decoding
needs `acceptance`, since whether a draft is accepted depends on the text; one that changes guided decoding needs
`guided decoding cost`, since a schema over random words is a random walk.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson

ACCEPTANCE: Final = "acceptance"
GUIDED_DECODING: Final = "guided decoding cost"
OUTPUT_EQUALITY: Final = "output equality"
NO_CONCURRENCY: Final = "concurrency"  # nobody knows when the requests ended
NO_OUTPUT_LENGTH: Final = "output length"
NO_PREFIXES: Final = "prefix cache"  # rebuilt prompts that share nothing, since nobody knows what the real ones shared

# A profile without the recorded text.
NEEDS_CONTENT: Final = (ACCEPTANCE, GUIDED_DECODING, OUTPUT_EQUALITY)
# Rebuilt text can be sent, so more could be taken for measured.
NEEDS_RECORDED_TEXT: Final = (
    *NEEDS_CONTENT,
    "answer length drift",
    "reasoning length",
    "expert balance",
    "quantisation quality",
)

# Whole words of a flag, without its dashes: vLLM, SGLang, TensorRT-LLM, llama.cpp, and the embedded engine.
_FLAGS: Final = {
    ACCEPTANCE: re.compile(
        r"--(?:speculative|spec|draft|num-speculative|mtp|ngram|eagle|medusa|lookahead|lookup-cache)(?:[-.].*|)"
        r"|--(?:model|hf-repo|ctx-size|device|gpu-layers|n-gpu-layers|threads|cache-type-[kv])-draft(?:-.*)?"
        r"|-md|-hfd|-hfrd|-ngld|-devd|-ctkd|-ctvd|-lcs|-lcd|-sc"
    ),
    GUIDED_DECODING: re.compile(
        r"--(?:guided-decoding|structured-outputs|grammar|constrained-decoding|json-schema|xgrammar)(?:[-.].*)?"
    ),
}
_VARIABLES: Final = {
    ACCEPTANCE: re.compile(r".*(?:SPECULATIVE|_DRAFT|DRAFT_|_SPEC_|LOOKUP_CACHE|_MTP).*"),
    GUIDED_DECODING: re.compile(r".*(?:GUIDED_DECODING|STRUCTURED_OUTPUTS|GRAMMAR|JSON_SCHEMA).*"),
}
_ASSIGNMENT: Final = re.compile(r"[A-Z][A-Z0-9_]*=")
# What the flags of each change, as a sentence says it.
SUBJECTS: Final = {ACCEPTANCE: "speculative decoding", GUIDED_DECODING: "guided decoding"}


def settings_for(name: str, argv: Sequence[str], env: Mapping[str, str]) -> dict[str, Any]:
    """The flags and variables of a command line that bear on `name`, with their values; the last of a flag wins.

    Flags are in lower case with dashes, JSON values parsed, so that two ways of writing one thing are equal. A flag
    that is hidden in a file cannot be seen.
    """
    found: dict[str, Any] = {}
    for flag, value in flags_of(argv):
        if _FLAGS[name].fullmatch(flag):
            found[flag] = _plain(value)
    # `env NAME=value engine` and `docker run -e NAME=value` set variables too.
    stated = dict(word.split("=", 1) for word in _words(argv) if _ASSIGNMENT.match(word))
    for variable, text in (stated | dict(env)).items():
        if _VARIABLES[name].fullmatch(variable):
            found[variable] = _plain(text)
    return found


def flags_of(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The flags of a command line with their values, in order: in lower case, with dashes, `""` without a value."""
    waiting: tuple[str, str] | None = None
    for word in _words(argv):
        if word.startswith("-") and not _is_number(word):
            if waiting is not None:
                yield waiting
            flag, _, value = word.partition("=")
            waiting = flag.lower().replace("_", "-"), value
        elif waiting is not None:
            yield waiting[0], waiting[1] or word
            waiting = None
    if waiting is not None:
        yield waiting


def _words(argv: Sequence[str]) -> Iterator[str]:
    """The words of a command line, those of a line for a shell too."""
    for word in argv:
        if " -" in word and not word.lstrip().startswith(("{", "[")):
            try:
                yield from shlex.split(word)
                continue
            except ValueError:  # a quote that does not close
                yield from word.split()
                continue
        yield word


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _plain(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
