"""The front door: one command, `firsttoken`, and the demo. The only file that knows all four packages.

    record → CAPTURE/ → concurrency, profile → PROFILE/ → replay → RUN/ → report → verdict.json

Members of the group are named here and imported when they are used, so that `--help` stays quick. Everything a user can
cause ends as one clear sentence and an exit code, without a traceback (`profiles.errors`).
"""

import errno
import os
import sys
from pathlib import Path

import click

from profiles.errors import FirsttokenError, UsageError
from profiles.lazy_group import LazyGroup

# In the order of the pipeline: command, where it lives, what it does in one line.
COMMANDS = {
    "record": ("capture.cli:record", "Record production traffic in front of an engine."),
    "capture": ("capture.check_cli:capture", "Check a capture, or delete what has outlived its use."),
    "concurrency": ("profiles.concurrency_cli:concurrency", "Show how many requests are really in flight."),
    "profile": ("profiles.cli:profile", "Build, show, compare, shape, import and export load profiles."),
    "init": ("profiles.starter_cli:init", "Write a commented experiment.toml from a profile."),
    "validate": ("profiles.validate_cli:validate", "Read an artefact wholly, and say what it is or what is wrong."),
    "plan": ("analysis.plan.cli:plan", "Say what an experiment costs, and what it can decide."),
    "doctor": ("replay.doctor_cli:doctor", "Check this machine before an evening is spent on boots."),
    "replay": ("replay.cli:replay", "Cold-boot each arm and replay the recorded load."),
    "report": ("analysis.cli:report", "Give one verdict per arm, by the rule fixed before the run."),
    "selftest": ("replay.selftest_cli:selftest", "Measure how wrong the client is on this machine."),
    "engine": ("replay.simulator.cli:engine", "Run the embedded engine, a simulation for tests and the demo."),
    "demo": ("firsttoken:demo", "Run the whole pipeline on the embedded engine, in a minute or two."),
}


def _print_version(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from profiles.files import tool_version

        click.echo(tool_version())
        context.exit()


@click.group(
    cls=LazyGroup,
    members=COMMANDS,
    heading="Commands, in the order of the work",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show it.")
@click.pass_context
def cli(context: click.Context) -> None:
    """Record real LLM traffic, replay it against cold-booted engine configurations, get a verdict with its uncertainty.

    \b
    Example:
      firsttoken record --upstream http://127.0.0.1:8000 --out my-capture \\
        --bodies full
      firsttoken concurrency my-capture
      firsttoken profile build my-capture -o my-profile
      firsttoken init my-profile
      firsttoken plan experiment.toml
      firsttoken replay experiment.toml -o my-run
      firsttoken report my-run

    Exit codes: 0 done, 1 failure, 2 wrong usage or input, 3 something inconclusive, 4 run invalid, 5 the load
    has changed (profile diff), 130 Ctrl-C.
    """
    context.obj = {"ask_verdicts": ask_verdicts}


def ask_verdicts(run: Path) -> dict[str, str]:
    """The verdict of each arm of a run as it stands, by `report` in a process of its own: a replay has to stay small.

    Raises FirsttokenError with what the report said, where it could not be made.
    """
    import subprocess
    from tempfile import TemporaryDirectory

    import orjson

    with TemporaryDirectory(prefix="firsttoken-look-") as folder:
        words = [sys.executable, "-m", "firsttoken", "report", str(run), "--json", "--no-html", "--out", folder]
        done = subprocess.run(words, capture_output=True, check=False)
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    if done.returncode not in REPORTED:
        last = said[-1] if said else "it said nothing"
        raise FirsttokenError(f"the report ended with exit code {done.returncode}: {last}")
    return {arm["arm"]: arm["verdict"] for arm in orjson.loads(done.stdout)["arms"]}


# Exit codes of `report` that come with verdicts.
REPORTED = (0, 3, 4)


DEMO_TIME_SCALE = 0.52
DEMO_REQUESTS = 70
DEMO_SECONDS = 6.0


@click.command(short_help=COMMANDS["demo"][1])
@click.option("--out", type=click.Path(path_type=Path), help="Where to put it.  [default: demo/ and the time]")
@click.option("--seed", type=int, default=7, show_default=True, help="Of the traffic.")
def demo(out: Path | None, seed: int) -> None:
    """Run the whole pipeline on the embedded engine: record, histogram, profile, cold-booted arms, verdicts.

    A small "production" traffic goes through the recorder. Then four arms are booted three times each, with a second
    copy of the baseline for the noise floor. The engine is simulated: no number says anything about hardware.

    \b
    Example:
      firsttoken demo

    Exit codes: 0 done whatever the verdicts, 1 failure, 2 wrong usage, 130 stopped by Ctrl-C.
    """
    import asyncio
    from datetime import UTC, datetime
    from importlib.resources import files

    from profiles.files import make_folder, write_whole

    folder = out if out is not None else Path("demo") / datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    if folder.exists():
        raise UsageError(f"{folder}: already exists", "Give another directory with --out.")
    make_folder(folder)
    click.echo("SIMULATED ENGINE: the demo measures firsttoken's embedded engine. No number here is about hardware.")
    _headline("1 What load is it? A small production, recorded in front of the engine")
    asyncio.run(_record_production(folder, seed))
    _step("concurrency", folder / "capture")
    _headline("2 What do the flags do under this load? Every arm cold-booted, in 3 blocks")
    _step("profile", "build", folder / "capture", "-o", folder / "profile")
    ladder = files("replay.simulator").joinpath("ladder.toml").read_text(encoding="utf-8")
    ladder = ladder.replace("@python@", sys.executable).replace("@time_scale@", str(DEMO_TIME_SCALE))
    write_whole(folder / "experiment.toml", ladder.encode("utf-8"))
    _step("replay", folder / "experiment.toml", "-o", folder / "run")
    _headline("3 Do I change anything?")
    _step("report", folder / "run")
    _headline("What was made")
    for name in ("capture", "profile", "experiment.toml", "run", "run/verdict.json", "run/report.html"):
        if (folder / name).exists():
            click.echo(f"  {folder / name}")


# Run as a script, this module is not the one that an import would find.
cli.add_command(demo)


def _headline(text: str) -> None:
    click.echo(f"\n{text}\n{'─' * len(text)}")


def _step(*arguments: object) -> None:
    """Run one command of the pipeline as a user would type it. Verdicts do not change the demo's exit code."""
    words = [str(argument) for argument in arguments]
    click.echo(f"$ firsttoken {' '.join(words)}")
    code = cli.main(words, standalone_mode=False)
    if code == 130:
        raise click.exceptions.Abort
    if code not in (None, 0, 3, 4):
        raise FirsttokenError(f"the demo stopped: `firsttoken {' '.join(words)}` ended with exit code {code}")


async def _record_production(folder: Path, seed: int) -> None:
    """An engine, the recorder in front of it, and people who ask. Both processes are stopped whatever happens."""
    import asyncio
    from contextlib import AsyncExitStack

    from profiles.units import SECOND_NS
    from replay.clock import SystemClock
    from replay.engines import EngineProcess, free_port, to_the_end, wait_listening
    from replay.simulator.traffic import send_traffic

    clock, host = SystemClock(), "127.0.0.1"
    me = [sys.executable, "-m", "firsttoken"]

    async def end(process: EngineProcess) -> None:
        await to_the_end(process.stop(10 * SECOND_NS))

    async with AsyncExitStack() as stack:

        async def start(name: str, port: int, *words: str) -> None:
            log = folder / f"{name}.log"
            process = await EngineProcess.start(
                [*me, *words], env=os.environ, cwd=Path.cwd(), log=log, host=host, port=port, clock=clock
            )
            stack.push_async_callback(end, process)
            await wait_listening(process, clock, patience_ns=60 * SECOND_NS)

        engine_port, record_port = free_port(host), free_port(host)
        engine_url, record_url = f"http://{host}:{engine_port}", f"http://{host}:{record_port}"
        scale = ["--time-scale", str(DEMO_TIME_SCALE)]
        speculation = ["--speculative-config", '{"method":"mtp","num_speculative_tokens":2}']
        engine = ["engine", "--port", str(engine_port), "--model", "demo-model", *scale, *speculation]
        record = ["record", "--upstream", engine_url, "--listen", f"{host}:{record_port}", "--bodies", "full"]
        record += ["--out", str(folder / "capture")]
        click.echo(f"$ firsttoken {' '.join(record)}")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(start("engine", engine_port, *engine))
            tasks.create_task(start("record", record_port, *record))
        sent = await send_traffic(
            record_url, requests=DEMO_REQUESTS, seconds=DEMO_SECONDS, seed=seed, model="demo-model"
        )
        click.echo(f"  {sent} requests sent through the recorder")


def main() -> None:
    """Run the command line; turn what a user can cause into a sentence and an exit code."""
    try:
        code = cli.main(standalone_mode=False)
    except click.exceptions.Abort:
        sys.exit(130)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except FirsttokenError as error:
        _say(f"firsttoken: {error}")
        sys.exit(error.exit_code)
    except BrokenPipeError:
        # The reader of our output went away, as `| head` does.
        sys.stderr.close()
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        said = say_refused(error)
        if said is None:
            raise
        _say(f"firsttoken: {said[0]}")
        sys.exit(said[1])
    sys.exit(code if isinstance(code, int) else 0)


def _say(text: str) -> None:
    """On stderr: folded to a terminal, in whole lines to what a script reads."""
    from profiles.terminal import columns, fold

    click.echo(fold(text, columns(sys.stderr)) if sys.stderr.isatty() else text, err=True)


def say_refused(error: OSError) -> tuple[str, int] | None:
    """What the system refused, in a sentence, and the exit code for it. None for an error that no path explains.

    A path that a user gave is wrong usage (2); a full disk is a failure (1).
    """
    from profiles.files import MISTAKEN_PATH

    if error.filename is None and error.errno not in EXHAUSTED:
        return None
    reason = error.strerror or str(error)
    place = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
    return f"{place}{reason}", 2 if error.errno in MISTAKEN_PATH else 1


# What a machine runs out of: then no path is named.
EXHAUSTED = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM}


if __name__ == "__main__":
    main()
