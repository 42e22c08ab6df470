"""`plan`: what an experiment costs and what it can decide. Heavy imports stay inside the command."""

from pathlib import Path

import click


@click.command(short_help="Say what an experiment costs, and what it can decide.")
@click.argument("experiment", type=click.Path(path_type=Path))
@click.option(
    "--run", type=click.Path(path_type=Path), metavar="RUN", help="An earlier run: its noise, its boot times."
)
@click.option("--sd", type=click.FloatRange(0, 100, min_open=True), metavar="PERCENT",
              help="Spread (sd) between A/A blocks, where no run has measured it.")  # fmt: skip
@click.option("--boot-time", metavar="TIME", help="Machine time of one boot with its windows, such as 20min.")
@click.option("--json", "as_json", is_flag=True, help="Print one strict JSON document.")
def plan(experiment: Path, run: Path | None, sd: float | None, boot_time: str | None, as_json: bool) -> None:
    """Print the boots, the hours and the chance of each verdict of EXPERIMENT, before anything is booted.

    For true effects of 0, 3, 5 and 10 % on each measure: how often this design ends in adopt, reject,
    workload-dependent or inconclusive. Then the smallest effect that it shows, and which guards it can show. What the
    planned requests cannot support is refused.

    \b
    Example:
      firsttoken plan experiment.toml
      firsttoken plan experiment.toml --run runs/november --boot-time 20min

    Exit codes: 0 done, 1 failure, 2 wrong usage, or a rule that cannot be held.
    """
    from analysis.plan.design import make_plan
    from analysis.plan.noise import assumed_noise, measured_noise, stated_noise
    from analysis.plan.text import format_plan, plan_document
    from profiles.errors import UsageError
    from profiles.experiment import load_experiment
    from profiles.files import encode_pretty
    from profiles.planned import check_profile, read_facts
    from profiles.profile import read_profile
    from profiles.runs import read_run
    from profiles.units import parse_duration

    if run is not None and sd is not None:
        raise UsageError("--run and --sd both say how large the noise is", "Give one of them.")
    boot_ns = None
    if boot_time is not None:
        try:
            boot_ns = parse_duration(boot_time)
        except ValueError as error:
            raise UsageError(f"--boot-time {error}") from None
    loaded = load_experiment(experiment)
    facts = read_facts(read_profile(loaded.profile_path))
    check_profile(loaded, facts)  # before a large run is read
    if run is not None:
        noise = measured_noise(read_run(run), loaded)
    else:
        noise = assumed_noise() if sd is None else stated_noise(sd / 100)
    planned = make_plan(loaded, facts, noise, boot_ns)
    if as_json:
        click.echo(encode_pretty(plan_document(planned)), nl=False)
    else:
        click.echo(format_plan(planned))
