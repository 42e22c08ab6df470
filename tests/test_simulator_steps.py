"""The embedded engine's machine, in virtual time: costs, batching, the prefix cache, acceptance. No clock."""

import random
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.requests import describe
from replay.simulator import text
from replay.simulator.cache import BLOCK_TOKENS, PrefixCache, block_hashes
from replay.simulator.lifecycle import draw_boot
from replay.simulator.steps import Costs, Job, Machine, Output, Settings, Step
from replay.simulator.traffic import plan_traffic

MS = 1_000_000


def job(
    prompt: int = 100, output: int = 10, *, arrival_ns: int = 0, name: str = "a", words: list[str] | None = None
) -> Job:
    blocks = block_hashes(words) if words else ()
    return Job(name, arrival_ns, prompt, output, accept=lambda produced, drafts: 0, blocks=blocks)


def run(machine: Machine, jobs: Iterable[Job] = ()) -> tuple[list[Step], list[Output]]:
    """Run a machine until it is idle, without waiting."""
    for each in jobs:
        machine.submit(each)
    steps: list[Step] = []
    outputs: list[Output] = []
    free_ns = 0
    while (step := machine.plan_step(free_ns)) is not None:
        steps.append(step)
        outputs += machine.finish_step(step)
        free_ns = step.end_ns
    return steps, outputs


def first_tokens_ns(outputs: list[Output]) -> dict[str, int]:
    """Time from arrival to the first token, by job."""
    firsts: dict[str, int] = {}
    for output in outputs:
        firsts.setdefault(output.job.id, output.planned_ns - output.job.arrival_ns)
    return firsts


def decode_step_ns(drafts: int, context: int = 100) -> int:
    """How long a decode step takes at batch 1."""
    machine = Machine(Settings(draft_tokens=drafts))
    steps, _ = run(machine, [job(context, 3)])
    return steps[1].end_ns - steps[1].start_ns


# -- cost ------------------------------------------------------------------------------------------------------------


def test_a_decode_step_at_batch_one_costs_eleven_milliseconds_with_two_drafts_and_1_11_times_that_with_three() -> None:
    two, three = decode_step_ns(2), decode_step_ns(3)
    # 8.3 + 3 × 0.26 + context of 101 tokens × 0.1 µs + 2 × (0.9 + 0.05)
    assert two == 8_300_000 + 780_000 + 10_100 + 1_900_000
    assert three - two == 260_000 + 950_000
    assert three / two == pytest.approx(1.11, abs=0.002)


def test_the_first_token_of_200_and_of_2000_tokens_leaves_after_about_20_and_110_milliseconds() -> None:
    for prompt, expected_ms in ((200, 18.3), (2_000, 109.3)):
        _, outputs = run(Machine(Settings(draft_tokens=2)), [job(prompt)])
        assert first_tokens_ns(outputs)["a"] / MS == pytest.approx(expected_ms, abs=0.1)


def test_a_longer_draft_does_not_move_the_first_token_of_a_request_that_finds_the_engine_idle() -> None:
    found = []
    for drafts in (0, 2, 3):
        _, outputs = run(Machine(Settings(draft_tokens=drafts)), [job(500)])
        found.append(first_tokens_ns(outputs)["a"])
    assert found[0] == found[1] == found[2]


def test_without_asynchronous_scheduling_tokens_wait_for_the_drafts_and_for_the_host() -> None:
    plain, _ = run(Machine(Settings(draft_tokens=2)), [job()])
    waiting, _ = run(Machine(Settings(draft_tokens=2, async_scheduling=False)), [job()])
    assert plain[0].tokens_ns < plain[0].end_ns
    assert waiting[0].tokens_ns == waiting[0].end_ns == plain[0].end_ns + 1_200_000


def test_the_scale_multiplies_every_time_and_changes_nothing_else() -> None:
    slow_steps, slow = run(Machine(Settings(draft_tokens=2)), [job(3_000, 20)])
    fast_steps, fast = run(Machine(Settings(draft_tokens=2, scale=0.5)), [job(3_000, 20)])
    assert [output.tokens for output in slow] == [output.tokens for output in fast]
    assert fast_steps[-1].end_ns == pytest.approx(slow_steps[-1].end_ns / 2, abs=len(slow_steps))


def test_the_first_token_waits_longer_with_a_longer_prompt() -> None:
    waits = [first_tokens_ns(run(Machine(Settings()), [job(prompt)])[1])["a"] for prompt in (10, 100, 1_000, 10_000)]
    assert all(shorter < longer for shorter, longer in pairwise(waits))


def test_the_mean_first_token_waits_longer_the_more_requests_are_in_flight() -> None:
    means = []
    for concurrency in (1, 2, 3, 8):
        # One request each 137 ms in each slot, the slots out of step with one another.
        jobs = [
            job(200, 12, arrival_ns=number * 137 * MS + slot * 17 * MS, name=f"{slot}-{number}")
            for number in range(40)
            for slot in range(concurrency)
        ]
        jobs.sort(key=lambda each: each.arrival_ns)
        firsts = first_tokens_ns(run(Machine(Settings(draft_tokens=2)), jobs)[1])
        means.append(sum(firsts.values()) / len(firsts))
    assert all(fewer < more for fewer, more in pairwise(means))


def test_a_longer_draft_costs_relatively_more_at_batch_eight_than_at_batch_one() -> None:
    def step_ns(drafts: int, batch: int) -> int:
        steps, _ = run(Machine(Settings(draft_tokens=drafts)), [job(16, 4, name=str(n)) for n in range(batch)])
        return steps[1].end_ns - steps[1].start_ns

    assert step_ns(3, 8) / step_ns(2, 8) > step_ns(3, 1) / step_ns(2, 1) + 0.03


# -- batching --------------------------------------------------------------------------------------------------------


def test_a_prompt_longer_than_the_budget_is_computed_in_chunks_while_others_go_on_decoding() -> None:
    machine = Machine(Settings(max_num_batched_tokens=512))
    early, late = job(100, 50, name="early"), job(1_200, 2, name="late", arrival_ns=1)
    steps, outputs = run(machine, [early, late])
    chunks = [[row.tokens for row in step.rows if row.job is late] for step in steps]
    assert [chunk for chunk in chunks if chunk] == [[511], [511], [178], [1]]
    between = [output for output in outputs if output.job is early and steps[0].end_ns < output.planned_ns]
    assert [output.planned_ns for output in between][:3] == [step.tokens_ns for step in steps[1:4]]


def test_a_request_that_arrives_while_a_step_runs_waits_for_the_next_one() -> None:
    steps, _ = run(Machine(Settings()), [job(100, 5), job(100, 5, name="b", arrival_ns=1)])
    assert [len(step.rows) for step in steps[:2]] == [1, 2]
    assert steps[1].start_ns == steps[0].end_ns


def test_an_idle_machine_starts_at_the_arrival() -> None:
    steps, _ = run(Machine(Settings()), [job(arrival_ns=5 * MS)])
    assert steps[0].start_ns == 5 * MS


def test_no_more_requests_run_than_max_num_seqs_allows() -> None:
    machine = Machine(Settings(max_num_seqs=2))
    steps, outputs = run(machine, [job(50, 5, name=str(number)) for number in range(5)])
    assert max(len(step.rows) for step in steps) == 2
    assert sum(output.last for output in outputs) == 5


def test_a_request_waits_until_its_whole_answer_has_memory() -> None:
    machine = Machine(Settings(kv_blocks=20, prefix_caching=False))
    steps, outputs = run(machine, [job(200, 40, name="a"), job(200, 40, name="b")])
    assert max(len(step.rows) for step in steps) == 1
    assert sum(output.tokens for output in outputs) == 80
    assert machine.held_blocks == 0


def test_an_aborted_request_leaves_at_once_and_yields_nothing_more() -> None:
    machine = Machine(Settings())
    gone, stays = job(name="gone"), job(name="stays")
    machine.submit(gone)
    machine.submit(stays)
    step = machine.plan_step(0)
    assert step is not None
    assert machine.abort(gone)
    assert [output.job for output in machine.finish_step(step)] == [stays]
    assert not machine.abort(gone)
    assert machine.running == 1


@settings(deadline=None)  # a long prompt in a small budget takes many steps
@given(
    st.lists(st.tuples(st.integers(1, 3_000), st.integers(1, 60), st.integers(0, 400)), min_size=1, max_size=12),
    st.integers(0, 4),
    st.integers(20, 600),
    st.integers(1, 5),
)
def test_every_request_gets_exactly_its_tokens_whatever_shares_the_machine(
    asked: list[tuple[int, int, int]], drafts: int, budget: int, seqs: int
) -> None:
    machine = Machine(Settings(draft_tokens=drafts, max_num_batched_tokens=budget, max_num_seqs=seqs))
    jobs = []
    for number, (prompt, output, arrival_ms) in enumerate(sorted(asked, key=lambda each: each[2])):
        one = job(prompt, output, arrival_ns=arrival_ms * MS, name=str(number))
        one.accept = lambda produced, drafted: min(drafted, produced % 3)
        jobs.append(one)
    steps, outputs = run(machine, jobs)
    for one in jobs:
        mine = [output for output in outputs if output.job is one]
        assert sum(output.tokens for output in mine) == one.output_tokens
        assert [output.last for output in mine] == [False] * (len(mine) - 1) + [True]
        assert mine[0].tokens == 1
    assert all(sum(row.tokens for row in step.rows) <= budget for step in steps)
    counts = machine.counts
    assert counts.generation == sum(one.output_tokens for one in jobs)
    assert counts.prompt == sum(one.prompt_tokens for one in jobs)
    assert sum(counts.accepted_at) == counts.accepted <= counts.drafted <= drafts * counts.draft_rounds


# -- prefix cache ----------------------------------------------------------------------------------------------------


def words(count: int, start: int = 0) -> list[str]:
    return [f"w{number}" for number in range(start, start + count)]


def test_a_second_prompt_with_the_same_head_is_computed_from_the_first_difference_on() -> None:
    machine = Machine(Settings())
    head = words(100)
    first = job(104, 4, words=[*head, *words(8, 500)])
    second = job(120, 4, name="b", words=[*head, *words(24, 900)], arrival_ns=MS * 10_000)
    _, outputs = run(machine, [first, second])
    assert second.cached_tokens == 96  # six whole blocks of sixteen
    assert machine.counts.prefix_queries == 224
    assert machine.counts.prefix_hits == 96
    firsts = first_tokens_ns(outputs)
    assert firsts["a"] - firsts["b"] > 70 * Costs().prefill_ns


def test_the_same_prompt_again_still_computes_its_last_token() -> None:
    machine = Machine(Settings())
    again = job(96, 4, name="b", words=words(96), arrival_ns=MS * 10_000)
    run(machine, [job(96, 4, words=words(96)), again])
    assert again.cached_tokens == 80


def test_the_next_turn_finds_the_answer_of_the_one_before() -> None:
    machine = Machine(Settings())
    asked = text.prompt_words([("user", "what is it " * 20)])
    script = text.write_script(text.SHORT, asked, limit=64)
    answer = " ".join(script.words)
    following = text.prompt_words([("user", "what is it " * 20), ("assistant", answer), ("user", "and then?")])
    assert following[: len(asked) + len(script.words)] == [*asked, *script.words]
    first = job(len(asked), len(script.words), words=[*asked, *script.words])
    second = job(len(following), 4, name="b", words=following, arrival_ns=MS * 10_000)
    run(machine, [first, second])
    assert second.cached_tokens == (len(asked) + len(script.words)) // BLOCK_TOKENS * BLOCK_TOKENS


def test_prompts_with_different_salts_share_nothing_and_with_the_same_salt_as_usual() -> None:
    assert block_hashes(words(64), "a")[0] != block_hashes(words(64), "b")[0]
    assert block_hashes(words(64), "a") == block_hashes(words(64), "a")
    assert block_hashes(words(64))[:3] == block_hashes(words(48))


def test_without_prefix_caching_nothing_is_asked_and_nothing_hit() -> None:
    machine = Machine(Settings(prefix_caching=False))
    run(machine, [job(96, 4, words=words(96)), job(96, 4, name="b", words=words(96), arrival_ns=MS * 10_000)])
    assert (machine.counts.prefix_queries, machine.counts.prefix_hits, len(machine.cache)) == (0, 0, 0)


def test_the_least_recently_used_prompt_leaves_first_and_its_tail_before_its_head() -> None:
    cache = PrefixCache(6)
    old, new = block_hashes(words(64)), block_hashes(words(64, 500))
    cache.store(old)
    cache.store(new)
    assert cache.count_hits(new) == 4
    assert cache.count_hits(old) == 2
    cache.limit(3)
    assert (cache.count_hits(old), cache.count_hits(new)) == (2, 1)


# -- the text and its predictability ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("workload", "two", "three", "gain"),
    [
        (text.JSON, 1.990, 2.949, 0.19),
        (text.LONG, 1.750, 2.571, 0.17),
        (text.CODE, 1.600, 2.260, 0.13),
        (text.SHORT, 1.292, 1.314, -0.09),
        (text.HUNGARIAN, 1.164, 1.296, -0.04),
    ],
)
def test_three_drafts_instead_of_two_change_the_decode_rate_of_each_class_as_published(
    workload: str, two: float, three: float, gain: float
) -> None:
    chances = [text.hold_chance(workload, position) for position in range(3)]
    assert sum(chances[:2]) == pytest.approx(two, abs=1e-9)
    assert sum(chances) == pytest.approx(three, abs=1e-9)
    rate_two = (1 + two) / decode_step_ns(2)
    rate_three = (1 + three) / decode_step_ns(3)
    assert rate_three / rate_two - 1 == pytest.approx(gain, abs=0.01)


@pytest.mark.parametrize("workload", list(text.ACCEPTANCE))
def test_the_machine_reaches_the_rates_that_the_table_promises(workload: str) -> None:
    measured = {}
    for drafts in (2, 3):
        machine = Machine(Settings(draft_tokens=drafts))
        scripts = [text.write_script(workload, [f"p{n}"], limit=400, ignore_eos=True) for n in range(60)]
        jobs = [Job(str(n), n * 10_000 * MS, 100, 400, accept=script.accepted) for n, script in enumerate(scripts)]
        _, outputs = run(machine, jobs)
        ends_ns = sum(output.planned_ns - output.job.arrival_ns for output in outputs if output.last)
        measured[drafts] = (ends_ns - sum(first_tokens_ns(outputs).values())) / (60 * 399)  # TPOT
        expected = sum(text.hold_chance(workload, position) for position in range(drafts))
        assert machine.counts.accepted / machine.counts.draft_rounds == pytest.approx(expected, abs=0.03)
    chances = [text.hold_chance(workload, position) for position in range(3)]
    expected_gain = (1 + sum(chances)) / (1 + sum(chances[:2])) * decode_step_ns(2, 300) / decode_step_ns(3, 300)
    assert measured[2] / measured[3] == pytest.approx(expected_gain, rel=0.015)


@given(st.sampled_from(list(text.ACCEPTANCE)), st.floats(0, 1, exclude_max=True), st.integers(1, 8))
def test_a_longer_draft_accepts_what_a_shorter_one_did_and_perhaps_more(
    workload: str, draw: float, drafts: int
) -> None:
    shorter, longer = (text.accepted_length(workload, draw, count) for count in (drafts, drafts + 1))
    assert longer == shorter or (shorter == drafts and longer == drafts + 1)


def test_the_same_prompt_gives_the_same_answer_and_the_same_luck() -> None:
    first, again = (text.write_script(text.SHORT, ["what", "is", "it"], limit=64) for _ in range(2))
    assert first == again
    assert [first.accepted(n, 3) for n in range(50)] == [again.accepted(n, 3) for n in range(50)]
    assert text.write_script(text.SHORT, ["what", "was", "it"], limit=64).words != first.words


@given(st.integers(1, 80))
def test_json_of_any_length_parses_and_is_exactly_that_long(length: int) -> None:
    pieces = text.json_words([text.WORDS[n % len(text.WORDS)] for n in range(length)])
    assert len(pieces) == length
    document = " ".join(pieces)
    assert document.split() == pieces
    assert isinstance(orjson.loads(document), dict) or length == 1


@given(st.text(min_size=1), st.integers(1, 300), st.sampled_from(list(text.ACCEPTANCE)))
def test_an_answer_ends_by_itself_within_its_class_or_is_cut_at_the_limit(
    prompt: str, limit: int, workload: str
) -> None:
    natural = text.write_script(workload, [prompt], limit=1_000)
    shortest, longest = text.LENGTHS[workload]
    assert natural.finish == "stop"
    assert shortest <= len(natural.words) <= longest
    cut = text.write_script(workload, [prompt], limit=limit)
    assert cut.words == natural.words[:limit]
    assert cut.finish == ("length" if len(natural.words) > limit else "stop")
    assert len(text.write_script(workload, [prompt], limit=limit, ignore_eos=True).words) == limit


@pytest.mark.parametrize(
    ("body", "workload"),
    [
        ({"messages": [{"role": "user", "content": "What is it?"}]}, text.SHORT),
        ({"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "json_object"}}, text.JSON),
        ({"messages": [{"role": "user", "content": "x"}], "guided_json": {"type": "object"}}, text.JSON),
        ({"messages": [{"role": "user", "content": "word " * 1_200}]}, text.LONG),
        ({"messages": [{"role": "user", "content": "def f(x):\n    return x\nimport os"}]}, text.CODE),
        (
            {"messages": [{"role": "user", "content": "Kérem, mondja meg, hogy mi az a kérdés és miért nem jó"}]},
            "hungarian",
        ),
    ],
)
def test_the_class_of_a_request_is_found_in_the_request(body: dict[str, Any], workload: str) -> None:
    prompt = text.prompt_words([(message["role"], message["content"]) for message in body["messages"]])
    assert text.workload_of(describe(orjson.dumps(body)), len(prompt)) == workload


# -- a boot, and the traffic of the demo -----------------------------------------------------------------------------


def test_the_speed_factors_of_boots_have_the_asked_spread_and_follow_from_the_seed() -> None:
    speeds = [draw_boot(seed, 0.003)[0] for seed in range(400)]
    mean = sum(speeds) / len(speeds)
    spread = (sum((speed - mean) ** 2 for speed in speeds) / len(speeds)) ** 0.5
    assert mean == pytest.approx(1.0, abs=0.001)
    assert spread == pytest.approx(0.003, rel=0.15)
    assert draw_boot(7, 0.003) == draw_boot(7, 0.003)
    assert draw_boot(7, 0.0)[0] == 1.0


def test_the_demo_traffic_is_the_same_for_the_same_seed_and_has_three_classes_at_most_at_three() -> None:
    users = plan_traffic(seed=11, requests=90, seconds=9)
    assert users == plan_traffic(seed=11, requests=90, seconds=9)
    assert users != plan_traffic(seed=12, requests=90, seconds=9)
    assert len(users) == 3
    found: dict[str, int] = {}
    for visit in (visit for user in users for visit in user):
        prompt = text.prompt_words([(each["role"], each["content"]) for each in visit.body["messages"]])
        workload = text.workload_of(describe(orjson.dumps(visit.body)), len(prompt))
        found[workload] = found.get(workload, 0) + 1
        low, high = {text.JSON: (100, 150), text.LONG: (1_024, 1_150), text.SHORT: (15, 50)}[workload]
        assert low <= len(prompt) <= high
    assert found == {text.JSON: 34, text.LONG: 18, text.SHORT: 38}


def test_most_requests_of_the_demo_find_the_engine_idle_and_none_finds_more_than_two_others() -> None:
    shuffled = random.Random(0)
    arrivals: list[int] = []
    ends: list[int] = []
    for user in plan_traffic(seed=5, requests=300, seconds=30):
        free_ns = 0
        for visit in user:
            start_ns = max(free_ns, visit.due_ns)
            free_ns = start_ns + round(shuffled.uniform(60, 110) * MS)
            arrivals.append(start_ns)
            ends.append(free_ns)
    seen = [sum(a <= at < e for a, e in zip(arrivals, ends, strict=True)) for at in arrivals]
    share = {c: seen.count(c) / len(seen) for c in (1, 2, 3)}
    assert sum(share.values()) == 1.0
    assert share[1] > share[2] > share[3] > 0.02
