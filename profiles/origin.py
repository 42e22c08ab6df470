"""Where the requests of a profile come from, in words: whoever looks at its numbers must know what was not recorded."""

from collections.abc import Mapping
from typing import Any, Final

CAPTURE: Final = "capture"
SHAPE: Final = "shape"


def is_shaped(manifest: Mapping[str, Any]) -> bool:
    """Whether a recorded or imported load was cut, thinned, grown or mixed."""
    return bool((manifest.get("source") or {}).get("kind") == SHAPE)


def say_origin(manifest: Mapping[str, Any]) -> str:
    """One line for a load that is not as it was recorded; empty for a recording, of which nothing needs to be said."""
    source = manifest.get("source") or {}
    kind = source.get("kind", CAPTURE)
    if kind == CAPTURE:
        return ""
    if kind != SHAPE:
        named = " ".join(str(source[key]) for key in ("name", "scale") if key in source)
        return "; ".join(filter(None, [f"{kind} {named}".rstrip(), *map(str, source.get("notes", ()))]))
    steps = []
    for step in source.get("steps", ()):
        told = ", ".join(f"{key} {value}" for key, value in step.items() if isinstance(value, int | float | str))
        steps.append(told.removeprefix("step "))
    of = (source.get("of_source") or {}).get("kind", CAPTURE)
    whose = {CAPTURE: "a recording", SHAPE: "a shaped load"}.get(of, f"imported {of}")
    return f"shaped from {whose} ({'; '.join(steps)}): what is in flight is an estimate"
