"""Whole replays without an engine: every boot is written as done, failed or discarded, and nothing is started."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from test_replay_run import write_experiment
from virtual import VirtualClock, run_virtual

from profiles.experiment import load_experiment
from profiles.profile import read_profile
from profiles.runs import DONE, MANIFEST, BootFacts, Step, read_run
from replay import experiment
from replay.boot import Bench, Place
from replay.plan import Plan, plan_run
from replay.resume import take_up
from replay.rundir import BootFolder, RunFolder
from replay.surroundings import boot_id

CLOCK = VirtualClock()

LADDER = '[[arm]]\nname = "v1"\nargs = ["--a"]\n[[arm]]\nname = "v2"\nargs = ["--b"]\n'


class Unbooted:
    """`status` says how a boot ends, by its place; `booted` are the places in their order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.status: Callable[[Place], str] = lambda place: DONE
        self.booted: list[tuple[int, str]] = []
        self.takes_s: Callable[[Place], float] = lambda place: 60
        self.stop_before: tuple[int, str] | None = None
        self.heard: list[tuple[str, dict[str, Any]]] = []
        monkeypatch.setattr(experiment, "run_boot", self.boot)

    async def boot(
        self, bench: Bench, arm: object, place: Place, folder: BootFolder, note: Callable[..., None]
    ) -> BootFacts:
        if (place.block, place.name) == self.stop_before:
            raise KeyboardInterrupt
        began_ns = bench.clock.now_ns()
        await bench.clock.sleep_until_ns(began_ns + round(1e9 * self.takes_s(place)))
        status = self.status(place)
        facts = BootFacts(
            arm=place.name,
            block=place.block,
            slot=place.slot,
            attempt=folder.attempt,
            status=status,
            reason=None if status == DONE else f"{status}, says the test",
            argv=["engine"],
            wall_ns=0,
            mono_ns=0,
            spawned_ns=began_ns,
            gone_ns=bench.clock.now_ns(),
            steps=[Step(name="warm_up", began_ns=0, ended_ns=0, facts={"rounds": 1})],
        )
        folder.finish(facts)
        self.booted.append((place.block, place.name))
        return facts

    def replay(
        self,
        path: Path,
        run: Path,
        *,
        resume: bool = False,
        amend: str | None = None,
        ask: Callable[[Path], Mapping[str, str]] | None = None,
        note: Callable[..., None] | None = None,
    ) -> Plan:
        """One `replay` as the command does it. Returns the plan with the order that was used."""

        def hear(event: str, **fields: Any) -> None:
            self.heard.append((event, fields))
            if note is not None:
                note(event, **fields)

        loaded, rule = load_experiment(path), path.read_bytes()
        begun = resume and (run / MANIFEST).exists()

        async def go() -> Plan:
            plan = plan_run(loaded, read_profile(loaded.profile_path), CLOCK, keep=[run])
            if begun:
                folder, plan = await take_up(run, plan, CLOCK, amend)
                folder.event("run_resumed", boot_id=boot_id())
            else:
                folder = RunFolder.create(run, CLOCK, plan.manifest, rule)
                folder.event("rule_fixed", rule_sha256=loaded.bytes_sha256)
            try:
                await experiment.run_experiment(plan, folder, CLOCK, hear, ask)
            finally:
                folder.close()
            return plan

        self.booted.clear()
        self.heard.clear()
        return run_virtual(go())


def events_of(run: Path, *names: str) -> list[dict[str, Any]]:
    return [dict(event) for event in read_run(run).events if event["event"] in names]


def ladder(folder: Path, *, blocks: int, looks: list[int] | None = None, more: str = "", arms: str = LADDER) -> Path:
    """An experiment of two arms, the second of which leans on the first."""
    path = write_experiment(folder, arms, blocks=blocks, also=more)
    if looks is not None:
        path.write_text(path.read_text().replace("seed = 2", f"seed = 2\nlooks = {looks}"))
    return path
