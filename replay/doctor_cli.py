"""The command `doctor`."""

from pathlib import Path

import click

FORMAT = "firsttoken/doctor"


@click.command(short_help="Check this machine before an evening is spent on boots.")
@click.argument("experiment", required=False, type=click.Path(path_type=Path))
@click.option("-o", "--out", type=click.Path(path_type=Path), metavar="RUN", help="Where it will be.  [default: .]")
@click.option("--json", "as_json", is_flag=True, help="Print one strict JSON document.")
@click.pass_context
def doctor(context: click.Context, experiment: Path | None, out: Path | None, as_json: bool) -> None:
    """Look whether this machine is fit for a run, and for EXPERIMENT if it is given.

    Each line says ok, warn (something will be worth less) or fail (the run would not come through), and what to do. It
    starts no engine and changes nothing.

    \b
    Example:
      firsttoken doctor
      firsttoken doctor experiment.toml -o runs/2026-12

    Exit codes: 0 nothing failed, 1 something did, 2 the experiment cannot be read.
    """
    import textwrap
    from dataclasses import asdict

    from profiles.experiment import load_experiment
    from profiles.files import encode_pretty, tool_version
    from replay.clock import SystemClock
    from replay.doctor import examine

    loaded = load_experiment(experiment) if experiment is not None else None
    checks = []
    for check in examine(loaded, place=out if out is not None else Path.cwd(), clock=SystemClock()):
        checks.append(check)
        if not as_json:
            said = f"{check.seen.rstrip('.')}. {check.hint}" if check.hint else check.seen
            head = f"{check.status:<5}{check.name:<11} "
            click.echo("\n".join(textwrap.wrap(said, 80, initial_indent=head, subsequent_indent=" " * len(head))))
    failed = sum(check.status == "fail" for check in checks)
    if as_json:
        document = {"format": FORMAT, "version": 1, "tool": tool_version(), "fit": not failed}
        click.echo(encode_pretty(document | {"checks": [asdict(check) for check in checks]}), nl=False)
    if failed:
        context.exit(1)
