"""Public traces are read exactly, and what is wrong with a file is said with its line."""

import json
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from public_traces import DATA, expected, needs_traces

from profiles.errors import FirsttokenError, FormatError, UsageError
from profiles.prefixes import infinite_hit_rate
from profiles.traces.formats import IMPORTS, check, recognise
from profiles.traces.imported import Asked, Imported, join
from profiles.traces.instants import date_ns, decimal_ns, seconds_text
from profiles.traces.steps import find_steps, gap_cv, spread
from profiles.traces.structure import structured

MILLISECOND_NS, SECOND_NS = 10**6, 10**9


def read(name: str, path: Path, **options: Any) -> Imported:
    asked = Asked(**options)
    found = check(name, asked).read(path, asked)
    assert found.rows_read == found.rows_kept + sum(found.dropped.values())
    assert found.rows_kept == found.requests.height
    assert found.requests["arrival_ns"].is_sorted()
    assert found.windows[0][0] == 0
    return found


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


# --- The public files, against values that were computed by other code.

PUBLIC = [
    ("azure", "azure/AzureLLMInferenceTrace_code.csv", "azure2023_code"),
    ("azure", "azure/AzureLLMInferenceTrace_conv.csv", "azure2023_conv"),
    ("mooncake", "mooncake/conversation_trace.jsonl", "mooncake_conversation"),
    ("mooncake", "mooncake/synthetic_trace.jsonl", "mooncake_synthetic"),
    ("burstgpt", "burstgpt/burstgpt1_head140.csv", "burstgpt1_head140_all"),
    ("burstgpt", "burstgpt/burstgpt3_head96.csv", "burstgpt3_head96"),
]


@needs_traces
@pytest.mark.parametrize(("name", "file", "trace"), PUBLIC, ids=[trace for _, _, trace in PUBLIC])
def test_a_public_trace_gives_the_reference_values(name: str, file: str, trace: str) -> None:
    found, known = read(name, DATA / file), expected(trace)
    arrival_ns = found.requests["arrival_ns"]

    assert found.requests.height == known["n"]
    assert arrival_ns[0] == 0
    assert arrival_ns[-1] == round(known["span_s"] * 1e9)
    assert (known["n"] - 1) / (arrival_ns[-1] / 1e9) == pytest.approx(known["rate_rps"], rel=1e-12)
    for column, key in (("prompt_tokens", "input_tokens"), ("output_tokens", "output_tokens")):
        assert found.requests[column].sum() == known[f"{key}_sum"]
        # Failed requests have no lengths here; the reference counts their zeros.
        lengths = found.requests[column].fill_null(0).to_numpy()
        for quantile in ("p1", "p10", "p25", "p50", "p75", "p90", "p99"):
            share = int(quantile[1:]) / 100
            assert np.quantile(lengths, share) == pytest.approx(known[key][quantile], rel=1e-12), (key, quantile)
    cv = gap_cv(arrival_ns.to_numpy())
    assert cv == pytest.approx(known["iat_cv"], rel=1e-9)


@needs_traces
@pytest.mark.parametrize("trace", ["conversation", "synthetic"])
def test_block_ids_of_mooncake_give_the_reference_hit_rate(trace: str) -> None:
    found, known = read("mooncake", DATA / f"mooncake/{trace}_trace.jsonl"), expected(f"mooncake_{trace}")["prefix"]
    assert found.ids is not None
    assert (len(found.ids.flat), int(found.ids.flat.max()) + 1) == (known["blocks"], known["unique_blocks"])
    assert (found.ids.block, found.ids.tail) == (512, "ceil")

    shaped = structured(found)
    requests = shaped.requests
    assert shaped.prefix == {"unit": "tokens", "block": 512, "tail": "ceil"}
    rate = infinite_hit_rate(requests["prefix_blocks"], requests["prompt_tokens"], 512)
    assert rate.cold == known["token_hit_rate"]
    if trace == "conversation":
        assert rate.second_half == 0.3981127342350043


@needs_traces
def test_failures_of_burstgpt_are_errors_without_lengths() -> None:
    found, known = read("burstgpt", DATA / "burstgpt/burstgpt1_head140.csv"), expected("burstgpt1_head140_nonzero")
    requests = found.requests
    assert requests.filter(outcome="error").height == 8
    load = requests.filter(outcome="ok")
    assert load.height == known["n"] == 132
    assert load["prompt_tokens"].median() == known["input_tokens"]["p50"]
    assert requests.filter(outcome="error")["prompt_tokens"].null_count() == 8
    assert any("8 of 140 requests have no token" in note for note in found.notes)
    assert set(requests["workload"]) == {"conversation", "api"}
    assert requests["workload_rule"][0] == "imported: Log Type"


@needs_traces
def test_sessions_of_burstgpt_3_have_the_reference_think_times() -> None:
    requests = read("burstgpt", DATA / "burstgpt/burstgpt3_head96.csv").requests
    known = expected("burstgpt3_head96")["sessions"]
    named = requests.filter(pl.col("session").is_not_null())
    assert (named.height, named["session"].n_unique()) == (known["rows_with_session"], known["sessions"])
    assert named["turn"].max() == known["turns_max"] - 1
    assert set(named["session_source"]) == {"imported"}
    think = named["think_ns"].drop_nulls().to_numpy() / 1e9
    assert len(think) == known["rows_with_session"] - known["sessions"]
    for quantile, value in known["think_s"].items():
        if quantile.startswith("p"):
            assert np.quantile(think, int(quantile[1:]) / 100) == pytest.approx(value, rel=1e-12)
    # A turn's parent is the turn before it in the same session.
    later = named.filter(pl.col("turn") > 0)
    parents = requests[later["parent"].to_list()]
    assert parents["session"].to_list() == later["session"].to_list()
    assert (parents["turn"] + 1).to_list() == later["turn"].to_list()


@needs_traces
def test_no_gap_of_azure_becomes_zero_and_the_row_without_newline_counts() -> None:
    found = read("azure", DATA / "azure/AzureLLMInferenceTrace_code.csv")
    assert found.zero_wall_ns == 1_700_158_623_979_960_000  # 2023-11-16 18:17:03.97996
    gaps = found.requests["arrival_ns"].diff().drop_nulls()
    assert (gaps > 0).all()
    assert found.requests.select("prompt_tokens", "output_tokens").row(-1) == (549, 173)
    assert any("name none, so UTC is taken" in note for note in found.notes)


def test_seven_digits_of_a_second_are_exact(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.0000001,10,1\r\n2023-11-16 18:17:03.0000002,5,2"
    )
    found = read("azure", written(tmp_path / "a.csv", text))
    assert found.requests["arrival_ns"].to_list() == [0, 100]
    assert found.windows == [(0, 101)]


# --- Units.


@needs_traces
@pytest.mark.parametrize("trace", ["conversation", "synthetic"])
def test_mooncake_declared_as_seconds_is_refused_with_a_hint(trace: str) -> None:
    path = DATA / f"mooncake/{trace}_trace.jsonl"
    with pytest.raises(FormatError, match=r"in s it has 0\.003.* requests/s over .* days") as refused:
        read("mooncake", path, unit="s")
    assert "In ms it would be 3." in refused.value.hint
    trusted = read("mooncake", path, unit="s", trust_unit=True)
    assert trusted.requests["arrival_ns"][-1] == 1000 * round(expected(f"mooncake_{trace}")["span_s"] * 1e9)


@needs_traces
def test_the_defaults_of_vllm_do_not_fit_mooncake_and_are_refused() -> None:
    path = DATA / "mooncake/conversation_trace.jsonl"
    with pytest.raises(FormatError, match="do not have one block id per 16 tokens") as refused:
        read("vllm-timed-trace", path)
    assert "about 512 tokens" in refused.value.hint
    with pytest.raises(FormatError, match="in s it has"):
        read("vllm-timed-trace", path, block=512)
    found = read("vllm-timed-trace", path, block=512, unit="ms")
    assert found.requests.height == 12031


def test_labels_of_a_timed_trace_name_its_fields(tmp_path: Path) -> None:
    path = written(
        tmp_path / "t.jsonl", '{"t": 0.5, "in": 20, "out": 3, "ids": [7, 9]}\n{"t": 1, "in": 5, "out": 1, "ids": [7]}\n'
    )
    labels = (("timestamp", "t"), ("input_length", "in"), ("output_length", "out"), ("hash_ids", "ids"))
    found = read("vllm-timed-trace", path, labels=labels)
    assert found.requests.select("arrival_ns", "prompt_tokens", "output_tokens").rows() == [
        (0, 20, 3),
        (500_000_000, 5, 1),
    ]
    with pytest.raises(UsageError, match="not a field"):
        read("vllm-timed-trace", path, labels=(("output", "out"),))


@pytest.mark.parametrize(
    ("name", "option"), [("azure", {"unit": "ms"}), ("har", {"block": 16}), ("mooncake", {"zone": "+01:00"})]
)
def test_an_option_that_a_format_cannot_use_is_refused(name: str, option: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="makes no sense"):
        check(name, Asked(**option))


DECIMALS = st.decimals(allow_nan=False, allow_infinity=False, places=None, min_value=-(10**8), max_value=10**8)


@given(st.lists(DECIMALS, min_size=1, max_size=20), st.sampled_from(["s", "ms", "us", "ns"]))
def test_decimals_become_nanoseconds_exactly(values: list[Decimal], unit: str) -> None:
    scale = {"s": 10**9, "ms": 10**6, "us": 1000, "ns": 1}[unit]
    for form in ("f", ""):  # 0.0000015 and 1.5E-6
        texts = [format(value, form) for value in values]
        exact = [int((value * scale).to_integral_value(ROUND_HALF_UP)) for value in values]
        assert decimal_ns(pl.Series(texts), unit).to_list() == exact


@given(st.integers(-(2**62), 2**62))
def test_seconds_as_text_and_back(ns: int) -> None:
    assert decimal_ns(pl.Series([seconds_text(ns)]), "s").to_list() == [ns]


@pytest.mark.parametrize(
    "text", ["", "abc", "1,5", "--1", "1.2.3", "nan", "inf", "0x10", "1e400", "9223372037", "٣", "1 2"]
)
def test_what_is_no_instant_is_null(text: str) -> None:
    assert decimal_ns(pl.Series([text]), "s").to_list() == [None]


def test_dates_keep_every_digit_and_their_zone() -> None:
    texts = ["2023-11-16 18:17:03.9799600", "2023-11-16T19:17:03,979960001+01:00", "2023-11-16T18:17:03Z", "no"]
    found, zoned = date_ns(pl.Series(texts))
    assert found.to_list() == [1700158623979960000, 1700158623979960001, 1700158623000000000, None]
    assert not zoned
    summer, _ = date_ns(pl.Series(["2023-07-01 12:00:00", "2023-03-26 02:30:00"]), "Europe/Budapest")
    assert summer.to_list() == [1688205600 * SECOND_NS, None]  # the second was skipped
    assert date_ns(pl.Series(["2023-07-01 12:00:00"]), "-05:30")[0].to_list() == [1688232600 * SECOND_NS]


# --- Order and granularity.


@needs_traces
def test_batches_are_reported_and_spread_only_where_asked() -> None:
    path = DATA / "mooncake/conversation_trace.jsonl"
    plain = read("mooncake", path)
    assert any("1180 instants, 3.00 s apart, 90.2 %" in note for note in plain.notes)
    even = read("mooncake", path, dequantise=7)
    assert (even.seed, plain.seed) == (7, None)
    moved = even.requests["arrival_ns"].to_numpy() - plain.requests["arrival_ns"].to_numpy()
    assert 0 <= moved.min() < moved.max() < 3.003 * SECOND_NS
    assert gap_cv(even.requests["arrival_ns"].to_numpy()) == pytest.approx(1.01, abs=0.02)
    assert even.requests["prompt_tokens"].to_list() == plain.requests["prompt_tokens"].to_list()
    assert even.windows[0][0] == 0
    assert even.requests["arrival_ns"].equals(read("mooncake", path, dequantise=7).requests["arrival_ns"])


@given(st.lists(st.integers(0, 50), min_size=1, max_size=200), st.integers(0, 5))
def test_spreading_keeps_order_and_stays_inside_the_step(instants: list[int], seed: int) -> None:
    arrival_ns = np.sort(np.array(instants, dtype=np.int64)) * SECOND_NS
    moved = spread(arrival_ns, SECOND_NS, seed)
    assert (np.diff(moved) >= 0).all()
    assert (moved // SECOND_NS * SECOND_NS == arrival_ns).all()


def test_steps_of_a_clock() -> None:
    milliseconds = np.cumsum(np.random.default_rng(1).integers(1, 900, 500)) * MILLISECOND_NS
    assert find_steps(milliseconds).resolution_ns == MILLISECOND_NS
    assert not find_steps(milliseconds).coarse
    batches = np.repeat(np.cumsum(np.random.default_rng(1).integers(2997, 3004, 300)), 9) * MILLISECOND_NS
    found = find_steps(batches)
    assert found.coarse
    assert found.step_ns == pytest.approx(3 * SECOND_NS, rel=0.001)


def test_a_file_out_of_order_is_sorted_and_says_so(tmp_path: Path) -> None:
    line = '{{"timestamp": {}, "input_length": {}, "output_length": 1, "hash_ids": [{}]}}\n'
    path = written(tmp_path / "m.jsonl", "".join(line.format(at, 100 - at, at) for at in (0, 40, 20, 60)))
    found = read("mooncake", path)
    assert found.requests["prompt_tokens"].to_list() == [100, 80, 60, 40]
    assert found.ids is not None
    assert found.ids.column().to_list() == [[0], [2], [1], [3]]
    assert "order: 1 of 4 rows stand after a later one; sorted by arrival" in found.notes
    back = written(tmp_path / "b.jsonl", "".join(line.format(at, 100 - at, at) for at in (60, 40, 20, 0)))
    assert "order: back to front; sorted by arrival" in read("mooncake", back).notes


# --- Block ids.


def test_ids_above_32_bits_are_numbered_anew_and_never_cut(tmp_path: Path) -> None:
    ids = [[2**63 + 5, 7], [2**63 + 5, 2**32 + 7], [5]]
    rows = [
        {"timestamp": at, "input_length": 512 * len(each), "output_length": 1, "hash_ids": each}
        for at, each in enumerate(ids)
    ]
    found = read("mooncake", written(tmp_path / "m.jsonl", "\n".join(map(json.dumps, rows))))
    assert found.ids is not None
    assert found.ids.column().to_list() == [[0, 1], [0, 2], [3]]
    assert any("above 32 bits" in note for note in found.notes)


@pytest.mark.parametrize(("lengths", "tail"), [((100, 64, 130), "floor"), ((40, 64, 100), "ceil")])
def test_the_rule_of_the_tail_is_recorded(tmp_path: Path, lengths: tuple[int, ...], tail: str) -> None:
    counts = [n // 64 if tail == "floor" else -(-n // 64) for n in lengths]
    rows = [
        {"timestamp": at, "input_length": n, "output_length": 1, "hash_ids": list(range(count))}
        for at, (n, count) in enumerate(zip(lengths, counts, strict=True))
    ]
    found = read("mooncake", written(tmp_path / "m.jsonl", "\n".join(map(json.dumps, rows))), block=64)
    assert found.ids is not None
    assert found.ids.tail == tail


def test_later_turns_of_aiperf_give_only_what_is_new(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"session_id": "a", "timestamp": 0, "input_length": 1100, "output_length": 50, "hash_ids": [1, 2, 3]},
        {"session_id": "a", "delay": 2000, "input_length": 30, "output_length": 10, "hash_ids": [4]},
        {"timestamp": 9000, "input_length": 5, "output_length": 1, "hash_ids": [9]},
    ]
    found = read("mooncake", written(tmp_path / "m.jsonl", "\n".join(map(json.dumps, rows))))
    requests = structured(found).requests
    assert requests["arrival_ns"].to_list() == [0, 2 * SECOND_NS, 9 * SECOND_NS]
    assert requests["prompt_tokens"].to_list() == [1100, 1100 + 50 + 30, 5]
    assert requests["prefix_blocks"].to_list() == [0, 2, 0]  # the full blocks of the turn before
    assert requests["session"].to_list() == [0, 0, None]
    assert requests["think_ns"].to_list() == [None, 2 * SECOND_NS, None]
    assert requests["link"].to_list() == ["root", "declared", None]


def test_prompts_in_a_trace_are_kept_only_where_asked_and_without_keys(tmp_path: Path) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "api_key": "sk-1234567890abcdef"}
    rows = [
        {"timestamp": 0, "payload": body, "output_length": 4},
        {"timestamp": 5, "text_input": "a b", "output_length": 9},
    ]
    path = written(tmp_path / "m.jsonl", "\n".join(map(json.dumps, rows)))
    plain = read("mooncake", path)
    assert plain.bodies == []
    assert plain.requests["messages"].to_list() == [1, 1]
    kept = read("mooncake", path, bodies=True)
    assert [json.loads(held)["messages"][0]["content"] for _, held in kept.bodies] == ["hi", "a b"]
    assert b"sk-1234567890abcdef" not in b"".join(held for _, held in kept.bodies)
    assert kept.requests["body"].to_list() == [True, True]


# --- Rows that cannot be read.


def test_bad_rows_are_dropped_with_their_line_and_the_rest_is_read(tmp_path: Path) -> None:
    lines = [f"2023-11-16 18:17:{at % 60:02d}.5,{at},2" for at in range(1, 300)]
    lines[6] = "2023-11-16 18:17:99,8,2"
    lines[100] = "2023-11-16 18:17:01,12"
    path = written(tmp_path / "a.csv", "\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *lines, ""]))
    found = read("azure", path)
    assert found.dropped_lines == ((8, "TIMESTAMP is no date"), (102, "too few fields"))
    assert (found.rows_read, found.rows_kept) == (299, 297)


def test_too_many_bad_rows_are_an_error_that_shows_the_first(tmp_path: Path) -> None:
    good = '{"timestamp": 1, "input_length": 2, "output_length": 3, "hash_ids": [1]}\n'
    path = written(tmp_path / "m.jsonl", good * 3 + '{"timestamp": 1}\n' + "{oops\n" + good)
    with pytest.raises(FormatError, match="line 4: no input_length; line 5: not JSON") as refused:
        read("mooncake", path)
    assert refused.value.line == 4
    assert "--max-bad" in refused.value.hint
    assert read("mooncake", path, max_bad=0.5).rows_kept == 4


def test_a_torn_last_line_is_said_and_is_no_fault_of_the_file(tmp_path: Path) -> None:
    good = '{"timestamp": 1, "input_length": 2, "output_length": 3, "hash_ids": [1]}\n'
    found = read("mooncake", written(tmp_path / "m.jsonl", good * 2 + good[:20]))
    assert found.dropped == {"torn last line: not JSON": 1}
    assert found.dropped_lines == ((3, "torn last line: not JSON"),)


def test_line_numbers_stay_exact_across_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from profiles.traces import rows

    monkeypatch.setattr(rows.read_pieces, "__defaults__", (64,))
    lines = ["start,end", *(f"{at},{at + 1}" for at in range(50))]
    lines[20] = ""
    lines[33] = 'x,"1'
    lines[44] = '"43","44"'
    found = read("intervals", written(tmp_path / "i.csv", "\r\n".join(lines)), max_bad=1)
    assert found.dropped_lines == ((34, "start is no number"),)
    assert found.rows_kept == 48


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "is empty"),
        (b"\xff\xfeT\x00", "is UTF-16"),
        (b"\x1f\x8b\x08", "is compressed"),
        (b"a,b\n1,2\n", "no column 'TIMESTAMP'"),
        (b"TIMESTAMP,ContextTokens,GeneratedTokens\n", "no request of the format azure"),
    ],
)
def test_a_file_that_is_something_else_is_named(tmp_path: Path, data: bytes, problem: str) -> None:
    with pytest.raises(FormatError, match=problem):
        read("azure", written(tmp_path / "a.csv", data))


@pytest.mark.parametrize("name", IMPORTS)
def test_no_reader_fails_otherwise_than_by_an_error_of_ours(tmp_path: Path, name: str) -> None:
    read = IMPORTS[name].read
    for number, data in enumerate((b"", b"\x00\xff\xfe" * 40, b"{}", b"[1]\n{}\n", b'{"log": 3}', b"a,b\n")):
        path = written(tmp_path / f"{number}", data)
        with pytest.raises(FirsttokenError):
            read(path, Asked())
    with pytest.raises(FormatError, match="no such file"):
        read(tmp_path / "absent", Asked())


def test_a_format_is_recognised_only_where_it_is_certain(tmp_path: Path) -> None:
    heads = {
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n": "azure",
        "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n": "burstgpt",
        "start,end,class\n": "intervals",
        '{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {}}\n': "openai-batch",
        '{\n "log": {"version": "1.2", "creator": {}, "entries": []}}': "har",
    }
    for number, (head, name) in enumerate(heads.items()):
        assert recognise(written(tmp_path / f"{number}", head)) == name
    with pytest.raises(FormatError, match="not certain"):
        recognise(written(tmp_path / "m", '{"timestamp": 0, "input_length": 1}\n'))


def test_files_of_one_clock_are_joined_and_others_refused(tmp_path: Path) -> None:
    head = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    late = read("azure", written(tmp_path / "b.csv", head + "2023-11-16 18:17:05,7,1\n"))
    early = read("azure", written(tmp_path / "a.csv", head + "2023-11-16 18:17:03.5,9,1\n"))
    both = join([late, early])
    assert both.requests["arrival_ns"].to_list() == [0, 1_500_000_000]
    assert both.requests["prompt_tokens"].to_list() == [9, 7]
    assert both.zero_wall_ns == early.zero_wall_ns
    line = '{"timestamp": 1, "input_length": 2, "output_length": 3, "hash_ids": [1]}\n'
    trace = read("mooncake", written(tmp_path / "m.jsonl", line))
    with pytest.raises(UsageError, match="own clock"):
        join([trace, trace])
