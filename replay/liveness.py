"""Whether an engine that was ready still lives, answers, and is the one that was ready. Asked between its windows.

A supervisor that restarts a crashed worker leaves the port open and the requests mostly answered, and what is measured
then is a warm-up.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from profiles.errors import EngineFailed
from profiles.records import OK, TIMEOUT, Outcome
from profiles.units import MILLISECOND_NS, SECOND_NS
from replay.clock import Clock
from replay.engines import Engine
from replay.player import Played
from replay.readiness import Identity, check_alive, check_owner, identify, say_health

DYING_NS = SECOND_NS


@dataclass(frozen=True, slots=True)
class Liveness:
    """An engine as it was when it was ready. What is wrong with it now is raised as EngineFailed, with a diagnosis."""

    engine: Engine
    clock: Clock
    identity: Identity
    owner: tuple[int, float] | None

    async def check_answers(self, api: httpx.AsyncClient, outcomes: Sequence[Outcome], what: str) -> None:
        """An engine that hangs or fails before it is measured is diagnosed at once. Raises EngineFailed."""
        if any(item.outcome != OK for item in outcomes):
            await self.check_death()
            await self.check_restart(api)
        hung = next((item for item in outcomes if item.outcome == TIMEOUT), None)
        if hung is not None:
            health = await say_health(api)
            raise EngineFailed(
                f"{what}: no token came any more ({hung.reason}); {health}",
                str(self.engine.log),
                self.engine.log_tail(),
                diagnosis="stalled",
            )
        if outcomes and all(item.outcome != OK for item in outcomes):
            reason = outcomes[-1].reason or outcomes[-1].outcome
            raise EngineFailed(
                f"{what}: none of {len(outcomes)} requests was answered well, the last: {reason}",
                str(self.engine.log),
                self.engine.log_tail(),
                diagnosis="errors",
            )

    async def check_death(self) -> None:
        """Requests failed: a process that dies closes its connections before the system says that it is gone."""
        deadline_ns = self.clock.now_ns() + DYING_NS
        while self.engine.lives and self.clock.now_ns() < deadline_ns:
            await self.clock.sleep_until_ns(self.clock.now_ns() + 20 * MILLISECOND_NS)
        self.check()

    def check(self) -> None:
        check_alive(self.engine, ready=True)

    async def check_same(self, api: httpx.AsyncClient, played: Played) -> None:
        """It lives, it is the one that was ready, it answered. Raises EngineFailed; the first that holds names it."""
        if all(item.outcome == OK for item in played.outcomes):
            self.check()
        else:
            await self.check_death()
        await self.check_restart(api)
        check_owner(self.engine, ready=True)
        if played.stopped_early is None and any(item.outcome == OK for item in played.outcomes):
            return
        if played.stalled:
            health = await say_health(api)
            raise EngineFailed(f"{played.stopped_early}; {health}", str(self.engine.log), diagnosis="stalled")
        said = Counter(item.reason or item.outcome for item in played.outcomes if item.outcome != OK)
        ((most, _),) = said.most_common(1) or [("nothing was sent", 0)]
        problem = played.stopped_early or f"all {len(played.outcomes)} requests of a window failed"
        raise EngineFailed(f"{problem}, mostly: {most}", str(self.engine.log), diagnosis="errors")

    async def check_restart(self, api: httpx.AsyncClient) -> None:
        """The process that answers is the one that was ready. Raises EngineFailed."""
        owner = self.engine.owner()
        moved = self.owner is not None and owner is not None and owner != self.owner
        identity, _ = await identify(api, "", None, self.clock)
        anew = (
            identity.started_s is not None
            and self.identity.started_s is not None
            and identity.started_s != self.identity.started_s
        )
        if moved or anew:
            raise EngineFailed(
                "the engine restarted while it served: another process answers than the one that was ready",
                f"Its log says why the first one ended: {self.engine.log}",
                self.engine.log_tail(),
                diagnosis="restarted",
            )
        if self.owner is not None and owner is None:
            check_owner(self.engine, ready=True)
