"""A report that can be published: relative figures, verdicts and counts of boots, and nothing that tells of a machine.

Left out are latencies, rates, durations, sizes, lengths of prompts and answers, volumes of production, dates, host
names, addresses, paths, models and command lines. Names that the rule gives (arms, classes, measures), levels of c,
shares and changes stay. This module alone decides what is absolute:

* `relative_report` takes it out of what is found: numbers become None, sentences lose the number and keep the unit;
* `relative_document` does the same for verdict.json, where a key stays and its value is null;
* `relative_text` is the net below both, for text that is made of numbers only when it is printed.
"""

import dataclasses
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from analysis.findings import Report
from profiles.runs import BootFacts, Run

LEFT_OUT: Final = "…"

_NUMBER = r"[−+-]?\d[\d.,]*(?:e[+-]?\d+)?"
_UNITS = (
    "ns|us|µs|μs|ms|s|sec|secs|seconds?|min|mins|minutes?|h|hrs?|hours?|days?|weeks?|[kKMGT]i?B|B|bytes?|"
    "[kMG]?Hz|[mk]?W|°C|tokens?/s|tok/s|requests?/s|req/s|tokens|[kM] tokens"
)
# `300 s`, and `2411 of 3003 MHz`, `5 to 9 ms`.
_QUANTITY = re.compile(
    rf"(?<![\w.])(?:{_NUMBER}\s?(?:of|to|and|or|against|→|–|-|/)\s?)?{_NUMBER}(\s?)({_UNITS})(?![\w%])"
)
# A number inside a name such as closed-c8-for-60s.
_IN_NAME = re.compile(r"(?<=-)\d[\d.]*(?=(?:ns|us|ms|s|min|h)\b)")
# `client_lag_p99_ms > 20`, `kv_gb=12`: the unit stands in the name.
_NAMED = re.compile(r"(_(?:ns|us|ms|s|min|h|mb|gb|mib|gib|bytes|tokens|mhz|c|w)\b\s*(?:[<>]=?|[=:])\s*)\d[\d.,]*")
_URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"`<>)\]]+", re.IGNORECASE)
_QUOTED_PATH = re.compile(r"(['\"`])(?:~\w*|\.{1,2})?/[^'\"`\n]*\1")
_PATH = re.compile(r"(?<![\w/.<])(?:~\w*|\$\{?\w+\}?|\.{1,2})?/[^\s'\"`,;:<>)\]]*[^\s'\"`,;:<>)\].]")
_FILE = re.compile(r"(?<![\w/])[\w.-]+(?:/[\w.*-]+)*/[\w.*-]+\.[a-z]{1,11}\b")
_ADDRESS = re.compile(r"(?<![\w.])\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?(?![\w.])|\[?\b[0-9a-f]*(?::[0-9a-f]*){3,7}\b\]?")
_HOST_PORT = re.compile(r"\b[A-Za-z][\w.-]*:\d{2,5}\b")
_DATE = re.compile(
    r"\b\d{4}-\d{2}-\d{2}(?:[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?:Z|[+-]\d{2}:?\d{2})?)?|\b\d{2}:\d{2}:\d{2}\b"
)
_PROCESS = re.compile(r"\b(pid|process|port)([ =])\d+\b", re.IGNORECASE)

# Keys whose words tell of the machine and what runs on it, in a manifest or in the facts of a boot.
_TELLING: Final = frozenset(
    {"host", "hostname", "node", "path", "model", "argv", "identity", "container", "image", "url", "user", "boot_id"}
)
_DROPPED: Final = frozenset({"environment", "arms", "override", "run_id", "wall_ns", "mono_ns"})
_OF_PROFILE: Final = frozenset({"sha256", "arrivals_at", "source", "not_measurable", "synthetic", "content"})
_COMMON: Final = frozenset({"engine", "profile", "python", "vllm", "sglang", "serve", "localhost", "auto", "none"})
# Parts of a report that hold data and no sentence, or names that stay.
_UNTOUCHED: Final = frozenset({"run", "experiment", "course", "data", "baseline", "relative"})
# Keys of verdict.json that are null in a relative one, wherever they stand.
ABSOLUTE: Final = frozenset(
    {
        "machine_time_s", "rule_fixed_before_s", "baseline_ms", "limit_ns", "tokens_per_s", "baseline_tokens_per_s",
        "tokens", "baseline_tokens", "hours", "p99_ns", "max_ns", "recorded", "replayable",
    }
)  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Words:
    """What text is scrubbed by: names that stay as they are, and words that go wherever they stand."""

    keep: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()


def relative_report(report: Report) -> Report:
    """The same report for other eyes: its sentences scrubbed, its run without paths, command lines and identities."""
    if report.relative:
        return report
    words = words_of(report)
    changed: dict[str, Any] = {
        field.name: _scrubbed(getattr(report, field.name), words)
        for field in dataclasses.fields(report)
        if field.name not in _UNTOUCHED
    }
    return dataclasses.replace(report, run=_relative_run(report.run, words), relative=True, **changed)


def relative_document(document: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """verdict.json for other eyes: the same keys, absolute values null, sentences scrubbed."""
    made: dict[str, Any] = _nulled(document, words_of(report))
    for check, found in zip(made["bench"]["checks"], document["bench"]["checks"], strict=True):
        for side in ("recorded", "baseline"):
            check[side] = None if check["check"] == "ttft" else _shares(found[side])
    return made | {"relative": True, "own_lateness": {"schedule": None, "event_loop": None}}


def relative_text(text: str, report: Report) -> str:
    """Text without absolute figures, host names and paths; names of arms and classes stay as they are."""
    return scrub(text, words_of(report))


def scrub(text: str, words: Words | None = None) -> str:
    """Take out what is absolute: `no token for 300 s` becomes `no token for … s`."""
    words = words if words is not None else Words()
    if not words.keep:
        return _scrub_part(text, words.drop)
    parts = _either(words.keep).split(text)
    return "".join(part if index % 2 else _scrub_part(part, words.drop) for index, part in enumerate(parts))


def _scrub_part(text: str, drop: Sequence[str]) -> str:
    if drop:
        text = _either(drop).sub(LEFT_OUT, text)
    for pattern in (_URL, _QUOTED_PATH, _PATH, _FILE, _DATE, _ADDRESS, _HOST_PORT):
        text = pattern.sub(LEFT_OUT, text)
    text = _PROCESS.sub(rf"\1\2{LEFT_OUT}", text)
    text = _NAMED.sub(rf"\g<1>{LEFT_OUT}", text)
    text = _QUANTITY.sub(rf"{LEFT_OUT}\1\2", text)
    return _IN_NAME.sub(LEFT_OUT, text)


@lru_cache(maxsize=8)
def _either(names: tuple[str, ...]) -> re.Pattern[str]:
    """Whole names only, the longest first."""
    longest = sorted(names, key=len, reverse=True)
    return re.compile(rf"(?<![\w/.-])({'|'.join(map(re.escape, longest))})(?![\w/-])")


def words_of(report: Report) -> Words:
    """Names that the rule and the profile give stay; the run's paths, models, command lines and host names go."""
    experiment = report.experiment
    keep = {arm.name for arm in experiment.arms} | {report.baseline, experiment.file.rule.id}
    keep |= {str(report.run.manifest.get("aa") or ""), *(item.arm for item in experiment.file.skipped)}
    for arm in report.arms:
        keep |= {item.name for finding in arm.measures for item in finding.classes} | set(arm.drafts)
        keep |= {guard.metric for guard in arm.guards}
        keep |= {point.workload or "" for point in arm.shown.sweep}
        keep |= {rate.workload or "" for rate in arm.shown.throughput}
    drop = {platform.node(), str(report.run.path), str(report.run.path.resolve()), report.run.path.name}
    drop |= set(_strings(report.run.manifest, under=False))
    for boot in report.run.boots:
        told = {"model": boot.facts.model, "argv": boot.facts.argv, "identity": boot.facts.identity}
        drop |= set(_strings(told | {"override": boot.facts.override}, under=False))
    long = {word for word in drop if len(word) > 3 and word not in keep and not word.isdigit() and word not in _COMMON}
    return Words(tuple(sorted(filter(None, keep))), tuple(sorted(long)))


def _strings(value: Any, *, under: bool) -> Iterator[str]:
    """The words below telling keys; of a command line those with a slash: flags and their words are no secret."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _strings(item, under=under or key in _TELLING)
    elif isinstance(value, list | tuple):
        yield from (text for item in value for text in _strings(item, under=under) if "/" in text or "." in text)
    elif isinstance(value, str) and under:
        yield value


def _scrubbed(value: Any, words: Words) -> Any:
    """The same value, every text in it scrubbed."""
    if isinstance(value, str):
        return scrub(value, words)
    if isinstance(value, msgspec.Struct):
        changed = {name: _scrubbed(getattr(value, name), words) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **changed)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: _scrubbed(getattr(value, field.name), words) for field in dataclasses.fields(value)}
        if "baseline_ms" in fields:
            fields["baseline_ms"] = None
        return dataclasses.replace(value, **fields)
    if isinstance(value, tuple | list | frozenset):
        return type(value)(_scrubbed(item, words) for item in value)
    if isinstance(value, Mapping):
        return {key: _scrubbed(item, words) for key, item in value.items()}
    return value


def _relative_run(run: Run, words: Words) -> Run:
    manifest = {key: value for key, value in run.manifest.items() if key not in _DROPPED}
    manifest["profile"] = {
        key: value for key, value in (run.manifest.get("profile") or {}).items() if key in _OF_PROFILE
    }
    boots = tuple(dataclasses.replace(boot, facts=_relative_facts(boot.facts, words)) for boot in run.boots)
    return dataclasses.replace(run, manifest=_scrubbed(manifest, words), boots=boots)


def _relative_facts(facts: BootFacts, words: Words) -> BootFacts:
    scrubbed: BootFacts = _scrubbed(facts, words)
    return msgspec.structs.replace(
        scrubbed,
        arm=facts.arm,
        argv=[],
        identity={},
        override={},
        steps=[],
        selection={},
        model=None,
        engine_version=None,
        boot_id=None,
        kv_tokens=None,
    )


def _nulled(value: Any, words: Words) -> Any:
    if isinstance(value, Mapping):
        return {key: None if _is_absolute(key) else _nulled(item, words) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_nulled(item, words) for item in value]
    return scrub(value, words) if isinstance(value, str) else value


def _is_absolute(key: str) -> bool:
    return key in ABSOLUTE or key.endswith(("_ns", "_ms", "_s", "_bytes"))


def _shares(counts: Any) -> Any:
    """A histogram as shares; a share as it is."""
    if not isinstance(counts, Mapping):
        return counts
    total = sum(counts.values())
    return {key: count / total for key, count in counts.items()} if total else {}
