"""The command `replay`."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from replay.experiment import Ask
    from replay.plan import Plan
    from replay.rundir import RunFolder

INTERRUPTED_EXIT = 130


@click.command(short_help="Cold-boot each arm and replay the recorded load.")
@click.argument("experiment", type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, metavar="RUN", help="The run directory.")
@click.option("--resume", is_flag=True, help="Go on with a run that was stopped, at its next boot.")
@click.option("--amend", metavar="REASON", help="Go on under a rule that has changed; nothing can be adopted then.")
@click.pass_context
def replay(context: click.Context, experiment: Path, out: Path, resume: bool, amend: str | None) -> None:
    """Cold-boot every arm of EXPERIMENT, block by block in random order, and replay the profile's load on it.

    Each boot measures the operating points that production reaches and, last, the synthetic ones. Ctrl-C stops the
    engine, proves that it is gone and keeps what was measured. The rule is frozen before the first boot: a changed one
    needs --amend, which keeps the old rule and makes the run post hoc. At each look that the rule declares, arms that
    are decided are dropped.

    \b
    Example:
      firsttoken replay experiment.toml -o runs/2026-12
      firsttoken replay experiment.toml -o runs/2026-12 --resume
      firsttoken replay experiment.toml -o runs/2026-12 --resume --amend "why"

    Exit codes: 0 done, 1 an engine or arm failed, 2 wrong input, 4 too many boots spoilt, 130 stopped by Ctrl-C.
    """
    import replay.lean_httpx  # noqa: F401  before anything that imports httpx
    from profiles.errors import UsageError
    from profiles.experiment import load_experiment
    from profiles.profile import read_profile
    from profiles.runs import MANIFEST
    from replay.clock import SystemClock
    from replay.plan import plan_run
    from replay.progress import without_log

    if amend is not None and not (resume and (out / MANIFEST).exists()):
        raise UsageError(
            f"{out}: --amend is for a run that was begun",
            "Write --resume --amend REASON with its directory. Before the first boot, just change the rule.",
        )
    if resume and not _begun(out):
        raise UsageError(
            f"{out}: --resume is for a run that was begun, and none is there",
            "See whether the path is right. A new run begins without --resume.",
        )
    clock = SystemClock()
    loaded = load_experiment(experiment)
    plan = plan_run(loaded, read_profile(loaded.profile_path), clock, keep=[out])
    failures = _run(plan, out, resume, amend, context)
    if failures:
        many = f"{len(failures)} arms failed and count" if len(failures) > 1 else "An arm failed and counts"
        _tell(f"{many} as rejected:")
        for sentence in failures:
            _tell(f"  {without_log(sentence)}")
    click.echo(str(out))
    if failures:
        context.exit(1)


def _run(plan: "Plan", out: Path, resume: bool, amend: str | None, context: click.Context) -> list[str]:
    import asyncio
    import signal

    from profiles.runs import MANIFEST
    from replay.clock import SystemClock, fine_event_loop
    from replay.experiment import run_experiment
    from replay.progress import Progress
    from replay.resume import take_up
    from replay.rundir import RunFolder
    from replay.surroundings import boot_id

    clock = SystemClock()

    async def open_run() -> "tuple[RunFolder, Plan]":
        if resume and (out / MANIFEST).exists():
            run, resumed = await take_up(out, plan, clock, amend)
            run.event("run_resumed", boot_id=boot_id())
            if amend is not None:
                _tell_notes(plan)
            return run, resumed
        run = RunFolder.create(out, clock, plan.manifest, plan.experiment.path.read_bytes())
        run.event("rule_fixed", rule_sha256=plan.experiment.bytes_sha256)
        _tell_notes(plan)
        return run, plan

    async def main() -> list[str]:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        told = False

        def stop() -> None:
            nonlocal told
            if told:
                click.echo("Still stopping the engine; it must be gone before firsttoken ends.", err=True)
                return
            told = True
            click.echo("Stopping: the engine is told to end.", err=True)
            task.cancel()

        # A hangup too: the engine has a session of its own, so a closed terminal would leave it running.
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stop)
        run, opened = await open_run()
        progress = Progress(len(run.done()), clock)
        try:
            with progress:
                return await run_experiment(opened, run, clock, progress.note, _ask(context))
        except asyncio.CancelledError:
            run.event("run_interrupted")
            _tell(f"Stopped after {progress.ended} of {progress.total} boots; the engine is gone. Go on with:")
            # In one line, to be copied.
            click.echo(f"  firsttoken replay {plan.experiment.path} -o {out} --resume", err=True)
            context.exit(INTERRUPTED_EXIT)
        finally:
            run.close()

    return asyncio.run(main(), loop_factory=fine_event_loop)


def _begun(out: Path) -> bool:
    """Whether a run is there, be it one without its manifest."""
    from profiles.runs import EVENTS, MANIFEST

    return (out / MANIFEST).exists() or (out / EVENTS).exists()


def _tell_notes(plan: "Plan") -> None:
    """What a person should know before the first boot: once, when the run begins or its rule has changed."""
    for sentence in plan.notes:
        _tell(f"Note: {sentence}")


def _tell(text: str) -> None:
    """To whoever waits: on stderr, folded to the terminal."""
    import sys

    from profiles.terminal import columns, fold

    click.echo(fold(text, columns(sys.stderr)), err=True)


def _ask(context: click.Context) -> "Ask | None":
    """Who gives verdicts at a look: the front door knows, this package does not."""
    given = context.obj.get("ask_verdicts") if isinstance(context.obj, dict) else None
    return given if callable(given) else None
