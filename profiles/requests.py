"""What a request asked for, as lengths and parameters. Content goes in, none comes out.

The facts are those that the rules of `classes.toml` ask for, so that a class can be recomputed from a capture without
any text. A word in them is from a fixed list: a client cannot put text of its own in a place where a parameter is
expected.
"""

import math
import re
from functools import lru_cache
from typing import Any, Final

from profiles.credentials import looks_like_credential
from profiles.languages import language_of
from profiles.prompts import MOST_PARTS, Prompt, constraint_of, json_of, prompt_of, read_body
from profiles.records import RequestFacts

OTHER: Final = "other"
UNREADABLE_MODEL: Final = "(unreadable)"
ROLES: Final = frozenset(("system", "developer", "user", "assistant", "tool", "function"))
FORMATS: Final = frozenset("text json_object json_schema guided_json choice regex grammar structural_tag".split())
TOOL_CHOICES: Final = frozenset(("auto", "none", "required"))
EFFORTS: Final = frozenset(("none", "minimal", "low", "medium", "high", "xhigh", "max"))

_MODEL = re.compile(r"[A-Za-z0-9._:/@+-]{1,200}", re.ASCII)
_LARGEST_NUMBER = 2**31 - 1


def describe(body: bytes | None, encoding: str = "") -> RequestFacts:
    """Facts of a request body. Never raises; a body that is not JSON says so in `unread`."""
    reading = read_body(body, encoding)
    size = len(body) if body is not None else 0
    if reading.document is None:
        return RequestFacts(body_bytes=size, unread=reading.unread)
    return facts_of(reading.document, prompt_of(reading.document), size)


def facts_of(asked: dict[str, Any], prompt: Prompt, body_bytes: int) -> RequestFacts:
    """Facts of a parsed body. `prompt` is its `prompt_of`, which others need too."""
    user_turns = tool_results = system_chars = images = audios = videos = 0
    input_chars = len(prompt.system)
    user_text, before = "", []
    for message in prompt.messages:
        role, chars = message.role, len(message.text)
        input_chars += chars
        if role == "user":
            user_turns += 1
            before.append(user_text)
            user_text = message.text
        elif role == "tool":
            tool_results += 1
        elif role in ("system", "developer"):
            system_chars += chars
        for medium in message.media:
            images += medium.kind == "image"
            audios += medium.kind == "audio"
            videos += medium.kind == "video"
    tools = json_of(prompt.tools) if prompt.tools else b""
    cut = [f"more than {MOST_PARTS} messages and parts"] if prompt.cut else []
    if tools is None:
        cut.append("tools nested too deeply")
    reasoning, effort = _reasoning(asked)
    return RequestFacts(
        model=_model(asked["model"]) if isinstance(asked.get("model"), str) else None,
        stream=asked.get("stream") is True,
        body_bytes=body_bytes,
        messages=len(prompt.messages),
        user_turns=user_turns,
        last_role=_word(prompt.messages[-1].role, ROLES) if prompt.messages else None,
        system_chars=len(prompt.system) + system_chars,
        input_chars=input_chars,
        tools=len(prompt.tools),
        tools_chars=len(tools or b""),
        tool_results=tool_results,
        images=images,
        audios=audios,
        videos=videos,
        response_format=_response_format(asked),
        tool_choice=_tool_choice(asked.get("tool_choice")),
        max_tokens=_whole(asked, "max_completion_tokens", "max_tokens", "max_output_tokens"),
        temperature=_real(asked.get("temperature")),
        top_p=_real(asked.get("top_p")),
        top_k=_whole(asked, "top_k"),
        n=_whole(asked, "n") or 1,
        logprobs=asked.get("logprobs") not in (None, False),
        reasoning=reasoning,
        reasoning_effort=effort,
        code_share=code_share(user_text),
        # A follow-up ("And then?") is often too short to tell: then what the user said before it speaks.
        language=language_of(user_text) or (language_of(" ".join(before)) if any(before) else None),
        cut="; ".join(cut) or None,
    )


def _word(value: Any, words: frozenset[str]) -> str | None:
    """The value if it is one of the words. Anything else a client may write is not to be stored."""
    if value is None:
        return None
    return value if isinstance(value, str) and value in words else OTHER


@lru_cache(maxsize=256)  # a server has few models, and every request names one
def _model(value: str) -> str:
    return value if _MODEL.fullmatch(value) and not looks_like_credential(value) else UNREADABLE_MODEL


def _whole(asked: dict[str, Any], *keys: str) -> int | None:
    for key in keys:
        value = asked.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _LARGEST_NUMBER:
            return value
    return None


def _real(value: Any) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= _LARGEST_NUMBER:
        return None
    return float(value) if math.isfinite(value) else None


def _response_format(asked: dict[str, Any]) -> str | None:
    constraint = constraint_of(asked)
    return None if constraint is None else _word(constraint[0], FORMATS)


def _tool_choice(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("type")  # Anthropic: auto, any, none, tool; OpenAI: function and the name
        if value == "any":
            return "required"
        return value if isinstance(value, str) and value in TOOL_CHOICES else "named"
    return _word(value, TOOL_CHOICES)


def _reasoning(asked: dict[str, Any]) -> tuple[bool, str | None]:
    """Whether reasoning was asked for, and how much of it."""
    effort = asked.get("reasoning_effort")
    if effort is None and isinstance(asked.get("reasoning"), dict):  # Responses
        effort = asked["reasoning"].get("effort")
    effort = _word(effort, EFFORTS)
    if effort not in (None, "none", "minimal"):
        return True, effort
    template = asked.get("chat_template_kwargs")
    if isinstance(template, dict) and template.get("enable_thinking") is True:
        return True, effort
    thinking = asked.get("thinking")
    return isinstance(thinking, dict) and thinking.get("type") in ("enabled", "adaptive"), effort


# --- How much of a text is code, told from samples, so that a long text costs no more than a page.

_SAMPLED_CHARS = 500
_SAMPLES = 4
_FENCE = "```"
_CODE_STARTS = (
    *("def ", "class ", "import ", "func ", "fn ", "let ", "const ", "var ", "public ", "private "),
    *("#include", "//", "/*", "}", "return"),
)
_BLOCK_STARTS = ("if ", "for ", "while ", "else")
_PYTHON_IMPORT = re.compile(r"from \w+ import")
_WORD_GOES_ON = re.compile(r"(?:return|else)\w")


def code_share(text: str) -> float | None:
    """Share of the lines that look like code, fenced blocks counted whole. None for a text without lines.

    Of a text longer than a page, four samples of 500 characters are looked at, spread evenly.
    """
    code = total = 0
    inside = False
    done = 0
    for start, end in _samples(len(text)):
        if start > done:
            # Every other fence closes one, so what lies between the samples need only be counted.
            inside ^= text.count(_FENCE, done, start) % 2 == 1
        for line in text[start:end].splitlines():
            line = line.strip()
            if not line:
                continue
            total += 1
            if line.startswith(_FENCE):
                inside = not inside
                code += 1
            else:
                code += inside or _is_code(line)
        done = end
    return round(code / total, 3) if total else None


def _samples(chars: int) -> list[tuple[int, int]]:
    if chars <= _SAMPLES * _SAMPLED_CHARS:
        return [(0, chars)]
    gap = (chars - _SAMPLES * _SAMPLED_CHARS) // (_SAMPLES - 1)
    starts = [at * (_SAMPLED_CHARS + gap) for at in range(_SAMPLES - 1)] + [chars - _SAMPLED_CHARS]
    return [(start, start + _SAMPLED_CHARS) for start in starts]


def _is_code(line: str) -> bool:
    """Whether a line without blanks around it looks like code."""
    last = line[-1]
    if last in ";{}":
        return True
    if line.startswith(_CODE_STARTS):
        return _WORD_GOES_ON.match(line) is None
    if last == ":" and line.startswith(_BLOCK_STARTS):
        return _WORD_GOES_ON.match(line) is None
    return line.startswith("from ") and _PYTHON_IMPORT.match(line) is not None
