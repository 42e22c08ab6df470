"""`report`: a run becomes a verdict. Heavy imports stay inside the command, so that --help is fast."""

from pathlib import Path

import click

EXAMPLE = """
\b
Example:
  firsttoken report runs/november
  firsttoken report runs/november --json | jq '.arms[] | {arm, verdict}'

\b
Exit codes:
  0  every arm is decided      1  failure        2  wrong usage or a broken file
  3  something is inconclusive                   4  the run is invalid
"""


@click.command(epilog=EXAMPLE)
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print verdict.json instead of the table.")
@click.option("--out", type=click.Path(path_type=Path), help="Directory for verdict.json.  [default: RUN]")
@click.pass_context
def report(context: click.Context, run: Path, as_json: bool, out: Path | None) -> None:
    """Give one verdict per arm, by the rule that was fixed before the first boot.

    Reads the run, prints the verdicts and writes verdict.json. It can be made again at any time, also of a run that is
    not finished.
    """
    from analysis.document import NAME, verdict_document
    from analysis.judge import judge
    from analysis.table import format_report
    from profiles.experiment import load_experiment
    from profiles.files import encode_pretty, make_folder, write_document
    from profiles.runs import RULE, read_run

    loaded = read_run(run)
    judged = judge(loaded, load_experiment(run / RULE))
    document = verdict_document(judged)
    folder = out if out is not None else run
    make_folder(folder)
    write_document(folder / NAME, document)
    click.echo(encode_pretty(document).decode() if as_json else format_report(judged), nl=not as_json)
    click.echo(str(folder / NAME), err=True)
    context.exit(judged.exit_code)
