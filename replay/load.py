"""What every boot is asked: the windows with the bodies that they send, prepared once and the same for all arms.

Only the bodies that the windows and the warm-up send are held, each as a template with the overrides already in it. A
request of any pass is then a copy with the name of the pass in its place: nothing is encoded while a window is played.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from profiles.errors import FirsttokenError
from profiles.functional import Probe
from profiles.profile import ProfileRow
from replay.bodies import SENT, Override, Template, make_template
from replay.client import Planned
from replay.schedule import Window

WARMUP = "warmup"
READY = "ready"


@dataclass(frozen=True, slots=True)
class Load:
    """The windows of a boot, in their order, and their requests. `warmup` are the rows that warm it up."""

    windows: Sequence[Window]
    warmup: Sequence[ProfileRow]
    override: Override
    templates: dict[int, Template] = field(default_factory=dict)  # by row of the profile
    probes: Sequence[Probe] = ()  # asked after the last window, beside the load and never timed (`functional`)
    # In front of the name of each pass. An engine that is up already keeps its cache from one boot to the next.
    apart: str = ""

    def pass_of(self, window: Window) -> str:
        """Windows of one pass may share prefixes in the engine's cache."""
        return window.pass_name

    def requests_of(self, window: Window) -> Callable[[int], Planned]:
        """Gives request `index` of a window. Behind the end of its list it goes round, in each round apart from itself
        in the prefix cache."""
        return partial(self._request, window)

    def _request(self, window: Window, index: int) -> Planned:
        rounds, position = divmod(index, len(window.picks))
        pick = window.picks[position]
        return self.request(
            pick.row, f"{window.pass_name}-{pick.round + rounds}", window=window.name, c=window.c, index=index
        )

    def warmup_request(self, index: int, first: int = 0) -> Planned:
        """Warm-up request `first` + `index`: the classes in turn, apart from what is measured in the prefix cache."""
        number = first + index
        row = self.warmup[number % len(self.warmup)]
        return self.request(row, f"{WARMUP}-{number // len(self.warmup)}", window=WARMUP, index=number, measured=False)

    def probe(self) -> Planned:
        """The request by which an engine proves that it is ready: the shortest of the warm-up, in a pass of its own."""
        row = min(self.warmup, key=lambda row: sum(map(len, self.templates[row.request].pieces)))
        return self.request(row, READY, window=READY, measured=False)

    def request(
        self,
        row: ProfileRow,
        pass_name: str,
        *,
        window: str,
        c: int = 1,
        index: int = 0,
        measured: bool = True,
    ) -> Planned:
        """A row as it is sent in a pass. Rows of different cache groups shared nothing in production, nor here."""
        group = "" if row.cache_group is None else f"-g{row.cache_group}"
        return Planned(
            window=window,
            c=c,
            index=index,
            request=row.request,
            workload=row.workload,
            path=row.path or SENT[row.endpoint or "chat"].path,
            body=self.templates[row.request].body(self.apart + pass_name + group),
            measured=measured,
        )


def prepare_load(
    windows: Sequence[Window],
    warmup: Sequence[ProfileRow],
    override: Override,
    bodies: Iterable[tuple[int, bytes]],
) -> Load:
    """Make the templates of what the windows and the warm-up send. `bodies` is read through once (`read_bodies`).

    Raises FirsttokenError where a body is missing or is not a JSON object.
    """
    rows = {pick.row.request: pick.row for window in windows for pick in window.picks}
    rows |= {row.request: row for row in warmup}
    templates: dict[int, Template] = {}
    for request, body in bodies:
        row = rows.get(request)
        if row is not None:
            templates[request] = make_template(
                body, override, output_tokens=_recorded_length(row), endpoint=row.endpoint or "chat"
            )
    missing = next((request for request in rows if request not in templates), None)
    if missing is not None:
        raise FirsttokenError(f"the body of request {missing} is not in the profile", "Build the profile again.")
    return Load(windows, warmup, override, templates)


def _recorded_length(row: ProfileRow) -> int | None:
    """The length that an answer is cut to; None keeps the limit that the body has.

    What was never answered has an estimate at best, which would cut JSON in its middle. Of several choices only the sum
    was recorded, and a limit holds for each.
    """
    return None if row.outcome is None or (row.n or 1) > 1 else row.output_tokens
