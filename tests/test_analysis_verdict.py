"""The order of the rule, on findings without numbers behind them: the whole table, and who comes first."""

from dataclasses import replace

import pytest

from analysis.verdict import ClassFinding, Evidence, GuardFinding, MeasureFinding, decide, workload_splits

GAIN = ("gain", "no worse")


def measure(name: str, zones: tuple[str, str], *classes: tuple[str, str]) -> MeasureFinding:
    zone, no_worse = zones
    found = tuple(ClassFinding(label, None, direction) for label, direction in classes)  # type: ignore[arg-type]
    return MeasureFinding(name, zone, no_worse, classes=found)  # type: ignore[arg-type]  # words of a table


def evidence(ttft: tuple[str, str], tpot: tuple[str, str]) -> Evidence:
    return Evidence("v1", "v0", (measure("ttft", ttft), measure("tpot", tpot)))


def guard(metric: str, status: str, role: str = "deciding") -> GuardFinding:
    return GuardFinding(metric, role, status, 0.1)  # type: ignore[arg-type]  # words of a table


# TTFT: zone, no_worse; TPOT: zone, no_worse; the verdict of DESIGN §5.
TABLE = [
    (("gain", "no worse"), ("gain", "no worse"), "adopt"),
    (("gain", "no worse"), ("no gain", "no worse"), "adopt"),
    (("gain", "no worse"), ("open", "no worse"), "adopt"),
    (("gain", "no worse"), ("no gain", "worse"), "reject"),
    (("gain", "no worse"), ("no gain", "not shown"), "inconclusive"),
    (("gain", "no worse"), ("open", "not shown"), "inconclusive"),
    (("no gain", "no worse"), ("gain", "no worse"), "adopt"),
    (("no gain", "no worse"), ("no gain", "no worse"), "reject"),
    (("no gain", "no worse"), ("no gain", "worse"), "reject"),
    (("no gain", "no worse"), ("no gain", "not shown"), "reject"),
    (("no gain", "no worse"), ("open", "no worse"), "inconclusive"),
    (("no gain", "no worse"), ("open", "not shown"), "inconclusive"),
    (("no gain", "not shown"), ("gain", "no worse"), "inconclusive"),
    (("no gain", "not shown"), ("open", "no worse"), "inconclusive"),
    (("no gain", "not shown"), ("open", "not shown"), "inconclusive"),
    (("no gain", "not shown"), ("no gain", "no worse"), "reject"),  # nothing to gain on either
    (("no gain", "worse"), ("gain", "no worse"), "reject"),  # first token proven slower
    (("no gain", "worse"), ("open", "not shown"), "reject"),
    (("open", "no worse"), ("gain", "no worse"), "inconclusive"),
    (("open", "not shown"), ("gain", "no worse"), "inconclusive"),
    (("open", "no worse"), ("no gain", "worse"), "inconclusive"),
    (("open", "not shown"), ("open", "not shown"), "inconclusive"),
]


@pytest.mark.parametrize(("ttft", "tpot", "word"), TABLE)
def test_the_table(ttft: tuple[str, str], tpot: tuple[str, str], word: str) -> None:
    assert decide(evidence(ttft, tpot)).word == word


@pytest.mark.parametrize(
    ("zones", "word"),
    [
        (("gain", "no worse"), "adopt"),
        (("no gain", "no worse"), "reject"),
        (("no gain", "worse"), "reject"),
        (("open", "not shown"), "inconclusive"),
    ],
)
def test_a_single_measure_decides_alone(zones: tuple[str, str], word: str) -> None:
    assert decide(Evidence("v1", "v0", (measure("ttft", zones),))).word == word


def test_each_reject_says_why() -> None:
    bought = decide(evidence(GAIN, ("no gain", "worse")))
    assert bought.reasons == ("the gain on TTFT is bought with TPOT",)
    slower = decide(evidence(("no gain", "worse"), ("no gain", "no worse")))
    assert slower.reasons == ("slower: TTFT of the mix is proven worse than the margin",)
    nothing = decide(evidence(("no gain", "no worse"), ("no gain", "no worse")))
    assert nothing.reasons == ("no material gain on TTFT or TPOT",)
    assert nothing.action == "keep v0"


SPLIT = (
    measure("ttft", ("no gain", "no worse")),
    measure("tpot", GAIN, ("json", "gain"), ("qa", "loss"), ("chat", "open")),
)


def test_a_split_names_its_measure_and_its_classes() -> None:
    found = decide(Evidence("v3", "v0", SPLIT))
    assert found.word == "workload-dependent"
    assert found.reasons[0] == "TPOT: json gains, qa loses"
    assert found.reasons[1].startswith("on the mix alone: adopt")
    assert found.action == "keep v0: on a mixed profile the worse case decides"


def test_a_split_needs_a_gain_and_a_loss_on_the_same_measure() -> None:
    across = (measure("ttft", GAIN, ("json", "gain")), measure("tpot", GAIN, ("qa", "loss")))
    assert workload_splits(across) == []
    assert decide(Evidence("v3", "v0", across)).word == "adopt"


def test_the_rule_may_let_the_mix_decide_a_split() -> None:
    found = decide(Evidence("v3", "v0", SPLIT, mixed_action="adopt-on-mix"))
    assert (found.word, found.action) == ("workload-dependent", "adopt v3: the rule lets the mix decide")
    unguarded = Evidence("v3", "v0", SPLIT, guards=(guard("ttft_p90", "not shown"),), mixed_action="adopt-on-mix")
    assert decide(unguarded).action == "keep v0: the mix would decide for v3, but adopt is blocked"
    costly = (measure("ttft", ("no gain", "worse")), SPLIT[1])
    assert decide(Evidence("v3", "v0", costly, mixed_action="adopt-on-mix")).word == "reject"
    level = (measure("ttft", ("no gain", "no worse")), replace(SPLIT[1], zone="no gain"))
    rejected = decide(Evidence("v3", "v0", level, mixed_action="adopt-on-mix"))
    assert rejected.action == "keep v0: the rule lets the mix decide, and on the mix alone v3 is rejected"


def test_first_hit_wins_and_all_reasons_are_listed() -> None:
    everything = Evidence(
        "v3",
        "v0",
        SPLIT,
        guards=(guard("error_rate", "fail"),),
        invalid=("A/A failed",),
        too_few=("too few blocks",),
        broken=("new fallback line",),
    )
    steps = [
        (everything, "invalid", "A/A failed"),
        (replace(everything, invalid=()), "inconclusive", "too few blocks"),
        (replace(everything, invalid=(), too_few=()), "reject", "new fallback line"),
        (replace(everything, invalid=(), too_few=(), broken=()), "reject", "guard error_rate is proven worse"),
        (
            replace(everything, invalid=(), too_few=(), broken=(), guards=()),
            "workload-dependent",
            "TPOT: json gains, qa loses",
        ),
    ]
    for item, word, first in steps:
        found = decide(item)
        assert (found.word, found.reasons[0]) == (word, first)
    reasons = " | ".join(decide(everything).reasons)
    for part in ("A/A failed", "too few blocks", "new fallback line", "guard error_rate", "json gains"):
        assert part in reasons


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (guard("ttft_p90", "pass"), "adopt"),
        (guard("ttft_p90", "not shown"), "inconclusive"),
        (guard("ttft_p90", "fail"), "reject"),
        (guard("throughput@c=8", "fail", "advisory"), "adopt"),
        (guard("throughput@c=8", "not shown", "advisory"), "adopt"),
    ],
)
def test_adopt_needs_every_deciding_guard_and_no_advisory_one(found: GuardFinding, word: str) -> None:
    assert decide(replace(evidence(GAIN, GAIN), guards=(found,))).word == word


def test_a_guard_that_is_proven_worse_is_never_told_as_not_shown() -> None:
    both = (guard("throughput@c=8", "fail"), guard("ttft_p90", "not shown"))
    found = decide(replace(evidence(GAIN, GAIN), guards=both))
    assert found.reasons[0] == "guard throughput@c=8 is proven worse"
    assert found.reasons[1].endswith("adopt is blocked: guard not shown: ttft_p90)")
    alone = decide(replace(evidence(GAIN, GAIN), guards=both[:1]))
    assert (alone.word, "not shown" in " ".join(alone.reasons)) == ("reject", False)


@pytest.mark.parametrize("too_few", [(), ("too few blocks",)])
def test_what_blocks_adopt_stands_once_among_the_reasons_of_an_open_arm(too_few: tuple[str, ...]) -> None:
    for ttft in (GAIN, ("open", "no worse")):
        found = decide(replace(evidence(ttft, GAIN), too_few=too_few, blockers=("cached tokens differ",)))
        assert (found.word, " ".join(found.reasons).count("cached tokens differ")) == ("inconclusive", 1)


def test_a_blocker_forbids_adopt_and_changes_no_reject() -> None:
    blocked = decide(replace(evidence(GAIN, GAIN), blockers=("cached tokens differ",)))
    assert blocked.word == "inconclusive"
    assert "adopt is blocked: cached tokens differ" in blocked.reasons[0]
    none = ("no gain", "no worse")
    assert decide(replace(evidence(none, none), blockers=("cached tokens differ",))).word == "reject"
