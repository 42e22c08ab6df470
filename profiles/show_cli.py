"""The commands `profile show` and `profile diff`."""

from pathlib import Path

import click

_PATH = click.Path(path_type=Path)
_AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print one strict JSON document.")


@click.command()
@click.argument("path", metavar="PROFILE", type=_PATH)
@_AS_JSON
@click.option("--full", is_flag=True, help="Also the table of lengths, the days, the languages and the tenants.")
def show(path: Path, as_json: bool, full: bool) -> None:
    """What a profile holds, what its load is like, and what cannot be measured with it.

    \b
    Example:
      firsttoken profile show monday.profile
      firsttoken profile show monday.profile --json | jq .character.arrivals

    Exit codes: 0 done, 1 failure, 2 wrong usage or input.
    """
    from profiles.files import encode_pretty
    from profiles.profile import read_profile
    from profiles.show import render_show, show_document

    profile = read_profile(path)
    profile.verify()
    if as_json:
        click.echo(encode_pretty(show_document(profile)), nl=False)
    else:
        click.echo(render_show(profile, full=full))


@click.command()
@click.argument("before", metavar="A", type=_PATH)
@click.argument("after", metavar="B", type=_PATH)
@_AS_JSON
@click.pass_context
def diff(context: click.Context, before: Path, after: Path, as_json: bool) -> None:
    """Whether the load of profile B differs enough from that of A to reopen a decision that was made on A.

    Says `keep`, `reopen` or `cannot tell`, with the reasons. The limits: c of 95 % of the arrivals, or the arrivals
    over c (total variation above 0.1); models, and classes of 5 %, that came or went; class mix (0.1); median and p90
    of the lengths (25 %); cached share (10 points); rate (a factor of 2, or 25 % where c is not known).

    \b
    Example:
      firsttoken profile diff monday.profile today.profile || echo "look again"

    Exit codes: 0 keep, 3 cannot tell, 5 reopen; 1 and 2 are errors.
    """
    from profiles.diff import EXIT_CODES, diff_document, render_diff
    from profiles.drift import compare
    from profiles.files import encode_pretty
    from profiles.profile import read_profile
    from profiles.show import read_load

    was, now = read_profile(before), read_profile(after)
    for profile in (was, now):
        profile.verify()
    a, b = read_load(was), read_load(now)
    compared = compare(a, b)
    if as_json:
        click.echo(encode_pretty(diff_document(compared, a, b)), nl=False)
    else:
        click.echo(render_diff(compared, a, b))
    context.exit(EXIT_CODES[compared.verdict])
