"""Shared prefixes: ids to columns and back, and what a prefix cache makes of them."""

import json
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.prefixes import (
    HitRate,
    LinkColumns,
    PrefixLinks,
    PrefixTree,
    chain,
    hit_rates,
    infinite_hit_rate,
    link,
    rebuild_ids,
)

SHARED = Path(__file__).parents[2] / "shared" / "traces"
needs_traces = pytest.mark.skipif(not SHARED.is_dir(), reason=f"the public traces are not at {SHARED}")


def columns(prompts: Sequence[Sequence[Hashable]], groups: Sequence[Hashable] | None = None) -> list[tuple[int, ...]]:
    found = link(prompts, groups or [None] * len(prompts)).columns()
    return list(zip(found.blocks.tolist(), found.prefix_ref.tolist(), found.prefix_blocks.tolist(), strict=True))


def test_the_reference_is_the_latest_request_with_the_longest_common_prefix() -> None:
    prompts = [[1, 2, 3], [1, 2, 4], [9], [1, 2, 3, 5], [1, 2, 4], [1, 7], []]
    assert columns(prompts) == [
        (3, -1, 0),
        (3, 0, 2),
        (1, -1, 0),
        (4, 0, 3),  # three blocks of request 0, though request 1 came later and shares two
        (3, 1, 3),
        (2, 4, 1),  # all of them share block 1; the latest is 4
        (0, -1, 0),
    ]


def test_ids_of_a_capture_and_ids_of_any_other_kind_link_alike() -> None:
    prompts = [[1, 2, 3], [1, 2, 4], [1, 2, 4, 8], [5]]
    expected = columns(prompts)
    digests = [[f"{each * 0x9E3779B97F4A7C15 % 2**64:016x}{each:016x}" for each in ids] for ids in prompts]
    assert columns(digests) == expected
    assert columns([[("id", each) for each in ids] for ids in prompts]) == expected
    assert columns([[-each for each in ids] for ids in prompts]) == expected
    assert columns([[each * 2**70 for each in ids] for ids in prompts]) == expected
    assert columns([np.array(ids) for ids in prompts]) == expected  # type: ignore[misc]


def test_requests_of_different_cache_groups_or_models_share_nothing() -> None:
    prompts = [[1, 2, 3]] * 5
    groups = [(None, "a"), (None, "b"), (0, "a"), (None, "a"), (0, "a")]
    assert columns(prompts, groups) == [(3, -1, 0), (3, -1, 0), (3, -1, 0), (3, 0, 3), (3, 2, 3)]


def test_an_id_at_two_depths_is_noticed_and_chaining_mends_it() -> None:
    prompts = [[7, 7, 8], [8, 7]]
    unchained = link(prompts)
    unchained.columns()
    assert unchained.unchained == 2  # 7 moves from the first place to the second, 8 from the third to the first
    known: dict[tuple[int, Hashable], int] = {}
    chained = [chain(ids, known) for ids in prompts]
    assert chained == [[0, 1, 2], [3, 4]]
    mended = link(chained)
    mended.columns()
    assert mended.unchained == 0


def test_what_no_prompts_can_have_is_refused_with_its_row() -> None:
    with pytest.raises(ValueError, match="request 1 cannot share 3 of its 3 blocks with request 0"):
        PrefixTree([2, 3], [-1, 0], [0, 3])
    with pytest.raises(ValueError, match="request 0 cannot share 1"):
        PrefixTree([2, 3], [1, -1], [1, 0])
    with pytest.raises(ValueError, match="request 1 cannot share 4"):
        PrefixTree([5, 3], [None, 0], [0, 4])
    with pytest.raises(ValueError, match="not a column of whole numbers"):
        PrefixTree(["x"], [None], [0])


def test_ids_come_back_dense_in_order_of_first_appearance() -> None:
    prompts = [["a", "b", "c"], ["a", "b", "d"], ["e"], ["a", "b", "d", "f"], []]
    found = link(prompts).columns()
    tree = rebuild_ids(found.blocks, found.prefix_ref, found.prefix_blocks)
    assert list(tree) == [[0, 1, 2], [0, 1, 3], [4], [0, 1, 3, 5], []]
    assert tree[-2] == [0, 1, 3, 5]
    assert tree[1:3] == [[0, 1, 3], [4]]
    assert tree.distinct == 6


def assert_isomorphic(one: Sequence[Sequence[Hashable]], other: Sequence[Sequence[Hashable]]) -> int:
    """Ids are equal in one exactly where they are equal in the other. Returns how many blocks there are."""
    to: dict[Hashable, Hashable] = {}
    back: dict[Hashable, Hashable] = {}
    count = 0
    for left, right in zip(one, other, strict=True):
        for a, b in zip(left, right, strict=True):
            assert to.setdefault(a, b) == b
            assert back.setdefault(b, a) == a
            count += 1
    return count


paths = st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=30)


@given(paths, st.integers(1, 7))
def test_any_prompts_survive_the_round_trip_however_they_are_batched(contents: list[list[int]], batch: int) -> None:
    known: dict[tuple[int, Hashable], int] = {}
    prompts = [chain(ids, known) for ids in contents]
    links = PrefixLinks(batch)
    for ids in prompts:
        links.add(ids)
    found = links.columns()
    assert links.unchained == 0
    assert links.distinct == len(known)
    for row, ids in enumerate(prompts):
        common = [common_run(ids, earlier) for earlier in prompts[:row]]
        best = max(common, default=0)
        assert found.prefix_blocks[row] == best
        latest = max((at for at, run in enumerate(common) if run == best), default=-1)
        assert found.prefix_ref[row] == (latest if best else -1)
    rebuilt = list(rebuild_ids(found.blocks, found.prefix_ref, found.prefix_blocks))
    assert_isomorphic(prompts, rebuilt)
    order = [each for ids in rebuilt for each in ids]
    assert list(dict.fromkeys(order)) == list(range(len(known)))
    lengths = [16 * len(ids) for ids in prompts]
    assert hit_rates(prompts, lengths, 16) == hit_rates(rebuilt, lengths, 16, capacity=10**6)


def common_run(one: Sequence[Hashable], other: Sequence[Hashable]) -> int:
    run = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        run += 1
    return run


def test_a_full_cache_drops_what_was_used_least_recently_tail_first() -> None:
    prompts = [[1, 2, 3], [4, 5], [1, 2, 3]]
    lengths = [12, 8, 12]
    assert hit_rates(prompts, lengths, 4) == HitRate(cold=12 / 32, second_half=12 / 20)
    # Three blocks: 1 outlives 2 and 3, since a request touches its tail first.
    assert hit_rates(prompts, lengths, 4, capacity=3) == HitRate(cold=4 / 32, second_half=4 / 20)
    assert hit_rates(prompts, lengths, 4, capacity=0) == HitRate(cold=0.0, second_half=0.0)
    assert hit_rates([], [], 4) == HitRate(cold=None, second_half=None)
    # A last block that is not full spares no more than there is.
    assert infinite_hit_rate([0, 2], [5, 6], 4).cold == 6 / 11


def read_mooncake(name: str) -> tuple[list[list[int]], list[int]]:
    with (SHARED / "data" / "mooncake" / f"{name}_trace.jsonl").open(encoding="utf-8") as lines:
        rows = sorted(map(json.loads, lines), key=lambda row: row["timestamp"])
    return [row["hash_ids"] for row in rows], [row["input_length"] for row in rows]


def reference(name: str) -> Any:
    return json.loads((SHARED / "reference" / name).read_text(encoding="utf-8"))


@needs_traces
@pytest.mark.parametrize(("name", "blocks"), [("conversation", 288_500), ("synthetic", 121_877)])
def test_mooncake_comes_back_isomorphic_and_hits_as_often(name: str, blocks: int) -> None:
    prompts, lengths = read_mooncake(name)
    expected = reference("reference_values.json")["traces"][f"mooncake_{name}"]["prefix"]
    links = link(prompts)
    found: LinkColumns = links.columns()
    rebuilt = list(rebuild_ids(found.blocks, found.prefix_ref, found.prefix_blocks))
    assert links.unchained == 0
    assert assert_isomorphic(prompts, rebuilt) == blocks == expected["blocks"]
    assert links.distinct == expected["unique_blocks"]
    assert int(np.count_nonzero(found.prefix_blocks)) == expected["rows_with_any_hit"]
    assert found.prefix_blocks.sum() / found.blocks.sum() == expected["block_hit_rate"]
    assert hit_rates(rebuilt, lengths, 512).cold == pytest.approx(expected["token_hit_rate"], abs=1e-15)
    assert links.nbytes <= 16 * links.distinct * 4 / 3  # what the memory of a build is made of


@needs_traces
def test_an_lru_cache_of_the_mooncake_conversation_hits_as_the_reference_says() -> None:
    prompts, lengths = read_mooncake("conversation")
    expected = reference("prefix_cache_reference.json")["values"]
    cold = hit_rates(prompts, lengths, 512)
    assert cold.cold == pytest.approx(expected["cold_token_hit"], abs=1e-15)
    assert cold.second_half == pytest.approx(expected["second_half_token_hit"], abs=1e-15)
    assert round(100 * (cold.second_half or 0), 3) == 39.811
    for capacity, values in expected["lru"].items():
        limited = hit_rates(prompts, lengths, 512, capacity=int(capacity))
        assert limited.cold == pytest.approx(values["cold"], abs=1e-15)
        assert limited.second_half == pytest.approx(values["second_half"], abs=1e-15)
