"""What `characterise` finds in a load: frozen records, JSON as they are. None is "not known"; `unknown` says why."""

from dataclasses import dataclass

from profiles.arrivals import Arrivals
from profiles.lengths import Distribution, Joint, Quantile

# Requests that do not tell, in a table of counts of those that do.
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much was seen."""

    requests: int
    zero_token_requests: int  # out of the load, in the error rate
    outside_windows: int  # arrivals that no window holds: out of `arrivals` and `days`
    windows: int
    observed_ns: int
    zero_wall_ns: int | None


@dataclass(frozen=True, slots=True)
class Cached:
    """Prompt tokens that the engine found in its prefix cache, over the requests that told."""

    requests: int
    hits: int  # requests with any
    prompt_tokens: int
    cached_tokens: int
    share: float | None  # of the prompt tokens
    error: float | None  # standard error of the share, a ratio of two sums, requests taken as independent


@dataclass(frozen=True, slots=True)
class Errors:
    """Requests that failed: neither ok nor given up by the client, or of 0 tokens."""

    judged: int
    failed: int
    share: float


@dataclass(frozen=True, slots=True)
class Limit:
    """How much of `max_tokens` the answers use."""

    requests: int  # with a limit and an answer's length
    used: Distribution  # output_tokens / max_tokens, in thousandths
    at_limit: int  # output_tokens ≥ max_tokens


@dataclass(frozen=True, slots=True)
class Sessions:
    """Conversations. A turn is a request of one."""

    sessions: int
    with_session: int
    without_session: int
    turns: Distribution
    think_human: Distribution | None  # ns, from an answer's end to the next turn
    think_tool: Distribution | None
    think_other: Distribution | None  # of no known kind
    branches: int | None  # turns that left their parent beside another one; None where no link is known
    fan_in: int  # requests that hold the answers of several others
    links: dict[str, int]
    sources: dict[str, int]


@dataclass(frozen=True, slots=True)
class ClassLoad:
    """One class. `independent` counts a session once: its turns look like each other."""

    workload: str
    requests: int
    independent: int
    measured_ttft: int
    prompt_p50: Quantile | None
    prompt_p90: Quantile | None
    output_p50: Quantile | None
    output_p90: Quantile | None
    ttft_p50_ns: Quantile | None
    ttft_p90_ns: Quantile | None


@dataclass(frozen=True, slots=True)
class Tenant:
    tenant: int
    requests: int
    share: float
    iat_cv: float | None


@dataclass(frozen=True, slots=True)
class Day:
    """A day against all the others. Changes are relative; None where one side has nothing."""

    day: int  # from 0
    date: str | None  # UTC; None where the wall clock is unknown, and days then count from the profile's zero
    requests: int
    observed_ns: int
    rate_per_s: float | None
    rate_change: float | None
    prompt_p50: int | None
    prompt_p50_change: float | None
    output_p50: int | None
    output_p50_change: float | None
    class_mix_distance: float | None  # total variation


@dataclass(frozen=True, slots=True)
class Character:
    """What a load is like. Order as it is read: coverage, arrivals, lengths, answers, sessions, who."""

    coverage: Coverage
    arrivals: Arrivals | None
    prompt_tokens: Distribution | None
    output_tokens: Distribution | None
    joint: Joint | None
    cached: Cached | None
    finishes: dict[str, int]
    outcomes: dict[str, int]
    errors: Errors | None
    limit: Limit | None
    streaming: float | None  # share of the requests that say
    token_sources: dict[str, int]
    models: dict[str, int]
    sessions: Sessions | None
    overall: ClassLoad  # all classes as one
    classes: tuple[ClassLoad, ...]  # the most frequent first
    languages: tuple[tuple[str, str | None, int], ...]  # class, language, requests
    tenants: tuple[Tenant, ...]  # the ten with the most requests
    tenant_count: int | None
    days: tuple[Day, ...]
    unknown: dict[str, str]  # field -> why it is None or empty
