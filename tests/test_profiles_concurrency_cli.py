"""`firsttoken concurrency`: captures and profiles to text, JSON and a page, with a stated service time where nobody
knows the ends."""

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner, Result
from recorded import write_capture
from recorded import write_profile as record_profile

from profiles.concurrency_cli import concurrency
from profiles.errors import FirsttokenError, UsageError
from profiles.profile import Profile
from profiles.service_time import estimated_stays, parse_service_time
from profiles.units import MILLISECOND_NS as MS
from profiles.units import SECOND_NS as S
from profiles.write import write_profile

EXPERIMENT = """
[rule]
id = "r"
[profile]
path = "p"
operating_point = { basis = "arrivals", cover = 0.5 }
[engine]
argv = ["serve"]
[load]
also = ["single", "closed c=8 for 60s"]
[[arm]]
name = "base"
baseline = true
[[arm]]
name = "other"
args = ["--flag"]
"""


def run(*words: Any) -> Result:
    """The front door turns our errors into text, so here they come out as they are."""
    return CliRunner().invoke(concurrency, [str(word) for word in words], standalone_mode=False, catch_exceptions=False)


@pytest.fixture
def captured(tmp_path: Path) -> Path:
    """Six requests of half a second, of which the third and the sixth come while the one before runs."""
    return write_capture(tmp_path / "monday", ["qa", "json", "qa", "qa", "rag", "qa"])


def imported(out: Path, *, lengths: bool = True, synthetic: bool = False) -> Profile:
    """A trace without ends: two requests of 100 ms and 70 ms under 50ms,1000,10ms that overlap by 20 ms, and one
    without lengths."""
    table = pl.DataFrame(
        {
            "arrival_ns": [0, 80 * MS, 500 * MS],
            "endpoint": ["completions"] * 3,
            "path": ["/v1/completions"] * 3,
            "prompt_tokens": [20, 10, None] if lengths else [None] * 3,
            "output_tokens": [3, 1, 5],
        },
        schema_overrides={"prompt_tokens": pl.Int64},
    )
    return write_profile(
        out, table, source={"kind": "trace"}, windows=[(0, 100 * MS)], zero_wall_ns=None, synthetic=synthetic
    )


def test_a_capture_and_its_profile_say_the_same(tmp_path: Path) -> None:
    profile = record_profile(tmp_path / "p", ["qa", "json", "qa", "qa", "rag", "qa"])
    capture = tmp_path / "p-capture"
    of_capture, of_profile = (json.loads(run(path, "--json").stdout) for path in (capture, profile))
    assert of_capture == of_profile
    assert of_capture["time_ns_at"] == {"0": int(5.2 * S), "1": int(2.6 * S), "2": int(0.2 * S)}
    assert of_capture["arrivals_at"] == {"1": 4, "2": 2}
    assert sum(one["requests"] for one in of_capture["classes"].values()) == 6
    assert (of_capture["zone"], of_capture["estimate"], of_capture["marked"]) == ("UTC", None, {})


def test_the_text_begins_with_what_to_do_and_ends_with_the_zone(captured: Path) -> None:
    printed = run(captured, "--zone", "Asia/Tokyo")
    assert printed.stdout.startswith("100 % of requests arrive at c = 1–2; above 8 never in 8.00 s: measure TTFT at")
    assert printed.stdout.endswith("\nhours and days are those of Asia/Tokyo\n")
    assert printed.stderr == ""


def test_the_levels_of_an_experiment_are_marked(tmp_path: Path, captured: Path) -> None:
    (tmp_path / "e.toml").write_text(EXPERIMENT, encoding="utf-8")
    printed = run(captured, "--experiment", tmp_path / "e.toml").stdout
    assert "◆ the experiment decides at c = 1\n◇ it also measures a synthetic c = 8; no arrival reaches it" in printed
    marked = json.loads(run(captured, "--experiment", tmp_path / "e.toml", "--json").stdout)["marked"]
    assert marked == {"1": "deciding", "8": "synthetic"}


def test_a_page_is_written_and_its_path_printed(tmp_path: Path, captured: Path) -> None:
    printed = run(captured, "--html", tmp_path / "page.html")
    assert printed.stdout == f"{tmp_path / 'page.html'}\n"
    assert "above 8 never" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_two_hosts_whose_clocks_differ_are_put_in_step(tmp_path: Path) -> None:
    paths = [write_capture(tmp_path / name, ["qa"]) for name in ("a", "b")]
    together = json.loads(run(*paths, "--json").stdout)
    assert together["arrivals_at"] == {"1": 1, "2": 1}
    apart = json.loads(run(*paths, "--json", "--skew", "b=+1s").stdout)
    assert apart["arrivals_at"] == {"1": 2}


# --- A stated service time.


def test_a_stated_service_time_makes_an_estimate_that_says_so(tmp_path: Path) -> None:
    imported(tmp_path / "t")
    printed = run(tmp_path / "t", "--service-time", "50ms,1000,10ms", "--json")
    found = json.loads(printed.stdout)
    assert found["time_ns_at"] == {"0": 0, "1": 130 * MS, "2": 20 * MS}
    assert (found["arrivals_at"], found["observed_ns"]) == ({"1": 1, "2": 1}, 150 * MS)
    assert found["estimate"] == "50.0 ms + prompt tokens / 1000 per s + output tokens × 10.0 ms"
    assert found["headline"].startswith("Estimate, with a stated service time: ")
    assert printed.stderr == "warning: 1 of 3 requests have no lengths and are left out of the estimate\n"


def test_a_synthetic_load_has_no_service_time(tmp_path: Path) -> None:
    imported(tmp_path / "t", synthetic=True)
    with pytest.raises(UsageError, match="its arrivals are an order and no load") as caught:
        run(tmp_path / "t", "--service-time", "50ms,1000,10ms")
    assert caught.value.hint


def test_the_windows_stay_open_until_the_last_request_has_ended(tmp_path: Path) -> None:
    stays, warnings = estimated_stays(imported(tmp_path / "t"), parse_service_time("1s,1000,10ms"))
    assert stays.windows == [(0, 1_100 * MS)]
    assert stays.end_ns.tolist() == [1_050 * MS, 1_100 * MS]
    assert len(warnings) == 1


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("50ms,8000", "2 of three parts"),
        ("50,8000,20ms", "'50' is not a duration"),
        ("50ms,fast,20ms", "could not convert"),
        ("50ms,0,20ms", "must be above 0"),
        ("50ms,nan,20ms", "must be above 0"),
        ("50ms,inf,20ms", "must be above 0"),
    ],
)
def test_a_service_time_that_is_none_is_refused(text: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        parse_service_time(text)
    assert "50ms,8000,20ms" in caught.value.hint


def test_what_does_not_go_together_is_refused(tmp_path: Path, captured: Path) -> None:
    recorded = record_profile(tmp_path / "p", ["qa"])
    imported(tmp_path / "t")
    imported(tmp_path / "bare", lengths=False)
    service = ["--service-time", "50ms,1000,10ms"]
    cases: list[tuple[list[Any], str]] = [
        ([captured, recorded], "is a profile, and a profile is looked at alone"),
        ([tmp_path / "t"], "holds no ends of requests"),
        ([captured, *service], "a capture knows its ends"),
        ([recorded, *service], "holds the end of every request"),
        ([tmp_path / "bare", *service], "no request with both prompt and output tokens"),
        ([recorded, "--skew", "p=+2s"], "--skew is for captures"),
        ([captured, "--skew", "tuesday=+2s"], "tuesday"),
        ([captured, "--zone", "Mars"], "'Mars' is not a known time zone"),
        ([captured, "--html", tmp_path / "x.html", "--json"], "exclude each other"),
        ([tmp_path / "none"], "none: no such directory"),
        ([captured, "--experiment", tmp_path / "none.toml"], r"none\.toml: cannot be read"),
    ]
    for words, problem in cases:
        with pytest.raises(FirsttokenError, match=problem) as caught:
            run(*words)
        assert caught.value.exit_code == 2


def test_help_has_an_example_and_loads_nothing_heavy() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from profiles.concurrency_cli import concurrency\n"
        "concurrency(['--help'], standalone_mode=False)\n"
        "heavy = {'numpy', 'polars', 'scipy', 'altair', 'mitmproxy'} & set(sys.modules)\n"
        "sys.exit(f'imported: {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Example:" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
