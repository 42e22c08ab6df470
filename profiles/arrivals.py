"""How requests arrive: rate, inter-arrival times, dispersion, fits and one plain word. Pure numpy, no row loops.

Formulas, t in order and without regard to what lies between two windows:

    rate                 1 / mean inter-arrival time, which is (n − 1) / span in one window
    CV                   std (ddof 1) / mean of the inter-arrival times, those of 0 kept
    D(w)                 var (ddof 1) / mean of the arrivals per bin of w, bins from the window's first arrival to its
                         last; an empty bin counts as 0
    granularity          gcd of the inter-arrival times above 0
    Gamma by moments     shape 1/CV², scale mean·CV²
    Weibull by moments   k solves Γ(1+2/k)/Γ(1+1/k)² = 1 + CV², scale mean/Γ(1+1/k)
    KS                   largest distance between the empirical distribution and the fitted one

CV alone is not burstiness: a Gamma renewal process of the same CV has another D. So both are kept, and the CV is also
taken inside windows of five minutes, where a rate that moves over the day does not count as a burst.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from profiles.units import MINUTE_NS, SECOND_NS

type Instants = NDArray[np.int64]
type Times = NDArray[np.float64]

SEED = 0
FIVE_MINUTES_NS = 5 * MINUTE_NS
DISPERSION_S = (1, 10, 60)

# The word. A Poisson process has CV 1; over 100 gaps chance alone moves it by about 0.1, over 30 by 0.2.
REGULAR_BELOW = 0.7
POISSON_BELOW = 1.3
# Azure's code trace has CV 13 and no renewal fit comes nearer than KS 0.35; its conversations fit to 0.02.
ON_OFF_CV = 3.0
ON_OFF_KS = 0.2
WORD_GAPS = 30  # with fewer there is no word
# The CV of five-minute windows carries the word where this many of them hold this many gaps.
WORD_WINDOWS, WORD_WINDOW_GAPS = 3, 10

# Arrivals are quantised where the clock's step is this share of a mean gap, or where they come in batches: mostly gaps
# of 0, and the others multiples of one period, give or take 2 % (clocks jitter).
COARSE_STEP = 0.05
BATCH_ZERO_SHARE = 0.5
BATCH_FIT, BATCH_JITTER = 0.95, 0.02
# The distribution of more gaps than this is held at so many of them: the KS distance is exact to 1e-5.
KS_POINTS = 100_000


@dataclass(frozen=True, slots=True)
class PerMinute:
    """Arrivals per whole minute of the windows, counted from each opening. `mean` is over all observed time."""

    minutes: int
    min: int | None  # None where no window holds a whole minute
    mean: float
    max: int | None


@dataclass(frozen=True, slots=True)
class FiveMinutes:
    """Five-minute pieces of the windows. The last of a window is cut and still divided by five minutes."""

    pieces: int
    rate_min_per_s: float
    rate_max_per_s: float
    measured: int  # pieces with two gaps or more, and time in them
    cv_min: float | None
    cv_median: float | None
    cv_max: float | None


@dataclass(frozen=True, slots=True)
class Fits:
    """Distributions of the inter-arrival times by moments, and how far each is from them (KS)."""

    of: str  # stamped, or spread where arrivals are quantised
    exponential_ks: float
    gamma_shape: float
    gamma_scale_s: float
    gamma_ks: float
    weibull_shape: float | None  # None where no shape has such a CV
    weibull_scale_s: float | None
    weibull_ks: float | None


@dataclass(frozen=True, slots=True)
class Spread:
    """Quantised arrivals spread evenly over their period: t becomes round(t/q)·q + U(0, q), drawn with `seed`."""

    kind: str  # clock: whole steps of a coarse clock; batches: gaps of 0 between whole periods
    quantum_ns: int
    seed: int
    iat_cv: float | None
    five_minutes_cv_median: float | None


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Arrivals inside the windows. Inter-arrival times never reach over a gap between two windows."""

    count: int
    gaps: int
    gaps_left_out: int  # pairs of neighbours in different windows
    span_ns: int  # first to last arrival, summed over windows
    rate_per_s: float | None
    iat_mean_ns: float | None
    iat_cv: float | None
    zero_gap_share: float | None
    granularity_ns: int | None
    per_minute: PerMinute
    five_minutes: FiveMinutes
    dispersion: dict[str, float | None]  # by the bin's width in seconds; None with a single bin
    spread: Spread | None  # None where arrivals are not quantised
    fits: Fits | None  # None below two gaps or without any time in them
    burstiness: str | None  # regular, Poisson-like, bursty, on-off; None below 30 gaps


def measure_arrivals(arrival_ns: Instants, windows: Sequence[tuple[int, int]], seed: int = SEED) -> Arrivals | None:
    """All of it, for ascending instants and disjoint, ascending windows. None without an arrival inside a window."""
    window = place(arrival_ns, windows)
    if (window < 0).any():
        arrival_ns, window = arrival_ns[window >= 0], window[window >= 0]
    if not len(arrival_ns):
        return None
    per_minute = _per_minute(arrival_ns, window, windows)
    edges = np.concatenate([[0], np.flatnonzero(np.diff(window)) + 1, [len(window)]])
    del window
    since = arrival_ns - np.repeat(arrival_ns[edges[:-1]], np.diff(edges))
    gaps = _gaps(since, edges)
    mean_ns = float(gaps.mean()) if len(gaps) else None
    five_minutes, steady_cv = _five_minutes(since, edges)
    iat_cv = variation(gaps)
    granularity_ns = granularity(gaps)
    found = _quantum(gaps, granularity_ns)
    spread, fits = None, _fit(gaps, "stamped") if found is None else None
    if found is not None:
        evened = _evened(since, edges, found[1], seed)
        pieces, steady_cv = _five_minutes(evened, edges)
        even_gaps = _gaps(evened, edges)
        spread = Spread(*found, seed, variation(even_gaps), pieces.cv_median)
        fits = _fit(even_gaps, "spread")
    return Arrivals(
        count=len(arrival_ns),
        gaps=len(gaps),
        gaps_left_out=len(edges) - 2,
        span_ns=int(gaps.sum()),
        rate_per_s=SECOND_NS / mean_ns if mean_ns else None,
        iat_mean_ns=mean_ns,
        iat_cv=iat_cv,
        zero_gap_share=float((gaps == 0).mean()) if len(gaps) else None,
        granularity_ns=granularity_ns,
        per_minute=per_minute,
        five_minutes=five_minutes,
        dispersion={str(width): _dispersion(since, edges, width * SECOND_NS) for width in DISPERSION_S},
        spread=spread,
        fits=fits,
        burstiness=_word(len(gaps), spread.iat_cv if spread else iat_cv, steady_cv, fits),
    )


def place(arrival_ns: Instants, windows: Sequence[tuple[int, int]]) -> NDArray[np.int32]:
    """The window of each arrival, −1 outside all of them."""
    if not windows:
        return np.full(len(arrival_ns), -1, np.int32)
    opens, closes = np.array(windows, np.int64).T
    at = (np.searchsorted(opens, arrival_ns, side="right") - 1).astype(np.int32)
    return np.where((at >= 0) & (arrival_ns < closes[at]), at, np.int32(-1))


def variation(gaps: Instants | Times) -> float | None:
    """std (ddof 1) / mean. None below two values, or where all are 0."""
    if len(gaps) < 2:
        return None
    mean = float(gaps.mean())
    return float(gaps.std(ddof=1)) / mean if mean else None


def granularity(gaps: Instants) -> int | None:
    """Greatest common divisor of all above 0. None without any."""
    found = 0
    for start in range(0, len(gaps), 1 << 16):  # a fine clock shows in the first piece
        found = math.gcd(found, int(np.gcd.reduce(gaps[start : start + (1 << 16)])))
        if found == 1:
            break
    return found or None


def _gaps[Number: (np.int64, np.float64)](since: NDArray[Number], edges: Instants) -> NDArray[Number]:
    """Times between neighbours, those over the edge of a window left out."""
    gaps = np.diff(since)
    return np.delete(gaps, edges[1:-1] - 1) if len(edges) > 2 else gaps


def _bins(since: Instants | Times, edges: Instants, width_ns: int) -> tuple[Instants, int]:
    """An ascending bin number per arrival, and how many bins there are from first to last arrival of each window."""
    bins = (since // width_ns).astype(np.int64)
    sizes = bins[edges[1:] - 1] + 1
    bins += np.repeat(np.cumsum(sizes) - sizes, np.diff(edges))
    return bins, int(sizes.sum())


def _runs(ascending: Instants) -> Instants:
    """Where each run of equal values starts."""
    return np.flatnonzero(np.diff(ascending, prepend=ascending[0] - 1)) if len(ascending) else np.zeros(0, np.int64)


def _counts(ascending: Instants) -> Instants:
    return np.diff(_runs(ascending), append=len(ascending))


def _dispersion(since: Instants, edges: Instants, width_ns: int) -> float | None:
    bins, total = _bins(since, edges, width_ns)
    if total < 2:
        return None
    counts = _counts(bins)
    # Exact sums of whole numbers: millions of empty bins cost nothing, and nothing cancels.
    n, squares = int(counts.sum()), int((counts * counts).sum())
    return (total * squares - n * n) / ((total - 1) * n)


def _per_minute(arrival_ns: Instants, window: NDArray[np.int32], windows: Sequence[tuple[int, int]]) -> PerMinute:
    opens, closes = np.array(windows, np.int64).T
    minutes = (closes - opens) // MINUTE_NS
    total, observed_ns = int(minutes.sum()), int((closes - opens).sum())
    at = (arrival_ns - opens[window]) // MINUTE_NS
    whole = at < minutes[window]
    counts = _counts((at + (np.cumsum(minutes) - minutes)[window])[whole])
    return PerMinute(
        minutes=total,
        min=(int(counts.min()) if len(counts) == total else 0) if total else None,
        mean=len(arrival_ns) / (observed_ns / MINUTE_NS),
        max=int(counts.max(initial=0)) if total else None,
    )


def _five_minutes(since: Instants | Times, edges: Instants) -> tuple[FiveMinutes, float | None]:
    """The pieces, and the median CV of those that hold enough gaps to carry the word; None with too few of them."""
    bins, total = _bins(since, edges, FIVE_MINUTES_NS)
    counts = _counts(bins)
    same = bins[1:] == bins[:-1]
    gaps, bins = np.diff(since)[same].astype(np.float64), bins[1:][same]
    starts = _runs(bins)
    cvs, sizes = np.zeros(0), np.zeros(0, np.int64)
    if len(starts):
        sizes = np.diff(starts, append=len(bins))
        sums = np.add.reduceat(gaps, starts)
        gaps *= gaps  # in place; what cancels below costs digits only where gaps are all but equal
        squares = np.add.reduceat(gaps, starts) - sums * sums / sizes
        enough = (sizes >= 2) & (sums > 0)
        sizes = sizes[enough]
        cvs = np.sqrt(np.maximum(squares[enough], 0) / (sizes - 1)) * sizes / sums[enough]
    telling = cvs[sizes >= WORD_WINDOW_GAPS]
    seconds = FIVE_MINUTES_NS / SECOND_NS
    pieces = FiveMinutes(
        pieces=total,
        rate_min_per_s=float(counts.min()) / seconds if len(counts) == total else 0.0,
        rate_max_per_s=float(counts.max()) / seconds,
        measured=len(cvs),
        cv_min=float(cvs.min()) if len(cvs) else None,
        cv_median=float(np.median(cvs)) if len(cvs) else None,
        cv_max=float(cvs.max()) if len(cvs) else None,
    )
    return pieces, float(np.median(telling)) if len(telling) >= WORD_WINDOWS else None


def _quantum(gaps: Instants, granularity_ns: int | None) -> tuple[str, int] | None:
    """Whether arrivals are quantised, how, and by what period."""
    if granularity_ns is None:
        return None
    if (gaps == 0).mean() >= BATCH_ZERO_SHARE:
        positive = gaps[gaps > 0]
        # A low quantile is one period unless batches are rarer than that, and a clock's jitter does not move it.
        periods = positive / np.quantile(positive, 0.1)
        whole = np.maximum(np.round(periods), 1)
        if (np.abs(periods - whole) <= BATCH_JITTER * whole).mean() >= BATCH_FIT:
            return "batches", round(float(np.median(positive / whole)))
    if granularity_ns >= COARSE_STEP * float(gaps.mean()):
        return "clock", granularity_ns
    return None


def _evened(since: Instants, edges: Instants, quantum_ns: int, seed: int) -> Times:
    even = np.round(since / quantum_ns) * quantum_ns
    even += np.random.default_rng(seed).uniform(0, quantum_ns, len(even))
    for start, stop in pairwise(edges):
        even[start:stop].sort()
        even[start:stop] -= even[start]
    return even


def _fit(gaps: Instants | Times, of: str) -> Fits | None:
    cv = variation(gaps)
    if not cv:
        return None
    from scipy.special import gamma, gammainc

    mean = float(gaps.mean()) / SECOND_NS
    n = len(gaps)
    ranks = np.arange(n) if n <= KS_POINTS else np.linspace(0, n - 1, KS_POINTS).astype(np.int64)
    points = np.sort(gaps)[ranks] / SECOND_NS

    def distance(fitted: Times) -> float:
        return float(max((fitted - ranks / n).max(), ((ranks + 1) / n - fitted).max()))

    shape, scale = 1 / cv**2, mean * cv**2
    k = _weibull_shape(cv)
    weibull_scale = mean / float(gamma(1 + 1 / k)) if k else None
    return Fits(
        of=of,
        exponential_ks=distance(-np.expm1(-points / mean)),
        gamma_shape=shape,
        gamma_scale_s=scale,
        gamma_ks=distance(gammainc(shape, points / scale)),
        weibull_shape=k,
        weibull_scale_s=weibull_scale,
        weibull_ks=distance(-np.expm1(-((points / weibull_scale) ** k))) if k and weibull_scale else None,
    )


def _weibull_shape(cv: float) -> float | None:
    """The shape whose CV this is; None outside shapes of 0.05 to 100, which stand for CVs of 0.0127 to 4e8."""
    from scipy.optimize import brentq
    from scipy.special import gammaln

    def excess(k: float) -> float:
        return float(gammaln(1 + 2 / k) - 2 * gammaln(1 + 1 / k)) - math.log1p(cv * cv)

    low, high = 0.05, 100.0
    if excess(low) < 0 or excess(high) > 0:
        return None
    return float(brentq(excess, low, high, xtol=1e-14, rtol=1e-13))


def _word(gaps: int, cv: float | None, steady_cv: float | None, fits: Fits | None) -> str | None:
    """regular, Poisson-like, bursty or on-off.

    on-off: a CV of 3 or more that no renewal process explains. The others go by the median CV of five-minute pieces
    where enough of them hold enough gaps, else by the whole CV: a rate that moves over the day is not a burst.
    """
    if gaps < WORD_GAPS or cv is None or fits is None:
        return None
    nearest = min(fits.gamma_ks, 1.0 if fits.weibull_ks is None else fits.weibull_ks)
    if cv >= ON_OFF_CV and nearest > ON_OFF_KS:
        return "on-off"
    local = cv if steady_cv is None else steady_cv
    return "regular" if local < REGULAR_BELOW else "Poisson-like" if local < POISSON_BELOW else "bursty"
