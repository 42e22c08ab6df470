"""The run that an example keeps: unpacked, judged again, and the folders of a machine that it names."""

import re
import tarfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import orjson

from analysis.document import verdict_document
from analysis.judge import judge
from profiles.experiment import load_experiment
from profiles.runs import Run, read_run

_ROOTED = re.compile(r"(?<![\w.<:/~}-])(/[A-Za-z][\w.-]*)/[\w.-]")


def unpack(example: Path, folder: Path) -> Run:
    with tarfile.open(example / "run.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return read_run(folder / "run")


def judge_again(kept: Run) -> Any:
    """Its verdict.json as it is made today."""
    document = verdict_document(judge(kept, load_experiment(kept.path / "experiment.toml")))
    return orjson.loads(orjson.dumps(document))


def arm_of(document: Any, name: str) -> Any:
    (arm,) = (arm for arm in document["arms"] if arm["arm"] == name)
    return arm


def verdicts(document: Any) -> dict[str, str]:
    return {arm["arm"]: arm["verdict"] for arm in document["arms"]}


def texts(kept: Run, example: Path) -> Iterable[tuple[Path, str]]:
    """All files of the run and of the report beside it."""
    for file in [*kept.path.rglob("*"), *(example / "report").iterdir()]:
        if file.is_file():
            yield file, file.read_text(encoding="utf-8", errors="replace")


def folders_named(text: str) -> set[str]:
    """The first part of each absolute path in it, routes of a server included."""
    return set(_ROOTED.findall(text))
