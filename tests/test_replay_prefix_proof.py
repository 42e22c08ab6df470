"""Whether an engine keeps two passes apart: what a probe and a log prove, and what they do not."""

import pytest

from replay.prefix_proof import LARGEST_BLOCK_TOKENS, ProbeAnswer, judge_reset, judge_salt, probe_tokens


def counted(cached: float, prompt: int = 6000) -> ProbeAnswer:
    """An answer of vLLM, whose counters tell and whose usage does not."""
    counters = {"vllm:prefix_cache_hits_total": cached, "vllm:prefix_cache_queries_total": float(prompt)}
    return ProbeAnswer(prompt, None, counters)


def told(cached: int | None, prompt: int = 6000) -> ProbeAnswer:
    return ProbeAnswer(prompt, cached)


@pytest.mark.parametrize(
    ("other", "again", "word", "says"),
    [
        (counted(0), counted(5984), "proved", "0 prompt tokens cached with another salt, 5984 of 6000 with the same"),
        (counted(5984), counted(5984), "ignored", "with another salt 5984 of 6000 prompt tokens were still found"),
        (told(0), told(5999), "proved", "0 prompt tokens cached with another salt, 5999"),
        (told(5999), told(5999), "ignored", "with another salt 5999 of 6000"),
        (told(5999), None, "ignored", "with another salt 5999 of 6000"),
        # vLLM leaves the field out where it is 0; the repeat shows that it would have been told.
        (told(None), told(5984), "proved", "0 prompt tokens cached with another salt, 5984"),
        # A shared chat template costs no time that could be saved.
        (told(24), told(5984), "proved", "24 prompt tokens cached with another salt"),
        (told(0), None, "not shown", "no repeat with the same salt"),
        (told(0), told(0), "not shown", "the prefix cache is off, or its block is larger than the prompt"),
        (told(None), told(None), "not shown", "the engine reports no cached tokens"),
        (counted(0, 0), counted(0, 0), "not shown", "the engine reports no cached tokens"),  # the cache is off
    ],
)
def test_a_salt_is_proved_ignored_or_not_shown(
    other: ProbeAnswer, again: ProbeAnswer | None, word: str, says: str
) -> None:
    judgement = judge_salt(told(0), other, again)
    assert judgement.word == word
    assert says in judgement.why


def test_a_counter_is_believed_before_usage() -> None:
    """Usage may leave out what it found; the counter around this one request does not."""
    assert (
        ProbeAnswer(6000, 0, {"vllm:prefix_cache_hits_total": 96.0, "vllm:prefix_cache_queries_total": 100.0}).cached
        == 96
    )
    assert ProbeAnswer(6000, 5, {}).cached == 5


def test_the_probe_is_longer_than_two_blocks_of_any_engine() -> None:
    assert probe_tokens({}) >= 2 * LARGEST_BLOCK_TOKENS
    assert probe_tokens({"attention_block_tokens": 4096}) >= 2 * 4096


@pytest.mark.parametrize(
    ("log", "status", "answer", "word"),
    [
        (b"INFO 11-30 [block_pool.py:612] Successfully reset prefix cache\n", 200, None, "proved"),
        (b"\xff\xfe\rINFO Successfully reset prefix cache\r\n", 200, None, "proved"),
        # vLLM answers 200 all the same.
        (b"WARNING Failed to reset prefix cache because some blocks (12) are not freed yet\n", 200, None, "ignored"),
        # The second try is the one that counts.
        (b"Failed to reset prefix cache because x\nSuccessfully reset prefix cache\n", 200, None, "proved"),
        (b"[2026-05-15 08:40:32] Cache flushed successfully!\n", 200, None, "proved"),
        (b"Cache not flushed because there are pending requests. #queue-req: 0\n", 400, None, "ignored"),
        (b"", 200, {"id_slot": 0, "n_erased": 1745}, "proved"),
        (b"", 501, {"error": {}}, "ignored"),
        (b"INFO something else\n", 200, None, "not shown"),
        (b"", None, None, "not shown"),
    ],
)
def test_a_reset_is_proved_by_the_log_or_by_the_slot(log: bytes, status: int | None, answer: object, word: str) -> None:
    judgement = judge_reset(log, status=status, answer=answer)
    assert judgement.word == word
    assert judgement.why
