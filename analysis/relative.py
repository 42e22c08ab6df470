"""A report that can be published: relative figures, verdicts and counts of boots, and nothing that tells of a machine.

Left out are latencies, rates, durations, sizes, lengths of prompts and answers, volumes of production, dates, host
names, addresses, paths, models and command lines. Names that the rule gives (arms, classes, measures), levels of c,
shares and changes stay. This module alone decides what is absolute:

* `relative_report` takes it out of what is found: numbers become None, sentences lose the number and keep the unit;
* `relative_document` does the same for verdict.json, where a key stays and its value is null;
* `relative_text` is the net below both, for text that is made of numbers only when it is printed.

A material line that rests on milliseconds tells the baseline's latency (5 ms are 66.5 % of 7.5 ms), so it goes too,
with what follows from it. What a person wrote is scrubbed by patterns (`scrub`), and no list of those is complete: the
terminal, Markdown and the page say that it is printed.
"""

import dataclasses
import math
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from analysis.findings import ArmReport, Report
from analysis.scrub import LEFT_OUT, Words, scrub
from analysis.verdict import ClassFinding, MeasureFinding
from profiles.experiment import MeasureRule
from profiles.runs import BootFacts, Run

AUTHORS_WORDS: Final = "reasons and questions that people wrote are printed, so read them before this is published"
# Of a sentence about one boot, where the line rests on milliseconds.
_PLANNED = re.compile(r"\b(?:[\d.]+) % effect against an? [\d.]+ % line")
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
    changed["arms"] = tuple(_without_lines(arm, report) for arm in changed["arms"])
    return dataclasses.replace(report, run=_relative_run(report.run, words), relative=True, **changed)


def relative_document(document: Mapping[str, Any], report: Report) -> dict[str, Any]:
    """verdict.json for other eyes: the same keys, absolute values null, sentences scrubbed."""
    made: dict[str, Any] = _nulled(document, words_of(report))
    for check, found in zip(made["bench"]["checks"], document["bench"]["checks"], strict=True):
        for side in ("recorded", "baseline"):
            check[side] = None if check["check"] == "ttft" else _shares(found[side])
    for arm, found in zip(made["arms"], report.arms, strict=True):
        _null_lines(arm, _without_lines(found, report))
    return made | {"relative": True, "own_lateness": {"schedule": None, "event_loop": None}}


def relative_text(text: str, report: Report) -> str:
    """Text without absolute figures, host names and paths; names of arms and classes stay as they are."""
    return scrub(text, words_of(report))


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


def line_tells(line: float, rule: MeasureRule) -> bool:
    """Whether a material line rests on milliseconds: then it gives the baseline's latency away."""
    return rule.material.absolute_ms > 0 and abs(line) > -math.log1p(-rule.material.relative) + 1e-9


def _without_lines(arm: ArmReport, report: Report) -> ArmReport:
    """The arm, its lines marked that rest on milliseconds, and without the numbers that follow from them."""
    rules = {rule.name: rule for rule in report.experiment.file.measure}

    def told(item: MeasureFinding) -> MeasureFinding:
        rule = rules[item.measure]
        classes = tuple(
            dataclasses.replace(part, line_left_out=not item.higher and line_tells(part.line, rule))
            for part in item.classes
        )
        left_out = not item.higher and line_tells(item.line, rule)
        return dataclasses.replace(item, classes=classes, line_left_out=left_out)

    measures = tuple(map(told, arm.measures))
    gone = {item.measure for item in measures if item.line_left_out or _any_left_out(item.classes)}
    split = tuple(
        dataclasses.replace(item, line=None, line_low=None, line_high=None, material=None, line_left_out=True)
        if item.measure in gone
        else item
        for item in arm.shown.split
    )
    step = arm.step and dataclasses.replace(arm.step, measures=tuple(map(told, arm.step.measures)))
    verdict = arm.verdict
    if measures and measures[0].line_left_out:
        said = tuple(_PLANNED.sub(f"{LEFT_OUT} % effect against a {LEFT_OUT} % line", text) for text in verdict.reasons)
        verdict = dataclasses.replace(verdict, reasons=said)
    shown = dataclasses.replace(arm.shown, split=split)
    return dataclasses.replace(arm, measures=measures, step=step, shown=shown, verdict=verdict)


def _any_left_out(classes: Sequence[ClassFinding]) -> bool:
    return any(part.line_left_out for part in classes)


def _null_lines(made: dict[str, Any], arm: ArmReport) -> None:
    """In the document of an arm: a line, and the p from which, with an interval, it could be reckoned."""
    steps = [(made["step"]["measures"], arm.step.measures)] if arm.step else []
    for documents, found in ((made["measures"], arm.measures), *steps):
        for document, item in zip(documents, found, strict=True):
            if item.line_left_out:
                document |= {"line": None, "p_not_material": None}
            for part, own in zip(document["classes"], item.classes, strict=True):
                if own.line_left_out:
                    part["line"] = None
    for document, split in zip(made["split"], arm.shown.split, strict=True):
        if split.line_left_out:
            document["line"] |= {"share": None, "low": None, "high": None, "change": None}
    if arm.measures and arm.measures[0].line_left_out:
        made["reasons"] = [
            _PLANNED.sub(f"{LEFT_OUT} % effect against a {LEFT_OUT} % line", text) for text in made["reasons"]
        ]


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
