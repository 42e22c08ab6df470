"""Is this file what it should be? Each artefact is read wholly, by the readers that use it later.

The first problem is an error with file, line and key; else there is one line that says what it is. The sha256 is one
that `sha256sum` prints: of an experiment its bytes, of a profile and of a run their manifest.json (a profile's names
every other file), of a capture all its segments, one behind the other, of a verdict its bytes.
"""

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

from profiles import capture_folder, runs
from profiles import profile as profile_form
from profiles.capture_folder import readable, segment_paths
from profiles.captures import EndLine, RequestLine, body_of, stream_capture
from profiles.errors import FormatError
from profiles.experiment import Experiment, load_experiment
from profiles.files import decode_line, opened, read_document, read_lines, sha256_of
from profiles.functional import probe_set
from profiles.measurable import NO_CONCURRENCY
from profiles.planned import check_profile, read_facts
from profiles.profile import Profile, read_profile
from profiles.runs import Boot, Run, Telemetry, read_boot_facts, read_functional, read_run

_HINT = "An artefact is an experiment.toml, a verdict.json, or the directory of a capture, a profile or a run."
_PIECE = 1 << 20
_VERDICT = "firsttoken/verdict"
_MAKE_ANEW = "Make it anew with `firsttoken report`."


def validate(path: Path) -> str:
    """One line of what it is. Raises FormatError or RuleError with the first problem."""
    with readable(path, "Validate it as the user who made it."):
        if not path.exists():
            raise FormatError(path, "no such file or directory", hint=_HINT)
        if not path.is_dir():
            return _verdict(path) if path.suffix == ".json" else _experiment(path)
        manifest = path / profile_form.MANIFEST
        if not manifest.exists():
            raise FormatError(manifest, "no such file", hint=_HINT)
        found = _format_of(manifest)
        if found == capture_folder.FORMAT:
            return _capture(path)
        if found == profile_form.FORMAT:
            return _profile(path)
        if found == runs.FORMAT:
            return _run(path)
    raise FormatError(manifest, f"its format is {found!r}, which is no artefact of firsttoken", hint=_HINT)


def _format_of(manifest: Path) -> Any:
    import orjson

    try:
        document = orjson.loads(manifest.read_bytes())
    except orjson.JSONDecodeError as error:
        raise FormatError(manifest, f"not JSON ({error})") from None
    return document.get("format") if isinstance(document, dict) else None


def _line(path: Path, what: str, version: int, counts: str, sha256: str) -> str:
    return f"{path}: {what} version {version}: {counts}; sha256 {sha256}"


def _count(number: int, noun: str) -> str:
    plural = {"body": "bodies", "class": "classes"}.get(noun, f"{noun}s")
    return f"{number} {noun if number == 1 else plural}"


def _experiment(path: Path) -> str:
    if path.suffix != ".toml":
        raise FormatError(path, "neither a directory nor a .toml or .json file", hint=_HINT)
    experiment = load_experiment(path)
    if _is_of_run(path):
        # The rule of a run names its profile from where it was; what fitted then is in the manifest.
        _check_rule_of(read_run(path.parent), experiment)
        said = f"{_said(experiment)}; the rule of a run, not held against its profile"
        return _line(path, "firsttoken/experiment", experiment.file.rule.schema, said, experiment.bytes_sha256)
    facts = read_facts(_whole_profile(experiment.profile_path))
    check_profile(experiment, facts)
    probe_set(experiment)
    return _line(
        path,
        "firsttoken/experiment",
        experiment.file.rule.schema,
        f"{_said(experiment)}; fits {experiment.profile_path} ({_count(facts.to_send, 'request')} to send)",
        experiment.bytes_sha256,
    )


def _is_of_run(path: Path) -> bool:
    """Whether this is the rule that `replay` copied into a run."""
    manifest = path.parent / runs.MANIFEST
    return path.name == runs.RULE and manifest.is_file() and _format_of(manifest) == runs.FORMAT


def _verdict(path: Path) -> str:
    """Its format, and the arms by their verdicts. The published schema says the whole form."""
    document = read_document(path, _VERDICT)
    arms = document.get("arms")
    if not isinstance(arms, list):
        raise FormatError(path, "its key arms is missing or no list", hint=_MAKE_ANEW)
    words = [arm.get("verdict") if isinstance(arm, dict) else None for arm in arms]
    for at, word in enumerate(words):
        if not isinstance(word, str):
            raise FormatError(path, f"arms[{at}].verdict is missing or no word", hint=_MAKE_ANEW)
    said = [_count(len(words), "arm"), *(f"{count} {word}" for word, count in Counter(words).items())]
    return _line(path, _VERDICT, document["version"], ", ".join(said), sha256_of(path))


def _said(experiment: Experiment) -> str:
    file = experiment.file
    parts = [
        _count(len(experiment.arms), "arm"),
        _count(file.design.blocks, "block"),
        _count(len(file.measure), "measure"),
        _count(len(file.guard), "guard"),
    ]
    return ", ".join(parts + ([f"{len(file.skipped)} skipped"] if file.skipped else []))


def _profile(path: Path) -> str:
    profile = _whole_profile(path)
    manifest = profile.manifest
    said = [
        _count(manifest["requests"], "request"),
        _count(len(manifest["workloads"]), "class"),
        f"content {manifest['content']}",
    ]
    if manifest.get("synthetic"):
        said.append("synthetic")
    return _line(path, profile_form.FORMAT, manifest["version"], ", ".join(said), profile.sha256)


def _whole_profile(path: Path) -> Profile:
    """A profile of which every table and every body was read."""
    profile = read_profile(path)
    profile.verify()
    rows = len(profile.rows())
    if rows != profile.manifest["requests"]:
        raise FormatError(
            path / profile_form.MANIFEST,
            f"its key requests is {profile.manifest['requests']}, and {profile_form.REQUESTS} has {rows} rows",
            hint="Build the profile again.",
        )
    for row, _ in profile.read_bodies():
        if row >= rows:
            raise FormatError(path / profile_form.BODIES, f"holds a body for row {row} of {rows}")
    if NO_CONCURRENCY not in profile.manifest["not_measurable"]:
        profile.concurrency()
    profile.segments()
    return profile


def _capture(path: Path) -> str:
    bodies = 0
    requests = 0

    def ended(line: EndLine, asked: RequestLine | None, _shift_ns: int) -> None:
        nonlocal bodies, requests
        requests += 1
        bodies += body_of(asked if asked is not None else line) is not None

    capture = stream_capture(path, ended)
    digest = hashlib.sha256()
    segments = segment_paths(path)
    for segment in segments:
        with opened(segment) as raw:
            while piece := raw.read(_PIECE):
                digest.update(piece)
    said = [
        _count(requests, "request"),
        f"{len(capture.open)} unfinished",
        _count(bodies, "body"),
        _count(len(capture.windows), "window"),
        _count(len(segments), "segment"),
        f"{capture.dropped} dropped",
    ]
    if capture.torn:
        said.append(f"{_count(capture.torn, 'last line')} cut off by a kill")
    version = int(capture.manifest["version"])
    return _line(path, capture_folder.FORMAT, version, ", ".join(said), digest.hexdigest())


def _run(path: Path) -> str:
    run = read_run(path)
    for boot in run.boots:
        _check_outcomes(boot)
    outcomes = sum(len(boot.outcomes) for boot in run.boots)
    pilots = sorted(folder for folder in (path / runs.PILOTS).glob("*") if (folder / runs.BOOT).exists())
    for folder in pilots:
        read_boot_facts(folder)
    for folder in [*(boot.path for boot in run.boots), *pilots]:
        sum(1 for _ in read_functional(folder))
        telemetry = folder / runs.TELEMETRY
        for number, line in read_lines(telemetry) if telemetry.exists() else ():
            decode_line(telemetry, number, line, Telemetry)
    experiment = load_experiment(path / runs.RULE)
    _check_rule_of(run, experiment)
    said = [
        _count(len(run.boots), "boot"),
        _count(outcomes, "outcome"),
        _count(len(pilots), "pilot"),
        _count(len(run.events), "event"),
        f"the rule {experiment.file.rule.id} with {_said(experiment)}",
    ]
    if run.interrupted:
        said.insert(1, f"{len(run.interrupted)} interrupted")
    version = int(run.manifest["version"])
    return _line(path, runs.FORMAT, version, ", ".join(said), sha256_of(path / runs.MANIFEST))


def _check_outcomes(boot: Boot) -> None:
    """A boot that was measured to its end holds as many outcomes of each window as its boot.json counts."""
    if boot.facts.status != runs.DONE:
        return
    held = Counter(item.window for item in boot.outcomes if item.measured)
    for window in boot.facts.windows:
        if held[window.name] != window.requests:
            problem = f"holds {held[window.name]} outcomes of {window.name}, and {runs.BOOT} counts {window.requests}"
            raise FormatError(boot.path / runs.OUTCOMES, problem, hint="Do not judge this run: a part of it is lost.")


def _check_rule_of(run: Run, experiment: Experiment) -> None:
    """The rule beside the manifest is the one in it, unless it was amended, which the run's events say."""
    rule = run.manifest.get("rule")
    fixed = rule.get("semantic_sha256") if isinstance(rule, dict) else None
    amended = any(event.get("event") == "rule_amended" for event in run.events)
    if fixed is not None and fixed != experiment.semantic_sha256 and not amended:
        raise FormatError(
            experiment.path,
            "is not the rule that the manifest names: its meaning was changed after the run began",
            hint="`firsttoken report` calls such a run invalid. A change is made with `firsttoken replay --amend`.",
        )
