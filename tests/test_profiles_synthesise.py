"""Prompts rebuilt without text: length, shared prefixes, shape; and the round trip against text that is known."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson
import polars as pl
import pytest
from chats import chats, numbered, prompt_tokens
from hypothesis import given
from hypothesis import strategies as st

from profiles.digests import prompt_text
from profiles.prefixes import PrefixLinks, link
from profiles.prompts import Prompt, prompt_of
from profiles.ratios import FALLBACK_CHARS_PER_TOKEN, check_slope, learn_ratios
from profiles.records import KeyedFacts, KeyedMessage
from profiles.segments import SegmentTable, extent, segments_frame, segments_of, segments_of_keyed
from profiles.shapes import CALL_TOKENS, TOOL_TOKENS, bodies, words_in
from profiles.synthesise import Calibration, Prompts, RoundTrip, block_ids, measure
from profiles.words import WORDS
from replay.bodies import Override, prepare

CHARS = {"unit": "chars", "block": 64, "tail": "floor"}
TOKENS = {"unit": "tokens", "block": 512, "tail": "ceil"}
NUMBERS = ("prompt_tokens", "output_tokens", "input_chars", "blocks", "prefix_ref", "prefix_blocks")


def table(**columns: Any) -> pl.DataFrame:
    return pl.DataFrame(columns, schema_overrides={name: pl.Int64() for name in NUMBERS if name in columns})


def text_of(prompt: Prompt) -> str:
    return "".join(prompt_text(prompt, [[] for _ in prompt.messages]))


# --- Against the truth: conversations whose text and tokens are known.


@pytest.fixture(scope="module")
def truth() -> dict[str, Any]:
    requests = [messages for _, messages in chats(200, seed=1)]
    read = [prompt_of({"messages": messages}) for messages in requests]
    tokens = [numbered(prompt_tokens(messages)) for messages in requests]
    return {
        "texts": [text_of(prompt) for prompt in read],
        "segments": segments_frame(enumerate(map(segments_of, read))),
        "tokens": [len(each) for each in tokens],
        "hit": cache_hit(tokens),
    }


def cache_hit(prompts: Sequence[Any]) -> float:
    """What a cache of 16-token blocks without a limit would spare of these prompts."""
    links = PrefixLinks()
    for prompt in prompts:
        links.add(block_ids(prompt))
    return float(links.columns().prefix_blocks.sum() * 16 / sum(map(len, prompts)))


def recorded(truth: dict[str, Any], block: int) -> pl.DataFrame:
    """What an anonymised profile knows of them: lengths, and prefixes in blocks of so many characters."""
    texts = truth["texts"]
    found = link([[hash(text[:end]) for end in range(block, len(text) + 1, block)] for text in texts]).columns()
    return table(
        endpoint=["chat"] * len(texts),
        prompt_tokens=truth["tokens"],
        input_chars=[len(text) for text in texts],
        blocks=found.blocks,
        prefix_ref=[None if ref < 0 else ref for ref in found.prefix_ref.tolist()],
        prefix_blocks=found.prefix_blocks,
    )


def round_trip(truth: dict[str, Any], block: int) -> RoundTrip:
    prefix = CHARS | {"block": block}
    return measure(Prompts(recorded(truth, block), truth["segments"], prefix, seed=3))


def test_blocks_of_64_characters_keep_length_and_hit_rate_of_known_chats(truth: dict[str, Any]) -> None:
    trip = round_trip(truth, 64)
    assert trip.prompts == len(truth["texts"]) >= 400
    assert trip.error_mean < 1
    assert trip.hit_rebuilt == pytest.approx(truth["hit"], abs=0.01)
    assert trip.hit_recorded == pytest.approx(truth["hit"], abs=0.02)
    assert 0.6 < truth["hit"] < 0.9


def test_larger_blocks_have_better_lengths_and_miss_more_prefixes(truth: dict[str, Any]) -> None:
    trips = [round_trip(truth, block) for block in (16, 64, 256, 1024)]
    errors = [trip.error_mean for trip in trips]
    hits = [trip.hit_rebuilt or 0 for trip in trips]
    assert errors == sorted(errors, reverse=True)
    assert hits == sorted(hits, reverse=True)
    assert truth["hit"] - hits[-1] > 0.03  # 1,024 characters under-count


def test_sent_through_the_template_and_tokenizer_the_prompts_hit_as_often(truth: dict[str, Any]) -> None:
    made = bodies(Prompts(recorded(truth, 64), truth["segments"], CHARS, seed=3))
    tokens = [numbered(prompt_tokens(orjson.loads(body)["messages"])) for _, body in made]
    assert cache_hit(tokens) == pytest.approx(truth["hit"], abs=0.01)
    # The template comes on top, four tokens a message and three at the end: that is what a calibration takes off.
    over = sum(map(len, tokens)) / sum(truth["tokens"]) - 1
    assert 0 < over < 0.04


# --- Words.


def test_the_alphabet_is_sorted_plain_and_large_enough() -> None:
    assert list(WORDS) == sorted(set(WORDS))
    assert len(WORDS) >= 512
    assert all(word.isascii() and word.islower() and word.isalpha() and 3 <= len(word) <= 7 for word in WORDS)


trees = st.lists(
    st.tuples(st.integers(0, 5), st.integers(0, 6), st.integers(0, 63), st.integers(1, 400)), min_size=1, max_size=12
)


@given(trees, st.integers(0, 2**63), st.booleans())
def test_shared_blocks_have_equal_words_and_no_others_do(shape: list[tuple[int, ...]], seed: int, chars: bool) -> None:
    blocks: list[int] = []
    refs: list[int | None] = []
    shared: list[int] = []
    lengths: list[tuple[int, int]] = []
    for row, (back, own, tail, tokens) in enumerate(shape):
        ref = row - back if 0 < back <= row else None
        common = min(own, blocks[ref]) if ref is not None else 0
        blocks.append(common + own)
        refs.append(ref if common else None)
        shared.append(common)
        lengths.append((64 * (common + own) + tail, tokens))
    frame = table(
        prompt_tokens=[tokens for _, tokens in lengths] if chars else [max(1, size) for size, _ in lengths],
        input_chars=[size for size, _ in lengths],
        blocks=blocks,
        prefix_ref=refs,
        prefix_blocks=shared,
    )
    prompts = Prompts(frame, None, CHARS | {"unit": "chars" if chars else "tokens"}, seed=seed)
    drawn = [prompts.draw(row) for row in range(len(frame))]
    for row, words in enumerate(drawn):
        expected = max(int(prompts.asked[row]), int(np.rint(prompts.shared[row])))
        assert len(words) >= expected
        if not shared[row]:
            assert len(words) == prompts.asked[row]
        if (ref := refs[row]) is not None:
            common = int(prompts.at(row, 64 * shared[row]))
            assert common == int(prompts.at(ref, 64 * shared[row]))
            assert drawn[row][:common].tolist() == drawn[ref][:common].tolist()
            rest, other = drawn[row][common : common + 8], drawn[ref][common : common + 8]
            # By chance two words agree once in 768; eight never do.
            assert min(len(rest), len(other)) < 8 or rest.tolist() != other.tolist()


def test_another_seed_gives_other_words_and_the_same_seed_the_same() -> None:
    frame = table(prompt_tokens=[200], input_chars=[800])
    one, same, other = (Prompts(frame, None, None, seed=seed).draw(0).tolist() for seed in (1, 1, 2))
    assert one == same
    assert sum(a == b for a, b in zip(one, other, strict=True)) < 10


def test_blocks_of_tokens_have_a_word_per_token_and_no_length_error() -> None:
    # Mooncake: the last block is partial, and a prompt may go on from the middle of it.
    found = link([[0, 1], [0, 1], [0, 1, 2], [0, 3]]).columns()
    frame = table(
        prompt_tokens=[700, 700, 1100, 513],
        blocks=found.blocks,
        prefix_ref=found.prefix_ref,
        prefix_blocks=found.prefix_blocks,
    )
    prompts = Prompts(frame, None, TOKENS, seed=1)
    drawn = [prompts.draw(row).tolist() for row in range(4)]
    assert [len(words) for words in drawn] == [700, 700, 1100, 513]
    assert drawn[0] == drawn[1] == drawn[2][:700]
    assert drawn[3][:512] == drawn[0][:512]
    assert measure(prompts).error_max == 0


def test_each_language_keeps_its_density_inside_one_conversation() -> None:
    """1,280 characters of English at 5 a token, then as many of JSON at 2: the rest is what is left over."""
    frame = table(
        prompt_tokens=[256, 256 + 640],
        input_chars=[1280, 2560],
        blocks=[20, 40],
        prefix_ref=[None, 0],
        prefix_blocks=[0, 20],
    )
    prompts = Prompts(frame, None, CHARS, seed=1)
    assert [int(prompts.at(1, chars)) for chars in (640, 1280, 1920, 2560)] == [128, 256, 576, 896]


# --- Lengths.


def test_a_line_is_learned_per_model_class_and_language_and_marks_what_it_estimates() -> None:
    chars = [100 * at for at in range(1, 11)]
    frame = table(
        prompt_tokens=[7 + size // 4 for size in chars] + [3 + size // 2 for size in chars] + [None, None, None],
        input_chars=[*chars, *chars, 4000, 4000, 4000],
        model=["a"] * 10 + ["b"] * 10 + ["a", "b", "c"],
        workload=["chat"] * 23,
        language=["en"] * 10 + ["hu"] * 10 + ["en", "hu", "en"],
    )
    lengths = Prompts(frame, None, None, seed=1).lengths
    assert lengths.estimated.tolist() == [False] * 20 + [True] * 3
    assert lengths.tokens[20:22].tolist() == [1007, 2003]
    assert lengths.tokens[22] == pytest.approx(1505, abs=2)  # model c is not known: the line through all
    first = lengths.ratios[0]
    assert (first.model, first.workload, first.language, first.requests) == ("a", "chat", "en", 10)
    assert first.chars_per_token == pytest.approx(4)
    assert first.intercept == pytest.approx(7)


def test_without_any_count_a_token_is_four_characters_and_without_length_there_is_no_prompt() -> None:
    prompts = Prompts(table(prompt_tokens=[None, None], input_chars=[4000, None]), None, None, seed=1)
    assert prompts.lengths.ratios == ()
    assert prompts.asked.tolist() == [4000 / FALLBACK_CHARS_PER_TOKEN, 0]
    assert len(prompts.draw(1)) == 0
    assert [row for row, _ in bodies(prompts)] == [0]


def test_a_line_that_falls_goes_through_the_origin_instead() -> None:
    frame = pl.DataFrame(
        {"chars": [float(at) for at in range(1, 11)], "tokens": [float(11 - at) for at in range(1, 11)]}
    )
    (ratio,) = [
        ratio
        for ratio in learn_ratios(frame.with_columns(model=pl.lit("m"), workload=pl.lit("w"), language=pl.lit("en")))
        if ratio.level == 3
    ]
    assert (ratio.chars_per_token, ratio.intercept) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("pairs", "template", "slope", "warning"),
    [
        ([(100, 109), (1000, 1009)], 9, 1.0, ""),
        ([(100, 109), (1000, 1021)], 15, 1.0, ""),  # 1.3 % more: within the tolerance
        ([(100, 140), (1000, 1310)], 10, 1.3, "a word is 1.300 tokens here"),
        ([(100, 109), (100, 111)], 10, 1.0, "all prompts had one length"),
    ],
)
def test_the_engines_count_gives_the_templates_constant_and_checks_that_a_word_is_a_token(
    pairs: list[tuple[int, int]], template: int, slope: float, warning: str
) -> None:
    found = check_slope(pairs)
    assert found.template_tokens == template
    assert found.tokens_per_word == pytest.approx(slope)
    assert found.warning.startswith(warning)
    assert bool(found.warning) == bool(warning)
    calibrated = Calibration(found.template_tokens, found.tokens_per_word)
    assert calibrated.words(np.array([1310.0, 1.0])).tolist() == [round((1310 - template) / slope), 1.0]


def test_no_answers_calibrate_nothing() -> None:
    with pytest.raises(ValueError, match="no answer"):
        check_slope([])


# --- Shape.

TOOL_TALK: dict[str, Any] = {
    "tools": [{"type": "function", "function": {"name": "look_up", "description": "d" * 600}}] * 2,
    "messages": [
        {"role": "system", "content": "s" * 300},
        {"role": "user", "content": "u" * 400},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "x", "function": {"name": "look_up", "arguments": '{"query": "' + "q" * 300 + '"}'}}],
        },
        {"role": "tool", "tool_call_id": "x", "content": "r" * 500},
        {"role": "tool", "tool_call_id": "y", "content": "r" * 500},
        {"role": "user", "content": "again"},
    ],
}


def test_segments_tile_the_text_that_blocks_are_cut_from() -> None:
    prompt = prompt_of(TOOL_TALK)
    segments = segments_of(prompt)
    assert [role for role, _ in segments] == ["tools", "system", "user", "assistant", "call", "tool", "tool", "user"]
    assert extent(segments) == len(text_of(prompt))
    outside = prompt_of({"system": "s" * 30, **TOOL_TALK})
    assert [role for role, _ in segments_of(outside)][:3] == ["system", "tools", "system"]
    assert extent(segments_of(outside)) == len(text_of(outside))
    # A hashed capture does not say where calls stand: what is missing is put at the end.
    messages = [
        KeyedMessage(role=role, chars=chars, chain="")
        for role, chars in segments_of(outside)
        if role not in ("tools", "call")
    ]
    keyed = KeyedFacts(prompt_chars=len(text_of(outside)), messages=messages)
    tools_chars = dict(segments)["tools"]
    known = segments_of_keyed(keyed, endpoint="messages", tools_chars=tools_chars)
    assert [role for role, _ in known] == [
        "system",
        "tools",
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
        "rest",
    ]
    assert extent(known) == keyed.prompt_chars
    table_of = SegmentTable(segments_frame([(0, known), (2, segments)]), 3)
    assert [table_of[row] for row in range(3)] == [known, [], segments]


def rebuilt(body: dict[str, Any], tokens: int, **facts: Any) -> dict[str, Any]:
    """The body rebuilt of one that was recorded."""
    prompt = prompt_of(body)
    frame = table(
        endpoint=["chat"],
        prompt_tokens=[tokens],
        input_chars=[len(text_of(prompt))],
        tools=[len(body.get("tools", ()))],
        **{name: [value] for name, value in facts.items()},
    )
    ((_, made),) = bodies(Prompts(frame, segments_frame([(0, segments_of(prompt))]), CHARS, seed=1))
    return dict(orjson.loads(made))


def test_roles_sizes_tools_and_calls_keep_their_places() -> None:
    made = rebuilt(TOOL_TALK, 1000)
    assert [message["role"] for message in made["messages"]] == ["system", "user", "assistant", "tool", "tool", "user"]
    caller, one, two = made["messages"][2:5]
    assert [call["id"] for call in caller["tool_calls"]] == [one["tool_call_id"], two["tool_call_id"]]
    arguments = [orjson.loads(call["function"]["arguments"]) for call in caller["tool_calls"]]
    chars = len(text_of(prompt_of(TOOL_TALK)))
    density = 1000 / chars
    words = [len(message["content"].split()) for message in made["messages"]]
    assert words[0] == pytest.approx(308 * density, abs=1.5)
    assert words[1] == pytest.approx(406 * density, abs=1.5)
    assert words[3] == pytest.approx(506 * density, abs=1.5)
    assert words[4] == pytest.approx(506 * density - CALL_TOKENS, abs=1.5)  # its call had to be made up
    assert len(arguments[0]["text"].split()) == pytest.approx(322 * density - CALL_TOKENS, abs=3)
    assert arguments[1] == {}
    descriptions = sum(len(tool["function"]["description"].split()) for tool in made["tools"])
    tools_chars = dict(segments_of(prompt_of(TOOL_TALK)))["tools"]
    assert descriptions == pytest.approx((tools_chars + 7) * density - 2 * TOOL_TOKENS, abs=1.5)
    total = sum(words) + len(arguments[0]["text"].split()) + descriptions + 2 * TOOL_TOKENS + 2 * CALL_TOKENS
    assert total == 1000
    assert words_in(orjson.dumps(made)) is None  # a template writes more around tools


def test_parameters_stay_and_the_limit_is_the_recorded_length() -> None:
    plain = {"messages": [{"role": "user", "content": "x" * 100}]}
    made = rebuilt(plain, 30, model="m", stream=True, output_tokens=77, max_tokens=500, temperature=0.2, n=1)
    assert len(made.pop("messages")[0]["content"].split()) == 30
    assert made == {"model": "m", "stream": True, "max_tokens": 77, "temperature": 0.2}
    several = rebuilt(plain, 30, output_tokens=77, max_tokens=500, n=2, response_format="json_schema")
    assert (several["max_tokens"], several["n"]) == (39, 2)
    assert "response_format" not in several
    assert rebuilt(plain, 30, max_tokens=500)["max_tokens"] == 500


def test_other_endpoints_get_their_own_form_or_no_body() -> None:
    frame = table(
        endpoint=["completions", "embeddings", "messages", "chat"],
        prompt_tokens=[5, 6, 7, 8],
        system_chars=[0, 0, 0, 32],
        input_chars=[20, 24, 28, 80],
    )
    made = {row: orjson.loads(body) for row, body in bodies(Prompts(frame, None, CHARS, seed=1))}
    assert sorted(made) == [0, 1, 3]
    assert len(made[0]["prompt"].split()) == 5
    assert len(made[1]["input"].split()) == 6
    # Without segments: the system message, and one of the user for all turns.
    assert [(each["role"], len(each["content"].split())) for each in made[3]["messages"]] == [
        ("system", 4),
        ("user", 4),
    ]
    assert words_in(orjson.dumps(made[3])) == 8


def test_the_nonce_of_a_replay_parts_passes_and_keeps_sharing_inside_one() -> None:
    found = link([[0, 1], [0, 1, 2]]).columns()
    frame = table(
        prompt_tokens=[32, 48],
        input_chars=[130, 200],
        blocks=found.blocks,
        prefix_ref=found.prefix_ref,
        prefix_blocks=found.prefix_blocks,
    )
    made = [body for _, body in bodies(Prompts(frame, None, CHARS, seed=1))]

    def sent(body: bytes, name: str) -> str:
        marked = prepare(body, Override(cache_isolation="nonce"), pass_name=name, output_tokens=4)
        return str(orjson.loads(marked)["messages"][0]["content"])

    one, two, other = sent(made[0], "p1"), sent(made[1], "p1"), sent(made[0], "p2")
    assert one.split()[:31] == two.split()[:31]
    assert one.split()[0] == "[p1]"
    assert other.split()[0] == "[p2]"
    assert one.split()[1:] == other.split()[1:]
