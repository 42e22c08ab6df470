"""The command `init`."""

from pathlib import Path

import click

ENGINE_NAMES = ("vllm", "llamacpp", "sglang", "docker")


@click.command(short_help="Write a commented experiment.toml from a profile.")
@click.argument("profile", type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path, allow_dash=True), default=Path("experiment.toml"),
              show_default=True, metavar="FILE", help="Where to write it; it must not exist. - prints it.")  # fmt: skip
@click.option("--engine", type=click.Choice(ENGINE_NAMES), default="vllm", show_default=True, help="Its command line.")
@click.option("--model", default="", metavar="NAME", help="The served name.  [default: the recorded one]")
def init(profile: Path, out: Path, engine: str, model: str) -> None:
    """Write a starter for experiment.toml, filled in from what PROFILE really holds.

    The levels of concurrency that decide, the classes, how many requests a boot needs for the guards, the smallest gain
    worth a change: each with the number it comes from. What only you know is marked TODO. Nothing is overwritten.

    \b
    Example:
      firsttoken init my-profile
      firsttoken init my-profile --engine llamacpp -o llama.toml

    Exit codes: 0 done, 1 cannot be written, 2 wrong input, or the file exists.
    """
    import os

    from profiles.errors import RuleError, UsageError
    from profiles.experiment import load_experiment
    from profiles.files import FILE_MODE, writable
    from profiles.planned import check_profile, read_facts
    from profiles.profile import read_profile
    from profiles.starter import starter

    printed = str(out) == "-"
    if not printed and out.exists():
        raise UsageError(f"{out}: already exists, and is not overwritten", "Give another path with -o, or -o -.")
    facts = read_facts(read_profile(profile))
    folder = Path.cwd() if printed else out.parent
    path = os.path.relpath(profile.resolve(), folder.resolve())
    text = starter(facts, path=path, engine=engine, model=model)
    if printed:
        click.echo(text, nl=False)
        return
    with writable(out):
        try:
            descriptor = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
        except FileExistsError:  # made meanwhile, or a link to nowhere
            raise UsageError(f"{out}: already exists, and is not overwritten", "Give another path with -o.") from None
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode("utf-8"))
    try:
        check_profile(load_experiment(out), facts)
    except RuleError as error:
        click.echo(f"Not to be replayed as it stands. {error}", err=True)
    todo = sum("TODO" in line for line in text.splitlines())
    click.echo(f"Look through it: {todo} lines are marked TODO. Then: firsttoken plan {out}", err=True)
    click.echo(out)
