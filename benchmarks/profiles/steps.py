"""What is measured, each as a process of its own: `python -m benchmarks.profiles.steps NAME FOLDER`.

A step prints one JSON line: its seconds, without the start of Python, its peak memory, and a number by which the steps
of one kind can be seen to have done the same.
"""

import resource
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import orjson

CAPTURE, PROFILE, BUILT = "capture", "profile", "built"
COLUMNS = ("arrival_ns", "end_ns")


def scan_columns(folder: Path) -> int:
    """The floor of a sweep: polars reads the two columns once."""
    import polars as pl

    found = pl.scan_parquet(folder / PROFILE / "requests.parquet").select(pl.col(name).sum() for name in COLUMNS)
    return int(found.collect().row(0)[1]) % 1_000_007


def sweep_profile(folder: Path) -> int:
    """Ours: time at each level, and arrivals by the level that they meet."""
    from profiles.profile import read_profile
    from profiles.sweep import sweep

    return sweep(read_profile(folder / PROFILE).stays()).max


def sweep_classes(folder: Path) -> int:
    """Ours, for each class too."""
    from profiles.profile import read_profile
    from profiles.sweep import sweep, sweep_groups

    stays = read_profile(folder / PROFILE).stays()
    sweep_groups(stays)
    return sweep(stays).max


def sweep_pandas(folder: Path) -> int:
    """The obvious version: events of +1 and −1, sorted, summed up. It has the view of time alone."""
    import pandas as pd

    rows = pd.read_parquet(folder / PROFILE / "requests.parquet", columns=list(COLUMNS))
    events = pd.concat(
        [
            pd.DataFrame({"at": rows["arrival_ns"], "step": 1}),
            pd.DataFrame({"at": rows["end_ns"], "step": -1}),
        ]
    ).sort_values(["at", "step"])
    events["level"] = events["step"].cumsum()
    events["for_ns"] = events["at"].shift(-1) - events["at"]
    return int(events.groupby("level")["for_ns"].sum().index.max())


def scan_lines(folder: Path) -> int:
    """The floor of a build: every line of the capture is unpacked and counted."""
    from profiles.capture_folder import segment_paths
    from profiles.files import read_lines

    return sum(1 for path in segment_paths(folder / CAPTURE) for _ in read_lines(path)) // 3


def parse_lines(folder: Path) -> int:
    """The floor of a build that looks at what it reads: every line is parsed, and nothing is done with it."""
    from profiles.capture_folder import segment_paths
    from profiles.files import read_lines

    lines = (line for path in segment_paths(folder / CAPTURE) for _, line in read_lines(path))
    return sum(orjson.loads(line)["line"] == "end" for line in lines)


def build(folder: Path) -> int:
    """Ours: from the segments to a profile on disk."""
    from profiles.build import build_profile

    out = folder / BUILT
    shutil.rmtree(out, ignore_errors=True)
    return int(build_profile([folder / CAPTURE], out).profile.manifest["requests"])


def build_pandas(folder: Path) -> int:
    """The obvious version: read_json, all of it, then the table of ends as Parquet. No classes, no concurrency."""
    import pandas as pd
    import zstandard

    from profiles.capture_folder import segment_paths

    tables = []
    for path in segment_paths(folder / CAPTURE):
        with zstandard.open(path, "rb") as lines:
            table = pd.read_json(lines, lines=True)
            tables.append(table[table["line"] == "end"])
    rows = pd.concat(tables, ignore_index=True)
    rows = pd.concat([rows.drop(columns="response"), pd.json_normalize(rows["response"].tolist())], axis=1)
    rows.drop(columns=["request", "token_gaps_ns"], errors="ignore").to_parquet(folder / "pandas.parquet")
    return len(rows)


STEPS: dict[str, Callable[[Path], int]] = {
    step.__name__: step
    for step in (
        scan_columns, sweep_profile, sweep_classes, sweep_pandas, scan_lines, parse_lines, build, build_pandas,
    )
}  # fmt: skip


def main(name: str, folder: Path) -> None:
    """Run one step and print what it took."""
    started = time.perf_counter()
    result = STEPS[name](folder)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024  # Linux counts in KiB
    sys.stdout.buffer.write(orjson.dumps({"step": name, "seconds": seconds, "peak_bytes": peak, "result": result}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
