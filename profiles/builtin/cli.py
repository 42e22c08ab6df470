"""The command `profile builtin`."""

from pathlib import Path

import click


@click.command()
@click.argument("name", required=False)
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Directory to make; it must not exist.")
@click.option("--list", "listed", is_flag=True, help="Print the names and what they hold.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Other texts of the same kinds.")
@click.option("--scale", type=float, default=1.0, show_default=True, help="Shorter prompts and answers: 0.05.")
@click.option("--requests", type=int, metavar="N", help="Of each workload; of a mix in all. Default: at least 24 each.")
@click.option("--model", default="default", show_default=True, help="The model that bodies ask for.")
@click.option("--force", is_flag=True, help="Replace OUT if it is a profile and holds nothing else.")
def builtin(
    name: str | None,
    out: Path | None,
    listed: bool,
    seed: int,
    scale: float,
    requests: int | None,
    model: str,
    force: bool,
) -> None:
    """Make a profile of generated requests, if you have not recorded yours yet.

    It is synthetic: the texts make sense, but nobody sent them, and it says nothing of how many requests your
    production has in flight. Its requests stand one after another; a mix is an order for eight slots.

    Prompts go from 29 to about 159,000 tokens, which are estimated from characters. --scale 0.05 makes the longest fit
    about 8,000. Prints the path of the profile.

    \b
    Example:
      firsttoken profile builtin --list
      firsttoken profile builtin single-stream -o builtin.profile --scale 0.05

    Exit codes: 0 done, 1 failure, 2 wrong usage or input.
    """
    from profiles.errors import UsageError

    if listed:
        click.echo(_list())
        return
    if name is None or out is None:
        raise UsageError("a name and -o OUT are needed", "`firsttoken profile builtin --list` prints the names.")
    from profiles.builtin.generate import generate
    from profiles.profile_folder import check_free
    from profiles.write import write_profile

    check_free(out, force=force)
    made = generate(name, seed=seed, scale=scale, requests=requests, model=model)
    write_profile(
        out,
        made.requests,
        source=made.source,
        windows=[],
        zero_wall_ns=None,
        bodies=enumerate(made.bodies),
        content="full",
        synthetic=True,
        force=force,
    )
    tokens = made.requests["prompt_tokens"].to_list()
    click.echo(
        f"synthetic: {len(tokens)} generated requests of about {min(tokens)} to {max(tokens)} prompt tokens"
        " (estimated); no concurrency was observed",
        err=True,
    )
    click.echo(out)


def _list() -> str:
    from profiles.builtin.workloads import BUILTINS, WORKLOADS

    lines = [f"{'name':17}{'prompt':>9}{'answer':>8}  tokens, about"]
    for each in BUILTINS.values():
        one = WORKLOADS.get(each.name)
        sizes = f"{one.prompt_tokens:>9,}{one.output_tokens:>8,}" if one is not None else f"{'–':>9}{'–':>8}"
        lines.append(f"{each.name:17}{sizes}  {each.about}")
    return "\n".join([*lines, "", "All of it is generated and synthetic; see --scale for small engines."])
