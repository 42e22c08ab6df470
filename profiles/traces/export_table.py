"""Exports of the table of requests as it is: CSV and Parquet. Both can be imported again."""

import json
from pathlib import Path

import polars as pl

from profiles.errors import UsageError
from profiles.profile import Profile
from profiles.table import SCHEMA
from profiles.traces.export import ExportAsked, Written, new_file
from profiles.traces.own_table import METADATA


def write_csv(profile: Profile, out: Path, asked: ExportAsked) -> Written:
    """All columns of `ProfileRow`; a list of requests is written as numbers with blanks between. Raises UsageError."""
    _plain(asked, "csv")
    rows = profile.frame().with_columns(pl.col("deps").cast(pl.List(pl.String())).list.join(" "))
    with new_file(out, force=asked.force) as path:
        rows.sink_csv(path)
    return Written(profile.manifest["requests"], [*_bodies(profile), "windows, zero, and the size of prefix blocks"])


def write_parquet(profile: Profile, out: Path, asked: ExportAsked) -> Written:
    """All columns of `ProfileRow`, and in the metadata the windows, the zero and the size of prefix blocks. Raises
    UsageError."""
    _plain(asked, "parquet")
    told = {key: profile.manifest.get(key) for key in ("windows", "zero_wall_ns", "prefix", "synthetic", "content")}
    with new_file(out, force=asked.force) as path:
        profile.frame(list(SCHEMA)).sink_parquet(path, metadata={METADATA: json.dumps(told)})
    return Written(profile.manifest["requests"], [*_bodies(profile), "what the manifest says beside windows and zero"])


def _plain(asked: ExportAsked, name: str) -> None:
    if asked.payload or asked.block is not None:
        raise UsageError(f"--payload and --block make no sense for {name}", "Leave them out.")


def _bodies(profile: Profile) -> list[str]:
    return ["bodies"] if profile.manifest.get("bodies") else []
