"""`report`: a run becomes a verdict. Heavy imports stay inside the command, so that --help is fast."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from analysis.findings import Report

RELATIVE_NAME = "verdict-relative.json"
PAGE_NAME = "report.html"
RELATIVE_PAGE_NAME = "report-relative.html"


def _print_schema(context: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        from analysis.contract import schema_text

        click.echo(schema_text(), nl=False)
        context.exit()


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print verdict.json instead of the table.")
@click.option("--markdown", is_flag=True, help="Print Markdown for a pull request instead.")
@click.option("--html", "page", type=click.Path(path_type=Path), help="The HTML page.  [default: report.html in RUN]")
@click.option("--no-html", is_flag=True, help="Write no HTML page.")
@click.option("--static", is_flag=True, help="A page without scripts, for mail and strict sites.")
@click.option(
    "--relative",
    is_flag=True,
    help="Leave out absolute figures, host names and paths, to publish it. Writes verdict-relative.json and "
    "report-relative.html.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Directory for what is written.  [default: RUN]")
@click.option(
    "--schema",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_schema,
    help="Print the JSON Schema of verdict.json; takes no RUN.",
)
@click.pass_context
def report(
    context: click.Context,
    run: Path,
    as_json: bool,
    markdown: bool,
    page: Path | None,
    no_html: bool,
    static: bool,
    relative: bool,
    out: Path | None,
) -> None:
    """Give one verdict per arm, by the rule that was fixed before the first boot.

    Reads RUN, prints the verdicts, writes verdict.json and an HTML page that needs no network. It can be made again at
    any time, also of a run that is not finished. stdout carries the result, stderr the paths of what was written.

    \b
    Example:
      firsttoken report runs/november
      firsttoken report runs/november --json | jq ".arms[].verdict"
      firsttoken report runs/november --markdown > comment.md
      firsttoken report runs/november --relative --out to-publish
      firsttoken report --schema > verdict.schema.json

    Exit codes: 0 every arm is decided, 1 failure, 2 wrong usage or a broken file, 3 something is inconclusive, 4 the
    run is invalid.
    """
    from profiles.errors import UsageError

    if as_json and markdown:
        raise UsageError("--json and --markdown both print to stdout", "Give one of them.")
    if no_html and (static or page is not None):
        raise UsageError("--no-html writes no page, so --html and --static have nothing to say", "Leave one out.")
    if not no_html and not static and run.is_dir():
        from analysis.page.script import begin_bundle

        begin_bundle()  # beside the imports and the judging, which take as long
    from analysis.document import NAME, verdict_document
    from analysis.judge import judge
    from analysis.relative import relative_document
    from profiles.experiment import load_experiment
    from profiles.files import encode_pretty, make_folder, writable, write_document
    from profiles.runs import RULE, read_run

    loaded = read_run(run)
    judged = judge(loaded, load_experiment(run / RULE))
    document = verdict_document(judged)
    if relative:
        document = relative_document(document, judged)
    folder = out if out is not None else run
    verdict_path = folder / (RELATIVE_NAME if relative else NAME)
    with writable(verdict_path, "Give another directory with --out."):
        make_folder(folder)
        write_document(verdict_path, document)
    if as_json:
        click.echo(encode_pretty(document).decode(), nl=False)
    else:
        click.echo(_text(judged, markdown, relative))
    click.echo(str(verdict_path), err=True)
    if not no_html:
        _write_page(judged, page or folder / (RELATIVE_PAGE_NAME if relative else PAGE_NAME), static, relative)
    context.exit(judged.exit_code)


def _text(judged: "Report", markdown: bool, relative: bool) -> str:
    if markdown:
        from analysis.markdown import format_markdown

        return format_markdown(judged, relative)
    from analysis.table import format_report

    return format_report(judged, relative)


def _write_page(judged: "Report", path: Path, static: bool, relative: bool) -> None:
    """The page comes last: the verdict stands whether or not a picture of it can be drawn."""
    try:
        from analysis.page.html import write_page

        write_page(judged, path, static=static, relative=relative)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as problem:  # whatever a drawing library does: one in Rust panics beside Exception
        name = type(problem).__name__
        click.echo(f"Warning: {path}: the HTML page was not written ({name}: {problem}); the verdict stands", err=True)
        return
    click.echo(str(path), err=True)
