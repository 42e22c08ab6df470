"""The numbers of a starter, each from the profile and with the words that say why."""

import math
from typing import Final

from profiles.concurrency import COVER
from profiles.experiment_checks import QUANTILE_NEEDS, requests_for_error_rate
from profiles.experiment_file import Design, Load
from profiles.planned import MIN_ROUNDS, ProfileFacts
from profiles.units import HOUR_NS, MILLISECOND_NS, format_duration, format_percent

ERROR_CEILING: Final = 0.01
# With fewer requests than this a class tells little, even over five boots.
CLASS_REQUESTS: Final = 16
# A class or a level with a smaller share than this is not worth longer boots.
SMALL_SHARE: Final = 0.02
MOST_REQUESTS: Final = 800
SPARE: Final = 1.1  # some requests of a boot fail or find no pair
# The share of the median TTFT up to which 5 ms is a material gain and no more than that.
LARGEST_SHARE: Final = 0.1
MATERIAL_MS: Final = 5.0


def requests_per_boot(facts: ProfileFacts) -> tuple[int, list[str]]:
    """How many deciding requests each boot is asked, and what needs how many, in words."""
    blocks, ordinary = Design().blocks, Load().requests_per_boot
    errors = math.ceil(requests_for_one_error(ERROR_CEILING) / blocks)
    needs = {
        f"{QUANTILE_NEEDS['p90']} for the guard at p90, and some to spare": math.ceil(SPARE * QUANTILE_NEEDS["p90"]),
        f"{errors} for the guard at {100 * ERROR_CEILING:g} % errors: {requests_for_error_rate(ERROR_CEILING)} in all "
        f"if none fails, {blocks} × {errors} if one does": errors,
    }
    total = facts.to_send
    shares = {name: count / total for name, count in facts.sendable.items()} if total else {}
    large = {name: share for name, share in shares.items() if share >= SMALL_SHARE}
    if large:
        rarest = min(large, key=lambda name: large[name])
        count = math.ceil(CLASS_REQUESTS / large[rarest])
        needs[f"{count} to hold {CLASS_REQUESTS} of {plain(rarest)}, the rarest class above 2 %"] = count
    if facts.measured is not None and not facts.synthetic:
        weights = facts.measured.operating_point(COVER).weights
        thick = {c: math.ceil(MIN_ROUNDS * c / share) for c, share in weights.items() if share >= SMALL_SHARE}
        if thick:
            hardest = max(thick, key=lambda c: thick[c])
            needs[f"{thick[hardest]} to hold c = {hardest} in a closed loop"] = thick[hardest]
    least = min(MOST_REQUESTS, max(needs.values()))
    return max(least, min(ordinary, total)), list(needs)


def requests_for_one_error(ceiling: float) -> int:
    """Requests of which one may fail and still show a rate below the ceiling: exact one-sided 95 % bound (1 %: 473)."""
    requests = 2
    while (1 - ceiling) ** (requests - 1) * (1 - ceiling + requests * ceiling) > 0.05:
        requests += 1
    return requests


def observed_closed(facts: ProfileFacts, requests: int) -> str | None:
    """Why `observed` cannot decide with this profile; None if it can."""
    if facts.synthetic:
        return "nobody recorded these arrivals, so there are no busy periods to replay"
    if facts.measured is None:
        return "the profile holds no ends of requests, so its busy periods are not known"
    if facts.to_send < requests:
        return (
            f"the profile holds {facts.to_send} requests that can be sent; at the recorded pace each is sent once, "
            "and in closed loops they come again"
        )
    return None


def observed_hours(observed_ns: int) -> float:
    """Whole hours, rounded down; of less than one hour, hundredths."""
    hours = observed_ns / HOUR_NS
    return math.floor(hours) if hours >= 1 else math.floor(100 * hours) / 100


def material_line_ms(ttft_p50_ns: int | None) -> tuple[float, str]:
    """The absolute part of the material line of TTFT in ms, and why it is that."""
    if ttft_p50_ns is None:
        return MATERIAL_MS, "The profile tells no TTFT: make sure that 5 ms is a small part of yours."
    median = format_duration(ttft_p50_ns)
    share = MATERIAL_MS * MILLISECOND_NS / ttft_p50_ns
    if share <= LARGEST_SHARE:
        return MATERIAL_MS, f"The recorded median is {median}, so 5 ms is {format_percent(share)} of it."
    # The client itself is sure of differences of about a millisecond (`firsttoken selftest`).
    chosen = max(1.0, float(f"{LARGEST_SHARE * ttft_p50_ns / MILLISECOND_NS:.1g}"))
    return chosen, (
        f"The recorded median is {median}: 5 ms would be {format_percent(share, 0)} of it, a line that hardly any flag "
        f"could reach. {chosen:g} ms is {format_percent(chosen * MILLISECOND_NS / ttft_p50_ns, 0)} of it; the client "
        "is sure of about 1 ms."
    )


def plain(text: str) -> str:
    """What may stand in a comment: a class of one's own can be called anything."""
    return "".join(letter if letter.isprintable() else "?" for letter in text)
