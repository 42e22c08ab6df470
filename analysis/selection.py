"""What two arms selected, compared: the evidence that a flag did something. Pure.

An arm whose flag names what would have been selected anyway, or is ignored, is a second copy of its predecessor: its
difference is noise, however large it looks.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import orjson

from profiles.runs import BootFacts
from profiles.selection import CHOICES

# Where an engine listens says nothing about how it works.
_PLACES: Final = frozenset({"host", "port", "uds", "api_server_count", "distributed_init_method", "instance_id"})
# A path in these is what is served; in all others it is where something lies.
_MODELS: Final = ("model", "tokenizer", "speculative", "draft", "quantization", "revision")
_UNSTABLE = (
    (re.compile(r"(?<![\w/.])/[^\s:,'\"]*/"), ".../"),
    (
        re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b|\b[0-9a-f]{12,}\b|0x[0-9a-f]+"),
        "#",
    ),
    (re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b"), "#"),
)


def shows_no_difference(
    own: Sequence[BootFacts], other: Sequence[BootFacts], own_env: Mapping[str, str], other_env: Mapping[str, str]
) -> bool:
    """Whether both sides are known and nothing tells one from the other: choices, configuration and environment.

    What differs between the boots of one arm tells nothing. False where either log shows no choice.
    """
    if own_env != other_env:
        return False
    ours, theirs = _choices(own), _choices(other)
    if not _telling(ours) or ours != theirs:
        return False
    return not _config_changes(own, other)


def differences(own: Sequence[BootFacts], other: Sequence[BootFacts], name: str) -> list[str]:
    """One sentence per choice that differs from the arm `name`, and one for the configuration."""
    ours, theirs = _choices(own), _choices(other)
    sentences = []
    for key in CHOICES:
        if key not in ("engine", "version") and key in ours and key in theirs and ours[key] != theirs[key]:
            before, after = (_shown(side[key]) for side in (theirs, ours))
            sentences.append(f"{key.replace('_', ' ')}: {after}, {name} {before}")
    changed = _config_changes(own, other)
    if changed:
        few = ", ".join(changed[:6]) + (f" and {len(changed) - 6} more" if len(changed) > 6 else "")
        sentences.append(f"resolved configuration differs from {name} in {few}")
    return sentences


def _choices(boots: Iterable[BootFacts]) -> dict[str, frozenset[str]]:
    """Choice → its values over the boots, each as canonical JSON."""
    found: dict[str, set[str]] = {}
    for facts in boots:
        for key in CHOICES:
            if key in facts.selection:
                value = orjson.dumps(facts.selection[key], option=orjson.OPT_SORT_KEYS).decode()
                found.setdefault(key, set()).add(value)
    return {key: frozenset(values) for key, values in found.items()}


def _telling(choices: Mapping[str, Any]) -> bool:
    return bool(choices.keys() - {"engine", "version"})


def _shown(values: frozenset[str]) -> str:
    texts = []
    for value in sorted(values):
        found = orjson.loads(value)
        if isinstance(found, bool):
            texts.append("on" if found else "off")
        elif isinstance(found, list):
            texts.append(
                " of ".join(map(str, found)) if all(isinstance(item, int) for item in found) else ", ".join(found)
            )
        elif isinstance(found, dict):
            texts.append(", ".join(f"{key} {item}" if item is not None else key for key, item in found.items()))
        else:
            texts.append(str(found))
    return " or ".join(texts) or "none"


def _config_changes(own: Sequence[BootFacts], other: Sequence[BootFacts]) -> list[str]:
    """Names of the settings that are stable on both sides and differ."""
    ours, theirs = _settings(own), _settings(other)
    if not ours or not theirs:
        return []
    return sorted(
        name
        for name in ours.keys() | theirs.keys()
        if len(ours.get(name, ())) <= 1 and len(theirs.get(name, ())) <= 1 and ours.get(name) != theirs.get(name)
    )


def _settings(boots: Iterable[BootFacts]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for facts in boots:
        for name, value in (facts.selection.get("config") or {}).items():
            if name not in _PLACES:
                found.setdefault(name, set()).add(_still(name, str(value)))
    return found


def _still(name: str, value: str) -> str:
    """A value without what differs from boot to boot."""
    for regex, replacement in _UNSTABLE[1 if any(word in name for word in _MODELS) else 0 :]:
        value = regex.sub(replacement, value)
    return value
