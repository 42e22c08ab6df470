"""What an arm is started with in one boot: its placeholders filled in, its port found."""

from functools import partial

from profiles.experiment import Arm, Experiment
from replay.engines import Launch, bind_address, free_port
from replay.rundir import BootFolder


def plan_launch(experiment: Experiment, run_id: str, arm: Arm, name: str, folder: BootFolder) -> Launch:
    """The launch of an arm under the name that it has in the design, with what is written into its folder."""
    rules = experiment.file.engine
    assert rules is not None  # the caller checked that there is something to boot
    host, port = rules.host, arm.port or free_port(rules.host)
    fill = partial(fill_in, host=host, port=port, bind=bind_address(rules.launcher, arm, host), model=rules.model)
    return Launch(
        arm=name,
        argv=tuple(map(fill, arm.argv)),
        env={variable: fill(value) for variable, value in arm.env.items()},
        cwd=experiment.path.parent / arm.cwd,
        log=folder.log,
        host=host,
        port=port,
        image=arm.image,
        container_args=tuple(map(fill, arm.container_args)),
        hooks=rules.hooks,
        url=fill(arm.url),
        run_id=run_id,
        boot_name=folder.name,
        model=rules.model,
        remember=folder.remember_engine,
    )


def fill_in(text: str, *, host: str, port: int, bind: str, model: str) -> str:
    """`{host}`, `{port}`, `{bind}` and `{model}`; other braces stay, engines take JSON on the command line."""
    for name, value in (("{host}", host), ("{port}", str(port)), ("{bind}", bind), ("{model}", model)):
        text = text.replace(name, value)
    return text
