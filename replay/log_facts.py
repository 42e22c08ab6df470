"""What the fact lines of a boot log say together: `profiles.selection.Selection`. Pure."""

import ast
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from profiles.credentials import REMOVED, is_credential_name
from profiles.units import SECOND_NS
from replay.log_table import ANY

GIB: Final = 1024**3
COLD, WARM, MIXED = "cold", "warm", "mixed"
# Severities by which an engine shows itself. A warning may come from a library that several engines use.
_SIGNS = frozenset({"fact", "ready", "cache-cold", "cache-warm"})

# Row of the table, what it captured, and the line itself.
type FactLine = tuple[str, Sequence[str], str]


def chosen_engine(rows: Iterable[tuple[str, str]]) -> str | None:
    """The engine that a log is of, from (engine, severity) of its findings; None where two are as likely or none is."""
    counts = Counter(engine for engine, severity in rows if severity in _SIGNS and engine != ANY)
    ranked = counts.most_common(2)
    if not ranked or (len(ranked) == 2 and ranked[0][1] == ranked[1][1]):
        return None
    return ranked[0][0]


def compile_cache(severities: set[str]) -> str | None:
    """Whether the compile cache was cold, warm, or held a part of what was needed."""
    cold, warm = "cache-cold" in severities, "cache-warm" in severities
    return MIXED if cold and warm else COLD if cold else WARM if warm else None


def kv_tokens(facts: dict[str, Any]) -> int | None:
    """Size of the KV cache in tokens."""
    found = facts.get("kv_tokens")
    return int(found) if found is not None else None


def selection(engine: str | None, lines: Iterable[FactLine]) -> dict[str, Any]:
    """The facts of a boot. `lines` in order: where a line is printed again, the later one holds."""
    facts: dict[str, Any] = {"engine": engine} if engine else {}
    for row, fields, text in lines:
        reader = _READERS.get(row)
        if reader is not None:
            try:
                reader(facts, fields, text)
            except (ValueError, IndexError):  # a table of one's own cannot replace these rows; a new wording may
                continue
    return facts


def _add(facts: dict[str, Any], key: str, value: str) -> None:
    facts[key] = sorted({*facts.get(key, ()), value})


def _int(text: str) -> int:
    return int(text.replace(",", ""))


def _ns(text: str) -> int:
    return round(float(text) * SECOND_NS)


def _bytes(text: str) -> int:
    return round(float(text) * GIB)


def _attention(facts: dict[str, Any], fields: Sequence[str], text: str) -> None:
    _add(facts, "attention_backends", fields[0].upper())  # chosen or forced, it is the same backend


def _moe(facts: dict[str, Any], fields: Sequence[str], text: str) -> None:
    _add(facts, "moe_backends", f"{fields[0].upper()} {fields[1]}")


def _linear(facts: dict[str, Any], fields: Sequence[str], text: str) -> None:
    facts.setdefault("linear_kernels", {})[fields[1]] = fields[0]


def _set(key: str, read: Callable[[str], Any] = str) -> Callable[[dict[str, Any], Sequence[str], str], None]:
    def reader(facts: dict[str, Any], fields: Sequence[str], text: str) -> None:
        facts[key] = read(fields[0])

    return reader


def _largest(key: str, read: Callable[[str], Any]) -> Callable[[dict[str, Any], Sequence[str], str], None]:
    """Printed by every worker or for every model: the slowest one is waited for."""

    def reader(facts: dict[str, Any], fields: Sequence[str], text: str) -> None:
        facts[key] = max(facts.get(key, 0), read(fields[0]))

    return reader


def _concurrency(facts: dict[str, Any], fields: Sequence[str], text: str) -> None:
    facts["max_concurrency"] = float(fields[1])


def _loading(facts: dict[str, Any], fields: Sequence[str], text: str) -> None:
    facts["model_bytes"], facts["model_ns"] = _bytes(fields[0]), _ns(fields[1])
    _older_runner(facts, text)


def _capture(facts: dict[str, Any], fields: Sequence[str], text: str) -> None:
    facts["graph_capture_ns"], facts["graph_bytes"] = _ns(fields[0]), _bytes(fields[1])
    _older_runner(facts, text)


def _older_runner(facts: dict[str, Any], text: str) -> None:
    """The newer runner of vLLM says its name (P27). The older one shows only as the file that logs."""
    if "[gpu_model_runner.py:" in text:
        facts.setdefault("model_runner", "V1")


def _graphs(facts: dict[str, Any], fields: Sequence[str], text: str) -> None:
    # "Capturing CUDA graphs (decode, FULL): 100%|███| 35/35 [00:03<00:00, 10.30it/s]"
    state = text.rpartition("| ")[2].partition("/")[0]
    facts.setdefault("graphs", {})[fields[0]] = int(state) if state.isdigit() else None


def _config(facts: dict[str, Any], fields: Sequence[str], text: str) -> None:
    facts["version"] = fields[0].removeprefix("v")
    facts["config"] = split_settings(fields[1])


def _server_args(facts: dict[str, Any], fields: Sequence[str], text: str) -> None:
    facts["config"] = split_settings(fields[0])
    backend = facts["config"].get("attention_backend", "None").strip("'\"")
    if backend != "None" and "attention_backends" not in facts:
        _attention(facts, (backend,), text)


def _arguments(facts: dict[str, Any], fields: Sequence[str], text: str) -> None:
    try:
        given = ast.literal_eval(fields[0])
        pairs = {str(name): repr(value) for name, value in given.items()}
    except (ValueError, SyntaxError, AttributeError):  # it holds objects that are no literals
        pairs = {name.strip("'\""): value for name, value in split_settings(fields[0].strip("{}"), ": ").items()}
    facts["arguments"] = _masked(pairs)


def _layers(facts: dict[str, Any], fields: Sequence[str], text: str) -> None:
    facts["layers_offloaded"] = [int(fields[0]), int(fields[1])]


def _slots(facts: dict[str, Any], fields: Sequence[str], text: str) -> None:
    facts["slots"], facts["slot_tokens"] = int(fields[0]), int(fields[1])
    unified = len(fields) > 2 and fields[2] == "true"
    facts["kv_tokens"] = facts["slot_tokens"] * (1 if unified else facts["slots"])


def _always(key: str, value: Any) -> Callable[[dict[str, Any], Sequence[str], str], None]:
    def reader(facts: dict[str, Any], fields: Sequence[str], text: str) -> None:
        facts[key] = value

    return reader


_READERS: Final[dict[str, Callable[[dict[str, Any], Sequence[str], str], None]]] = {
    "P01": _attention,
    "P02": _attention,
    "P03": _set("flash_attention"),
    "P04": _moe,
    "P05": _linear,
    "P06": _set("kv_tokens", _int),
    "P07": _concurrency,
    "P08": _set("kv_bytes", _bytes),
    "P09": _loading,
    "P10": _largest("weights_ns", _ns),
    "P11": _largest("download_ns", _ns),
    "P12": _largest("compile_ns", _ns),
    "P15": _capture,
    "P16": _set("init_ns", _ns),
    "P17": _set("async_scheduling", lambda word: word == "enabled"),
    "P18": _set("attention_block_tokens", int),
    "P19": _arguments,
    "P20": _config,
    "P22": _largest("profile_ns", _ns),
    "P25": _graphs,
    "P27": _set("model_runner"),
    "V12": _always("async_scheduling", False),
    "V33": _always("model_runner", "V1"),
    "S03": _attention,
    "S07": _set("kv_tokens", _int),
    "S08": _largest("weights_ns", _ns),
    "S09": _largest("graph_capture_ns", _ns),
    "S10": _server_args,
    "L01": _always("flash_attention", "disabled"),
    "L03": _layers,
    "L04": _always("flash_attention", "enabled"),
    "L07": _largest("graph_splits", int),
    "L08": _slots,
    "L09": _set("threads", int),
}


def split_settings(text: str, between: str = "=") -> dict[str, str]:
    """`model='m', config={'a': [1, 2]}, x=None` as name → value, both as written. Brackets and quotes are respected.

    What has no `between` outside brackets and quotes is left out. Values of keys are not kept.
    """
    pairs: dict[str, str] = {}
    for piece in _split(text):
        name, found, value = piece.partition(between)
        if found and name.strip():
            pairs[name.strip()] = value.strip()
    return _masked(pairs)


def _split(text: str) -> Iterable[str]:
    """The text at its outer commas."""
    depth, quote, start, at = 0, "", 0, 0
    while at < len(text):
        char = text[at]
        if quote:
            if char == "\\":
                at += 1
            elif char == quote:
                quote = ""
        elif char in "'\"" and (at == 0 or not text[at - 1].isalnum()):
            quote = char
        elif char in "([{<":
            depth += 1
        elif char in ")]}>":
            depth -= 1
        elif char == "," and depth <= 0:
            yield text[start:at]
            start = at + 1
        at += 1
    yield text[start:]


def _masked(pairs: dict[str, str]) -> dict[str, str]:
    none = ("None", "[]", "''", '""')
    return {
        name: REMOVED if is_credential_name(name.strip("'\"")) and value not in none else value
        for name, value in pairs.items()
    }
