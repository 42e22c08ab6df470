"""What a request asked for, as lengths and parameters. Content goes in, none comes out.

The facts are those that `classify` needs, so that a class can be recomputed from a capture without any text.
"""

import re
from typing import Any

import orjson

from profiles.records import RequestFacts

# Larger bodies are not parsed on the recording path; their size is still known.
LONGEST_READ_BODY_BYTES = 64 * 1024 * 1024

_CODE_LINE = re.compile(
    r"(def |class |import |from \w+ import|return\b|if .*[:{]\s*$|for .*[:{]\s*$|while .*[:{]\s*$|else\b.*[:{]\s*$"
    r"|func |fn |let |const |var |public |private |#include|//|/\*|\}|.*[;{}]\s*$)"
)
# How much of a text is looked at for language and code: enough to tell, bounded for the recording path.
_LOOKED_AT_CHARS = 20_000


def describe(body: bytes | None) -> RequestFacts:
    """Facts of a request body. Never raises; a body that is not JSON says so in `unread`."""
    if body is None:
        return RequestFacts(unread="no body")
    if not body:
        return RequestFacts(unread="empty body")
    if len(body) > LONGEST_READ_BODY_BYTES:
        return RequestFacts(body_bytes=len(body), unread=f"body larger than {LONGEST_READ_BODY_BYTES} bytes")
    try:
        asked = orjson.loads(body)
    except orjson.JSONDecodeError:
        return RequestFacts(body_bytes=len(body), unread="not JSON")
    if not isinstance(asked, dict):
        return RequestFacts(body_bytes=len(body), unread="not a JSON object")
    return _describe(asked, len(body))


def _describe(asked: dict[str, Any], body_bytes: int) -> RequestFacts:
    messages = _messages(asked)
    roles = [role for role, _, _ in messages]
    user_text = next((text for role, text, _ in reversed(messages) if role == "user"), "")
    tools = asked.get("tools") or asked.get("functions")
    tools = tools if isinstance(tools, list) else []
    # System text outside the message list: Anthropic's `system`, Responses' `instructions`.
    outside = _flatten(asked.get("system"))[0] + _flatten(asked.get("instructions"))[0]
    temperature = asked.get("temperature")
    return RequestFacts(
        model=asked["model"][:200] if isinstance(asked.get("model"), str) else None,
        stream=asked.get("stream") is True,
        body_bytes=body_bytes,
        messages=len(messages),
        user_turns=roles.count("user"),
        last_role=roles[-1] if roles else None,
        system_chars=len(outside) + sum(len(text) for role, text, _ in messages if role in ("system", "developer")),
        input_chars=len(outside) + sum(len(text) for _, text, _ in messages),
        tools=len(tools),
        tools_chars=len(orjson.dumps(tools)) if tools else 0,
        tool_results=roles.count("tool"),
        images=sum(images for _, _, images in messages),
        response_format=_response_format(asked),
        max_tokens=_whole(asked, "max_completion_tokens", "max_tokens", "max_output_tokens"),
        temperature=float(temperature) if isinstance(temperature, int | float) else None,
        n=_whole(asked, "n") or 1,
        reasoning=_asks_for_reasoning(asked),
        code_share=code_share(user_text),
        language=language_of(user_text),
    )


def _whole(asked: dict[str, Any], *keys: str) -> int | None:
    for key in keys:
        value = asked.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def _messages(asked: dict[str, Any]) -> list[tuple[str, str, int]]:
    """Role, text and number of images of each message; a bare prompt or input is one user message."""
    listed = asked.get("messages")
    if not isinstance(listed, list):
        listed = asked.get("input") if isinstance(asked.get("input"), list) else None
    if listed is None:
        text, images = _flatten(asked.get("prompt") or asked.get("input"))
        return [("user", text, images)] if text or images else []
    out: list[tuple[str, str, int]] = []
    for message in listed:
        if isinstance(message, str):  # a batch of inputs, as embeddings have
            out.append(("user", message, 0))
        elif isinstance(message, dict):
            role = message.get("role")
            if not isinstance(role, str):
                role = "tool" if message.get("type") == "function_call_output" else "user"
            text, images = _flatten(message.get("content") or message.get("output") or message.get("text"))
            if role == "user" and _has_tool_result(message.get("content")):
                role = "tool"
            out.append((role, text, images))
    return out


def _has_tool_result(content: Any) -> bool:
    parts = content if isinstance(content, list) else ()
    return any(isinstance(part, dict) and part.get("type") == "tool_result" for part in parts)


def _flatten(content: Any) -> tuple[str, int]:
    """The text of a content value in any of its forms, and how many images it has."""
    if isinstance(content, str):
        return content, 0
    if not isinstance(content, list):
        return "", 0
    texts: list[str] = []
    images = 0
    for part in content:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict):
            kind = str(part.get("type", ""))
            if "image" in kind:
                images += 1
            inner = part.get("text", part.get("content"))
            text, more = _flatten(inner)
            texts.append(text)
            images += more
    return "".join(texts), images


def _response_format(asked: dict[str, Any]) -> str | None:
    wanted = asked.get("response_format")
    if isinstance(wanted, dict) and isinstance(wanted.get("type"), str):
        return str(wanted["type"])[:40]
    text = asked.get("text")  # Responses
    if isinstance(text, dict) and isinstance(text.get("format"), dict) and isinstance(text["format"].get("type"), str):
        return str(text["format"]["type"])[:40]
    outputs = asked.get("structured_outputs")
    for kind in ("json", "choice", "regex", "grammar"):
        if asked.get(f"guided_{kind}") is not None or (isinstance(outputs, dict) and outputs.get(kind) is not None):
            return "guided_json" if kind == "json" else kind
    return None


def _asks_for_reasoning(asked: dict[str, Any]) -> bool:
    if asked.get("reasoning_effort") not in (None, "none", "minimal"):
        return True
    template = asked.get("chat_template_kwargs")
    if isinstance(template, dict) and template.get("enable_thinking") is True:
        return True
    thinking = asked.get("thinking")
    return isinstance(thinking, dict) and thinking.get("type") == "enabled"


def code_share(text: str) -> float | None:
    """Share of the lines that look like code, fenced blocks counted whole. None for a text without lines."""
    inside = False
    code = total = 0
    for line in text[:_LOOKED_AT_CHARS].splitlines():
        fence = line.lstrip().startswith("```")
        if fence:
            inside = not inside
        if line.strip():
            total += 1
            # Stripped first: leading blanks inside the expression cost their square on a line of blanks.
            code += inside or fence or _CODE_LINE.match(line.strip()) is not None
    return round(code / total, 3) if total else None


_STOP_WORDS = {
    "en": frozenset(
        "the of and to in a is that for it as was with be by on not he his but at are this have from or had an they "
        "which you one we all her she there would their what so if can when who will no how my your please".split()
    ),
    "hu": frozenset(
        "a az és hogy nem is egy ez azt van volt meg de csak már vagy mint ha még el fel ki be mi te ő én kérem milyen "
        "hogyan miért mikor hol kell lehet lesz volna minden más után alatt szerint között ezt ami aki".split()
    ),
    "de": frozenset("der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch es".split()),
    "fr": frozenset("de la le et les des en un du une que est pour qui dans a par plus pas au sur ne se".split()),
    "es": frozenset("de la que el en y a los del se las por un para con no una su al lo como más".split()),
}
_WORD = re.compile(r"[^\W\d_]+")


def language_of(text: str) -> str | None:
    """ISO code of the language, by its share of stop words. None unless the answer is clear.

    Clear means at least 8 words, a best share of at least 0.08, and 1.3 times the second best: on shorter or mixed
    texts silence beats a guess.
    """
    words = [word.lower() for word in _WORD.findall(text[:_LOOKED_AT_CHARS])]
    if len(words) < 8:
        return None
    shares = {language: sum(word in stops for word in words) / len(words) for language, stops in _STOP_WORDS.items()}
    # Long double accents exist in Hungarian alone.
    shares["hu"] += 2 * sum("ő" in word or "ű" in word for word in words) / len(words)
    best, second = sorted(shares, key=shares.__getitem__, reverse=True)[:2]
    if shares[best] < 0.08 or shares[best] < 1.3 * shares[second]:
        return None
    return best
