"""A stated service time, for imported traces that do not tell when requests ended.

S = overhead + prompt tokens / rate + output tokens × time per token, whatever the load is. What comes of it is an
estimate, and is called one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from profiles.concurrency import Window, union
from profiles.errors import UsageError
from profiles.units import SECOND_NS, format_duration, parse_duration

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from profiles.profile import Profile
    from profiles.sweep import Stays

_FORM = "Write overhead, prompt tokens per second, time per output token, such as --service-time 50ms,8000,20ms."


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """How long a request takes, by its lengths alone."""

    overhead_ns: int
    prompt_per_s: float
    per_token_ns: int

    def __str__(self) -> str:
        return (
            f"{format_duration(self.overhead_ns)} + prompt tokens / {self.prompt_per_s:g} per s"
            f" + output tokens × {format_duration(self.per_token_ns)}"
        )

    def lasts_ns(self, prompt_tokens: "NDArray[np.int64]", output_tokens: "NDArray[np.int64]") -> "NDArray[np.int64]":
        """The service time of each request, to the nearest nanosecond."""
        import numpy as np

        prefill_ns = np.rint(prompt_tokens * (SECOND_NS / self.prompt_per_s)).astype(np.int64)
        return self.overhead_ns + prefill_ns + output_tokens * self.per_token_ns


def parse_service_time(text: str) -> ServiceTime:
    """`50ms,8000,20ms`: overhead, prompt tokens per second, time per output token. Raises UsageError."""
    parts = text.split(",")
    if len(parts) != 3:
        raise UsageError(f"--service-time {text}: {len(parts)} of three parts", _FORM)
    try:
        overhead_ns, per_token_ns = parse_duration(parts[0]), parse_duration(parts[2])
        prompt_per_s = float(parts[1])
    except ValueError as problem:
        raise UsageError(f"--service-time {text}: {problem}", _FORM) from None
    if not 0 < prompt_per_s < float("inf"):
        raise UsageError(f"--service-time {text}: the rate of prompt tokens must be above 0", _FORM)
    return ServiceTime(overhead_ns, prompt_per_s, per_token_ns)


def estimated_stays(profile: "Profile", service: ServiceTime) -> "tuple[Stays, list[str]]":
    """The stays of a profile under a stated service time, and warnings. Its last window closes when all have ended.

    Raises UsageError where the profile knows the ends, or no lengths.
    """
    import numpy as np
    import polars as pl

    from profiles.sweep import Stays

    columns = ["arrival_ns", "end_ns", "prompt_tokens", "output_tokens", "workload"]
    rows = profile.frame(columns).collect()
    if rows.height and not rows["end_ns"].null_count():
        problem = f"{profile.path} holds the end of every request: a stated service time would only make it worse"
        raise UsageError(problem, "Leave --service-time out.")
    sized = rows.drop_nulls(["prompt_tokens", "output_tokens"])
    if not sized.height:
        problem = f"{profile.path} holds no request with both prompt and output tokens, so none has a service time"
        raise UsageError(problem, "Import a trace that has both lengths.")
    names = tuple(sorted(sized["workload"].unique().to_list()))
    code = {name: at for at, name in enumerate(names)}
    start_ns = sized["arrival_ns"].to_numpy()
    lasts_ns = service.lasts_ns(sized["prompt_tokens"].to_numpy(), sized["output_tokens"].to_numpy())
    end_ns = start_ns + lasts_ns
    stays = Stays(
        start_ns=start_ns,
        end_ns=end_ns,
        group=sized["workload"].replace_strict(code, return_dtype=pl.Int32).to_numpy().astype(np.int32),
        names=names,
        windows=_until(union((opened, close) for opened, close in profile.manifest["windows"]), start_ns, end_ns),
        zero_wall_ns=profile.manifest.get("zero_wall_ns"),
    )
    missing = rows.height - sized.height
    warnings = [f"{missing} of {rows.height} requests have no lengths and are left out of the estimate"]
    return stays, warnings if missing else []


def _until(windows: Sequence[Window], start_ns: "NDArray[np.int64]", end_ns: "NDArray[np.int64]") -> list[Window]:
    """The windows, the last one open until the last request has ended. Without any, from the first arrival on."""
    if not windows:
        return [(int(start_ns.min()), int(end_ns.max()))]
    opened, close = windows[-1]
    return [*windows[:-1], (opened, max(close, int(end_ns.max())))]
