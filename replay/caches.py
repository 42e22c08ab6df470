"""Compile and kernel caches between boots: one policy for all arms, and nothing emptied that is no cache.

`keep` leaves the caches as they are, `wipe` empties them before each boot, `prewarm` boots every arm once unmeasured.
Under each of them the sizes are recorded, so that a boot that found more than its neighbours can be seen.

A directory to be emptied must look like a cache, lie below the user's home, a temporary directory or the working
directory, and neither hold nor lie in what a run needs. It is looked at twice: when the run is planned, and again at
the moment of emptying.
"""

import contextlib
import fnmatch
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from profiles.errors import FirsttokenError, RuleError
from profiles.experiment import Experiment
from profiles.runs import Step
from profiles.toml_lines import line_of
from profiles.units import format_bytes
from replay.clock import Clock
from replay.host import memory_free_bytes

DROP_CACHES = Path("/proc/sys/vm/drop_caches")
# What a cache is called. A typing error must not empty a folder of work.
CACHE_NAMES = ("*cache*", ".triton", "torchinductor_*", "flashinfer", ".flashinfer", ".nv", "deep_gemm", ".deep_gemm")
# Model weights lie in a folder called cache, and take days to come back.
MODEL_STORES = ("~/.cache/huggingface", "~/.cache/modelscope", "~/.cache/torch/hub", "~/.cache/llama.cpp")
MODEL_STORE_VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE", "LLAMA_CACHE")


@dataclass(frozen=True, slots=True)
class Size:
    """What a directory holds, without following links."""

    bytes: int
    files: int


def directories(experiment: Experiment) -> tuple[Path, ...]:
    """The cache_dirs of a rule as absolute paths: `~` is the home, a relative path starts at the experiment file."""
    rules = experiment.file.engine
    here = experiment.path.parent.absolute()
    entries = rules.cache_dirs if rules is not None else ()
    # Without `..`, and without following a link: that it is one must stay to be seen.
    return tuple(Path(os.path.normpath(here / Path(entry).expanduser())) for entry in entries)


def check_caches(experiment: Experiment, keep: Sequence[Path] = ()) -> tuple[Path, ...]:
    """Refuse what `wipe` must not empty and a page cache that we may not drop, before any boot. Raises RuleError.

    `keep` are paths that a run needs: the run and the profile. Returns the directories.
    """
    rules = experiment.file.engine
    if rules is None:
        return ()

    def refuse(key: str, problem: str, hint: str) -> RuleError:
        text = experiment.path.read_text(encoding="utf-8") if experiment.path.exists() else ""
        return RuleError(experiment.path, key, problem, line=line_of(text, key), hint=hint)

    dirs = directories(experiment)
    if rules.cache == "wipe":
        for entry, path in zip(rules.cache_dirs, dirs, strict=True):
            why = refusal(path, (*keep, experiment.path))
            if why is not None:
                hint = "Name the cache's own directory, such as ~/.cache/vllm/torch_compile_cache."
                raise refuse("engine.cache_dirs", f"{entry!r} will not be emptied: {why}", hint)
    if rules.drop_page_cache and not os.access(DROP_CACHES, os.W_OK):
        raise refuse(
            "engine.drop_page_cache",
            "the page cache may be dropped by root only",
            "Run firsttoken as root, or leave it out: each boot then finds the page cache that the last one left.",
        )
    return dirs


def refusal(path: Path, keep: Sequence[Path] = ()) -> str | None:
    """Why a directory must not be emptied; None if it may. One that does not exist yet may."""
    try:
        kind = path.lstat().st_mode
    except FileNotFoundError:
        return _misplaced(path.resolve(), keep)
    except OSError as error:
        return f"it cannot be looked at ({error.strerror})"
    if stat.S_ISLNK(kind):
        return "it is a link"
    if not stat.S_ISDIR(kind):
        return "it is not a directory"
    if (why := _misplaced(path.resolve(), keep)) is not None:
        return why
    return None if os.access(path, os.R_OK | os.W_OK | os.X_OK) else "you may not write to it"


def _misplaced(real: Path, keep: Sequence[Path]) -> str | None:
    """Why nothing at this place, with all links followed, is a cache to be emptied."""
    roots = {root.resolve() for root in (Path.home(), Path(tempfile.gettempdir()), Path("/var/tmp"), Path.cwd())}
    above = [root for root in roots - {Path("/")} if root in real.parents]
    if not above:
        return "it is not below your home, a temporary directory or the working directory"
    # Its own names only: that a home is called cache makes no cache of what is in it.
    inner = real.relative_to(max(above, key=lambda root: len(root.parts)))
    if not any(fnmatch.fnmatch(part.lower(), pattern) for part in inner.parts for pattern in CACHE_NAMES):
        return f"nothing in its name says that it is a cache ({', '.join(CACHE_NAMES)})"
    for store in _model_stores():
        if _holds(real, store) or _holds(store, real):
            return f"models lie in {store}"
    for needed in (*keep, *roots):
        if _holds(real, needed.resolve()):
            return f"{needed} lies in it"
        if needed in keep and needed.is_dir() and _holds(needed.resolve(), real):
            return f"it lies in {needed}"
    return None


def prepare(
    policy: str,
    dirs: Sequence[Path],
    clock: Clock,
    *,
    keep: Sequence[Path] = (),
) -> Step:
    """Apply the policy and record what the caches hold. It reads whole trees: call it in a thread.

    Facts: policy, and per directory path, before_bytes, before_files, and after `wipe` also after_bytes, after_files.
    Raises FirsttokenError if a directory cannot be emptied: with one arm warm and one cold there is nothing to compare.
    """
    began_ns = clock.now_ns()
    found: list[dict[str, Any]] = []
    for path in dirs:
        if policy == "wipe" and (why := refusal(path, keep)) is not None:
            raise FirsttokenError(f"{path}: will not be emptied: {why}", "It has changed since the run was planned.")
        before = size_of(path)
        facts: dict[str, Any] = {"path": str(path), "before_bytes": before.bytes, "before_files": before.files}
        if policy == "wipe":
            _empty(path)
            after = size_of(path)
            facts |= {"after_bytes": after.bytes, "after_files": after.files}
            if after.files:
                raise FirsttokenError(
                    f"{path}: {after.files} files came back while it was emptied",
                    "Something else uses this cache: stop it, or give the engine a cache of its own.",
                )
        found.append(facts)
    total = format_bytes(sum(facts["before_bytes"] for facts in found))
    count = f"{len(found)} director{'y' if len(found) == 1 else 'ies'}"
    if policy == "wipe":
        proof = f"{count} emptied, {total} before"
    else:
        proof = f"left as they are: {total} in {count}" if found else "left as they are, no cache_dirs to measure"
    return Step(
        name="caches",
        began_ns=began_ns,
        ended_ns=clock.now_ns(),
        proof=proof,
        facts={"policy": policy, "dirs": found},
    )


def size_of(path: Path) -> Size:
    """Bytes and entries below a directory, links counted and not followed; what vanishes meanwhile is left out."""
    total, files, open_folders = 0, 0, [str(path)]
    while open_folders:
        with contextlib.suppress(OSError), os.scandir(open_folders.pop()) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        open_folders.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_size
                        files += 1
    return Size(total, files)


def _empty(path: Path) -> None:
    """Remove what a directory holds, and not the directory. Links in it are removed and never followed."""
    try:
        with os.scandir(path) as entries:
            inside = [(entry.path, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except FileNotFoundError:
        return
    for each, is_folder in inside:
        try:
            if is_folder:
                shutil.rmtree(each)
            else:
                Path(each).unlink(missing_ok=True)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise FirsttokenError(
                f"{error.filename or each}: cannot be removed ({error.strerror})",
                "A container writes its caches as root: run the engine as yourself, or give it a cache of its own.",
            ) from None


def drop_page_cache(
    clock: Clock,
    *,
    file: Path = DROP_CACHES,
    free: Callable[[], int | None] = memory_free_bytes,
    sync: Callable[[], None] = os.sync,
) -> Step:
    """Write what is dirty and drop what is cached, so that each boot reads its weights from the disk. Needs root.

    It may wait for the disk: call it in a thread. Facts: before_free_bytes, after_free_bytes.
    """
    began_ns = clock.now_ns()
    before = free()
    try:
        sync()
        file.write_text("3\n", encoding="ascii")
    except OSError as error:
        raise FirsttokenError(
            f"{file}: the page cache cannot be dropped ({error.strerror})",
            "Run firsttoken as root, or leave engine.drop_page_cache out.",
        ) from None
    after = free()
    proof = None if before is None or after is None else f"{format_bytes(after)} free, {format_bytes(before)} before"
    return Step(
        name="page_cache",
        began_ns=began_ns,
        ended_ns=clock.now_ns(),
        proof=proof,
        facts={"before_free_bytes": before, "after_free_bytes": after},
    )


def _model_stores() -> list[Path]:
    named = [os.environ[name] for name in MODEL_STORE_VARIABLES if os.environ.get(name)]
    return [Path(store).expanduser().resolve() for store in (*MODEL_STORES, *named)]


def _holds(folder: Path, path: Path) -> bool:
    return folder == path or folder in path.parents
