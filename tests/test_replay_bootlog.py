"""Boot logs: the pattern table against its samples, and signatures that two boots share."""

from pathlib import Path

import pytest

from replay.bootlog import patterns, scan, signature

SAMPLES = Path(__file__).parents[2] / "shared" / "reference" / "boot_log_samples.txt"


def test_pattern_ids_are_unique_and_severities_known() -> None:
    table = patterns()
    assert len({pattern.id for pattern in table}) == len(table) == 70
    assert {pattern.severity for pattern in table} == {
        *("fatal", "fallback", "fallback-intended", "chronic-fallback", "runtime-slow", "config-warn", "kernel-warn"),
        *("hardware-warn", "benign", "fact", "ready", "cache-warm", "cache-cold", "reset-ok", "reset-fail"),
    }


@pytest.mark.skipif(not SAMPLES.exists(), reason="the collection of real log lines is not beside this checkout")
def test_every_pattern_matches_its_sample_and_no_other_pattern_does() -> None:
    seen = set()
    for line in SAMPLES.read_text(encoding="utf-8").splitlines():
        name, bar, text = line.partition("|")
        if not bar or line.startswith("#"):
            continue
        assert [pattern.id for pattern in patterns() if pattern.regex.search(text)] == [name], line
        seen.add(name)
    # P-, V-, S- and L-rows each have one; a row without a sample would go untested.
    assert {pattern.id for pattern in patterns()} - seen <= {"V07"}


def test_two_boots_print_the_same_signature() -> None:
    first = (
        "(EngineCore pid=62) WARNING 03-26 11:05:29 [fused_moe.py:1090] Using default MoE config. Performance might "
        "be sub-optimal! Config file not found at /usr/lib/vllm/E=256,N=512,device_name=NVIDIA_GB10.json"
    )
    second = first.replace("pid=62", "pid=9").replace("11:05:29", "12:59:01").replace("1090", "2001")
    second = second.replace("/usr/lib/vllm/", "/opt/other/place/")
    assert signature(first) == signature(second)
    assert "E=256,N=512,device_name=NVIDIA_GB10.json" in signature(first)
    assert signature(first) != signature(first.replace("N=512", "N=1024"))


def test_a_finding_counts_and_says_whether_it_came_while_serving() -> None:
    slow = "WARNING 06-21 07:54:39 [jit_monitor.py:103] Triton kernel JIT compilation during inference: k1. Slow."
    log = [
        "INFO 11-30 12:00:00 [cuda.py:1] Using FLASHINFER attention backend out of potential backends: ['FLASHINFER']",
        slow,
        "INFO:     Application startup complete.",
        slow,
        slow,
    ]
    found = scan(log, ready_line=3)
    assert [(item.id, item.count, item.line, item.while_serving) for item in found] == [
        ("P01", 1, 1, False),
        ("V16", 1, 2, False),
        ("P21", 1, 3, False),
        ("V16", 2, 4, True),
    ]
    assert found[0].fields == ["FLASHINFER", "['FLASHINFER']"]
