"""Output-length parity: the same requests, answered at another length."""

from pathlib import Path

import msgspec
import pytest
from synthetic_run import GUARDS, Effect, Synthetic, timed_out
from test_analysis_report import arm_of, judged, squeeze, words

from analysis.parity import OutputLengths, length_blockers, parity_document, parity_lines
from analysis.stats import Estimate
from profiles.experiment import Arm
from profiles.records import Outcome
from profiles.units import SECOND_NS

LONGER = Effect(ttft=-0.1, output=0.25)


def with_tokens(outcome: Outcome, tokens: int | None) -> Outcome:
    response = msgspec.structs.replace(outcome.response, output_tokens=tokens)
    return msgspec.structs.replace(outcome, response=response)


def test_equal_lengths_are_the_same_and_take_no_line(tmp_path: Path) -> None:
    document, result = judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.1)}))
    lengths = arm_of(document, "v1")["output_lengths"]
    assert (lengths["status"], lengths["change"], lengths["low"], lengths["high"]) == ("same", 0.0, 0.0, 0.0)
    assert lengths["tokens"] == lengths["baseline_tokens"] > 0
    assert "output length" not in result.stdout


def test_an_undeclared_length_blocks_adopt_and_says_what_would_settle_it(tmp_path: Path) -> None:
    document, result = judged(tmp_path, Synthetic({"v1": LONGER}))
    arm = arm_of(document, "v1")
    assert (arm["verdict"], arm["output_lengths"]["status"], result.exit_code) == ("inconclusive", "differs", 3)
    assert arm["output_lengths"]["change"] == pytest.approx(0.25, abs=0.01)
    assert "adopt is blocked: output length differs without being declared (+25." in arm["reasons"][0]
    assert 'declare changes = ["output"]' in arm["reasons"][0]
    assert arm["settle"] is None
    assert arm["settle_otherwise"] == "a new run without what blocks adopt"
    assert "would settle it: a new run without what blocks adopt" in squeeze(result.stdout)
    assert squeeze(result.stdout).count("output length differs without being declared") == 1


def test_a_declared_length_is_only_shown(tmp_path: Path) -> None:
    declared = Effect(ttft=-0.1, output=0.25, changes=("output",))
    document, result = judged(tmp_path, Synthetic({"v1": declared}))
    assert words(document) == {"v1": "adopt"}
    assert arm_of(document, "v1")["output_lengths"]["status"] == "differs"
    assert "output length +25." in squeeze(result.stdout)


def test_a_length_that_hardly_differs_is_no_other_work_however_sure_it_is(tmp_path: Path) -> None:
    """A token more in every second answer: no chance about it, and not 2 %."""

    def one_more(arm: str, block: int, outcome: Outcome) -> Outcome:
        tokens = outcome.response.output_tokens
        return with_tokens(outcome, (tokens or 0) + 1) if arm == "v1" and outcome.request % 2 else outcome

    document, _ = judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.1)}, edit_outcome=one_more))
    lengths = arm_of(document, "v1")["output_lengths"]
    assert 0 < lengths["low"] <= lengths["change"] < 0.02
    assert lengths["status"] == "same"
    assert words(document) == {"v1": "adopt"}


def test_one_class_that_talks_more_shows_in_the_mix(tmp_path: Path) -> None:
    document, _ = judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.1, output={"chat": 0.5})}))
    lengths = arm_of(document, "v1")["output_lengths"]
    assert lengths["change"] == pytest.approx(1.5**0.25 - 1, abs=0.01)  # a quarter of the requests are chat
    assert lengths["status"] == "differs"


def test_lengths_that_scatter_from_boot_to_boot_are_not_called_different(tmp_path: Path) -> None:
    def scatter(arm: str, block: int, outcome: Outcome) -> Outcome:
        factor = {1: 1.2, 2: 0.8, 3: 1.15, 4: 0.85, 5: 1.15}[block]
        tokens = round((outcome.response.output_tokens or 0) * factor)
        return with_tokens(outcome, tokens) if arm == "v1" else outcome

    document, _ = judged(tmp_path, Synthetic({"v1": Effect(ttft=-0.1)}, edit_outcome=scatter))
    lengths = arm_of(document, "v1")["output_lengths"]
    assert lengths["low"] < 0 < lengths["high"]
    assert lengths["status"] == "same"


def test_a_timed_out_request_and_an_answer_without_a_count_have_no_length(tmp_path: Path) -> None:
    def edit(arm: str, block: int, outcome: Outcome) -> Outcome:
        if outcome.request == 3 and arm == "v1":
            return with_tokens(timed_out(outcome, 30 * SECOND_NS), 4000)
        if outcome.request == 5:
            return with_tokens(outcome, None if arm == "v0" else 4000)
        return with_tokens(outcome, 0) if outcome.request == 7 and arm == "v1" else outcome

    document, _ = judged(tmp_path, Synthetic({"v1": Effect()}, edit_outcome=edit))
    lengths = arm_of(document, "v1")["output_lengths"]
    assert lengths["change"] == 0.0
    # The answer with a count of 0 has no logarithm; the sums know of it.
    assert lengths["baseline_tokens"] - lengths["tokens"] == 5 * 47


def test_engines_that_count_no_output_leave_it_unknown(tmp_path: Path) -> None:
    run = Synthetic({"v1": Effect()}, edit_outcome=lambda arm, block, outcome: with_tokens(outcome, None))
    document, _ = judged(tmp_path, run)
    assert arm_of(document, "v1")["output_lengths"] is None


def test_one_block_shows_a_length_and_blocks_nothing(tmp_path: Path) -> None:
    document, result = judged(tmp_path, Synthetic({"v1": LONGER}, blocks=1))
    lengths = arm_of(document, "v1")["output_lengths"]
    assert (lengths["status"], lengths["low"]) == ("not known", None)
    assert "cannot tell from one block" in squeeze(result.stdout)
    assert "output length differs" not in " ".join(arm_of(document, "v1")["reasons"])


def test_answers_that_all_reach_the_cap_are_the_same_and_the_cap_is_named(tmp_path: Path) -> None:
    def at_cap(arm: str, block: int, outcome: Outcome) -> Outcome:
        return with_tokens(outcome, 64)

    document, _ = judged(tmp_path, Synthetic({"v1": LONGER}, edit_outcome=at_cap, rule=GUARDS))
    lengths = arm_of(document, "v1")["output_lengths"]
    assert (lengths["status"], lengths["change"], lengths["capped"]) == ("same", 0.0, True)
    shorter = OutputLengths(Estimate(5, -0.1, 0.01, 0.02), 900, 1000, "differs", capped=True)
    assert list(parity_lines(shorter)) == [
        "output length −9.5 % tokens [−11.3 %, −7.7 %] at 99 %: other work, capped at the recorded length"
    ]


def test_nothing_known_blocks_nothing_and_is_null() -> None:
    arm = Arm("v1", ("engine",), {}, "v0", frozenset())
    assert length_blockers(None, arm) == []
    assert parity_document(None) is None
    assert list(parity_lines(None)) == []
