"""Boot logs: how one is read, whatever an engine writes, and what two boots print alike."""

import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replay import bootlog
from replay.bootlog import LogFacts, Pattern, scan_log, signature, slow_lines

JIT = "WARNING 06-21 07:54:39 [jit_monitor.py:103] Triton kernel JIT compilation during inference: k1. Slow."
UP = "INFO:     Application startup complete."
CASES = Path(__file__).parents[2] / "shared" / "cases" / "files"


def scanned(tmp_path: Path, data: bytes, **options: object) -> LogFacts:
    log = tmp_path / "engine.log"
    log.write_bytes(data)
    return scan_log(log, **options)  # type: ignore[arg-type]  # options of a test


def found(facts: LogFacts) -> list[tuple[str, int, int, bool]]:
    return [(item.id, item.count, item.line, item.while_serving) for item in facts.findings]


def test_a_finding_counts_and_says_whether_it_came_while_serving(tmp_path: Path) -> None:
    backend = "INFO 11-30 12:00:00 [cuda.py:1] Using FLASHINFER attention backend out of potential backends: ['A']"
    boot = "\n".join((backend, JIT, UP, ""))
    facts = scanned(tmp_path, f"{boot}{JIT}\n{JIT}\n".encode(), ready_offset=len(boot))
    assert found(facts) == [("P01", 1, 1, False), ("V16", 1, 2, False), ("P21", 1, 3, False), ("V16", 2, 4, True)]
    assert facts.findings[0].fields == ["FLASHINFER", "['A']"]
    assert (facts.lines, facts.bytes) == (5, len(boot) + 2 * len(JIT) + 2)


def test_ready_is_a_byte_and_not_a_line(tmp_path: Path) -> None:
    """A line that was being written when the engine was ready started before."""
    data = f"{UP}\n{JIT}\n{JIT}\n".encode()
    into_the_second = len(UP) + 20
    facts = scanned(tmp_path, data, ready_offset=into_the_second)
    assert found(facts)[1:] == [("V16", 1, 2, False), ("V16", 1, 3, True)]
    exactly_at_the_second = len(UP) + 1
    assert found(scanned(tmp_path, data, ready_offset=exactly_at_the_second))[1:] == [("V16", 2, 2, True)]


def test_a_finding_names_the_window_in_which_it_came(tmp_path: Path) -> None:
    line = f"{JIT}\n".encode()
    data = UP.encode() + b"\n" + 4 * line
    ready = len(UP) + 1
    phases = [(ready, "warmup"), (ready + len(line), ""), (ready + 2 * len(line), "closed-c1")]
    facts = scanned(tmp_path, data, ready_offset=ready, phases=phases)
    assert [(item.window, item.count) for item in facts.findings] == [
        (None, 1),  # ready
        ("warmup", 1),
        (None, 1),
        ("closed-c1", 2),
    ]


def test_of_a_progress_bar_only_the_last_state_counts(tmp_path: Path) -> None:
    states = [
        f"Capturing CUDA graphs (decode, FULL): {n * 10:3d}%|##| {n}/10 [00:01<00:00, 3.1it/s]" for n in range(11)
    ]
    facts = scanned(tmp_path, ("\r" + "\r".join(states) + f"\n{UP}\n").encode())
    assert found(facts) == [("P25", 1, 1, False), ("P21", 1, 2, False)]
    assert facts.findings[0].signature == "Capturing CUDA graphs (decode, FULL)"
    assert facts.selection["graphs"] == {"decode, FULL": 10}


def test_colours_crlf_and_broken_bytes_hide_nothing(tmp_path: Path) -> None:
    coloured = b"\x1b[1;33mWARNING\x1b[0m Enforce eager set, \x1b[4mdisabling torch.compile\x1b[0m\r\n"
    broken = b"\xff\xfe caf\xe9 Cudagraph is disabled under eager mode \xf0\x28\r\n"
    facts = scanned(tmp_path, coloured + broken + b"Overriding cudagraph_mode to PIECEWISE")
    assert found(facts) == [("V08", 1, 1, False), ("V09", 1, 2, False), ("V07", 1, 3, False)]
    assert facts.findings[0].signature == "WARNING Enforce eager set, disabling torch.compile"


def test_a_line_of_megabytes_is_cut_and_the_next_one_is_read(tmp_path: Path) -> None:
    facts = scanned(tmp_path, b"a\n" + b"x" * 3_000_000 + f" {JIT}\n{UP}\n".encode())
    assert found(facts) == [("P21", 1, 3, False)]
    assert (facts.cut_lines, facts.lines) == (1, 3)


def test_a_bar_that_never_ends_its_line_takes_no_memory_and_keeps_the_count_of_lines(tmp_path: Path) -> None:
    bar = b"".join(b"\rloading %d%%|##| %d/9" % (n % 100, n) for n in range(20_000))
    assert len(bar) > 4 * bootlog.LONGEST_LINE_BYTES
    assert found(scanned(tmp_path, bar + b"\n" + UP.encode() + b"\n")) == [("P21", 1, 2, False)]


def test_a_warning_spread_over_lines_is_found_as_one(tmp_path: Path) -> None:
    rows = (Pattern("X1", "any", "hardware-warn", re.compile(r"UserWarning: .*capability 12\.1.*maximum is 12\.0")),)
    log = (
        "/usr/lib/python3/torch/cuda/__init__.py:435: UserWarning: \n"
        "    Found GPU0 NVIDIA GB10 which is of cuda capability 12.1.\n"
        "    The supported maximum is 12.0\n"
        "  warnings.warn(\n"
        "    Found GPU0 capability 12.1 ... maximum is 12.0, but in no warning\n"
        "done\n"
    )
    facts = scanned(tmp_path, log.encode(), table=rows)
    assert found(facts) == [("X1", 1, 1, False)]


def test_a_log_without_a_file_has_no_lines(tmp_path: Path) -> None:
    assert scan_log(tmp_path / "none.log") == LogFacts()
    assert slow_lines(tmp_path / "none.log", bootlog.patterns()) == 0


@settings(deadline=None, max_examples=40)
@given(st.randoms(use_true_random=False), st.sampled_from([64, 200, 4096]))
def test_blocks_change_nothing(tmp_path_factory: pytest.TempPathFactory, chance: random.Random, block: int) -> None:
    """However the bytes are cut into blocks, the same lines are found at the same numbers."""
    pieces = [JIT, UP, "x" * 90, "", "  indented", "a/b.py:3: UserWarning: GDS is not supported", "\r 10%|#|\r 20%|##|"]
    lines = [chance.choice(pieces) + chance.choice(("\n", "\r\n")) for _ in range(60)]
    data = "".join(lines).encode()
    ready = chance.randrange(len(data))
    folder = tmp_path_factory.mktemp("log")
    whole = scanned(folder, data, ready_offset=ready)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bootlog, "BLOCK_BYTES", block)
        assert scanned(folder, data, ready_offset=ready) == whole
    assert whole.lines == len(lines)
    starts = [sum(map(len, lines[:at])) for at, line in enumerate(lines) if JIT in line]
    counts = {item.while_serving: item.count for item in whole.findings if item.id == "V16"}
    assert counts.get(True, 0) == sum(start >= ready for start in starts)
    assert counts.get(False, 0) == sum(start < ready for start in starts)


def test_lines_of_one_shape_are_told_apart_by_their_digits(tmp_path: Path) -> None:
    """A line that was passed over must not hide one that differs from it in digits only."""
    rows = (Pattern("X1", "any", "fact", re.compile(r"level 3 reached")),)
    facts = scanned(tmp_path, b"level 2 reached\nlevel 2 reached\nlevel 3 reached\n", table=rows)
    assert found(facts) == [("X1", 1, 3, False)]


def test_too_many_different_findings_are_only_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootlog, "MOST_FINDINGS", 3)
    names = ["a", "b", "c", "d", "e", "e"]
    log = "".join(f"Triton kernel JIT compilation during inference: {name}. x\n" for name in names)
    facts = scanned(tmp_path, log.encode())
    assert (len(facts.findings), facts.uncounted) == (3, 3)


def test_a_key_among_the_arguments_is_kept_nowhere(tmp_path: Path) -> None:
    line = "INFO non-default args: {'api_key': ['tok-Abc123456789'], 'hf_token': 'hf_Abcdefghijklmnop1', 'port': 8000}"
    facts = scanned(tmp_path, line.encode())
    assert "123456789" not in repr(facts)
    assert "hf_Abc" not in repr(facts)
    assert facts.selection["arguments"]["port"] == "8000"


def test_slow_lines_are_counted_behind_an_offset(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text(f"{JIT}\n{UP}\n{JIT}\n{JIT}\nCompiling a graph for shape 3\n")
    assert slow_lines(log, bootlog.patterns()) == 4
    assert slow_lines(log, bootlog.patterns(), len(JIT) + 1) == 3


MOE = (
    "(EngineCore pid=62) WARNING 03-26 11:05:29 [fused_moe.py:1090] Using default MoE config. Performance might "
    "be sub-optimal! Config file not found at /usr/lib/vllm/E=256,N=512,device_name=NVIDIA_GB10.json"
)


DRAFT = (
    "0.00.593.923 I slot print_timing: id  {slot} | task {task} | draft acceptance = 0.37500 "
    "({accepted:5} accepted / {drafted:5} generated), mean len =  4.00"
)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (MOE, MOE.replace("pid=62", "pid=9").replace("11:05:29", "12:59:01").replace("1090", "2001")),
        (MOE, MOE.replace("/usr/lib/vllm/", "/opt/other/place/")),
        (MOE, "vllm-1  | " + MOE),
        ("INFO: took 14 secs, 0.65 GiB", "INFO: took 9 secs, 1.02 GiB"),
        ("GPU KV cache size: 729,696 tokens", "GPU KV cache size: 730,112 tokens"),
        (
            "[2026-02-07 12:48:39 TP0] WARNING server_args.py:2304: Overlap off",
            "[2026-02-08 01:00:00 TP0] WARNING server_args.py:9: Overlap off",
        ),
        (
            "[rank0]:W0326 11:04:11.434000 62 torch/_inductor/utils.py:1679] Not enough SMs",
            "[rank0]:W0327 01:00:00.1 7 torch/_inductor/utils.py:2] Not enough SMs",
        ),
        (
            "0.14.342.939 I srv  llama_server: listening on http://127.0.0.1:30000",
            "0.15.001.001 I srv  llama_server: listening on http://0.0.0.0:8",
        ),
        (
            DRAFT.format(slot=7, task=0, accepted=6, drafted=16),
            DRAFT.format(slot=0, task=82, accepted=230, drafted=231),
        ),
        (
            "0.00.287.491 E srv    send_error: task id = 2, error: Context size has been exceeded.",
            "0.09.287.491 E srv    send_error: task id = 66, error: Context size has been exceeded.",
        ),
        (
            "saved to /srv/c/torch_aot_compile/038e243545e5bff96487d565/rank_0_0/model",
            "saved to /x/torch_aot_compile/aa8e243545e5bff96487d565/rank_0_0/model",
        ),
    ],
)
def test_two_boots_print_the_same_signature(first: str, second: str) -> None:
    assert signature(first) == signature(second)


def test_a_line_that_each_request_prints_is_one_finding_however_many_there_are(tmp_path: Path) -> None:
    """llama.cpp prints its acceptance with each answer: 3,000 of them left no room for a line that matters."""
    log = tmp_path / "engine.log"
    lines = [DRAFT.format(slot=n % 8, task=n, accepted=n % 5, drafted=4 + n % 9) for n in range(3000)]
    log.write_text("\n".join([*lines, "Flash Attention was auto, set to disabled"]) + "\n")
    facts = scan_log(log)
    assert [(finding.id, finding.count) for finding in facts.findings] == [("L05", 3000), ("L01", 1)]
    assert facts.uncounted == 0


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (MOE, MOE.replace("N=512", "N=1024")),
        ("not found at /x/E=256,block_shape=[128,128].json", "not found at /x/E=256,block_shape=[128,256].json"),
        ("setting cudagraph_mode=PIECEWISE", "setting cudagraph_mode=NONE"),
        ("JIT compilation during inference: kernel_a.", "JIT compilation during inference: kernel_b."),
        ("max_num_scheduled_tokens is set to 2048", "max_num_scheduled_tokens is set to 4096"),
        ("Using FlashAttention version 2", "Using FlashAttention version 3"),
    ],
)
def test_what_tells_classes_apart_stays_in_a_signature(first: str, second: str) -> None:
    assert signature(first) != signature(second)


def test_a_signature_keeps_the_file_that_was_not_found() -> None:
    assert "E=256,N=512,device_name=NVIDIA_GB10.json" in signature(MOE)


@pytest.mark.skipif(not CASES.exists(), reason="the collection of trouble reports is not beside this checkout")
def test_a_log_of_no_encoding_is_read_to_its_end() -> None:
    """Case L07: one byte outside UTF-8 stopped a reader, and the engine froze behind its full pipe."""
    facts = scan_log(CASES / "L07.log")
    assert (facts.bytes, facts.lines, facts.cut_lines) == ((CASES / "L07.log").stat().st_size, 6004, 0)
