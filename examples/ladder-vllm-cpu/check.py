"""What the engine says twice, held against each other: first tokens of the recording, and drafts of the run.

1. The sum of the recorder's times to first token, from a request's dispatch to its first token, lies within 5 % and
   3 ms a request of the engine's own histogram (work/engine-ttft.json).
2. In each window whose requests all ended, the drafts that the answers tell (vLLM's --per-request-spec-decode-metrics)
   add up to what /metrics counted around it: drafts, drafted and accepted tokens, and accepted tokens by position.

usage: check.py [RUN]; the default is work/run. Exits with 1 where something does not hold.
"""

import json
import sys
from collections import defaultdict
from pathlib import Path

import polars as pl

from profiles.counters import Acceptance, acceptance, acceptance_told
from profiles.records import OK, Outcome
from profiles.runs import Boot, read_run

HERE = Path(__file__).parent


def check_first_tokens(profile: Path, engine: Path) -> bool:
    said = json.loads(engine.read_text(encoding="utf-8"))
    rows = pl.read_parquet(profile / "requests.parquet")
    recorded_s = float((rows["first_token_ns"] - rows["dispatch_ns"]).sum()) / 1e9
    off_s = recorded_s - said["sum_s"]
    holds = rows.height == said["requests"] and abs(off_s) <= 0.05 * said["sum_s"] + 0.003 * rows.height
    each_ms, share = off_s / rows.height * 1e3, off_s / said["sum_s"]
    print(f"first tokens: {recorded_s:.3f} s as recorded of {rows.height} requests,", end=" ")
    print(f"{said['sum_s']:.3f} s by the engine of {said['requests']}: {each_ms:+.2f} ms each, {share:+.1%}")
    return holds


def check_drafts(boots: tuple[Boot, ...]) -> bool:
    holds, windows = True, 0
    by_class: dict[tuple[str, str], list[Acceptance]] = defaultdict(list)
    for boot in boots:
        sent: dict[str, list[Outcome]] = defaultdict(list)
        for outcome in boot.outcomes:
            sent[outcome.window].append(outcome)
        for window in boot.facts.windows:
            outcomes = sent[window.name]
            counted = acceptance(window.counters or {})
            if counted is None or window.limit_ns is not None or any(outcome.outcome != OK for outcome in outcomes):
                continue
            windows += 1
            said = acceptance_told(outcome.response for outcome in outcomes)
            if said != counted or counted.problem is not None:
                holds = False
                print(f"{boot.path.name} {window.name}: the answers tell {said}, /metrics {counted}")
            if window.workload is not None:
                by_class[boot.facts.arm, window.workload].append(counted)
    measured, verb = sum(bool(boot.facts.windows) for boot in boots), "agree" if holds else "differ"
    print(f"drafts: in {windows} windows of {measured} boots, answers and /metrics {verb}")
    for (arm, name), parts in sorted(by_class.items()):
        same = "in every boot the same" if len(set(parts)) == 1 else f"{len(set(parts))} different boots"
        one = parts[0]
        print(f"  {arm:18} {name:16} {one.drafts:4g} drafts, {one.drafted:4g} tokens, {one.accepted:4g} held, "
              f"by position {one.per_position}, length {one.length:.2f}; {same}")  # fmt: skip
    return holds and windows > 0


def main() -> None:
    run = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "work/run"
    work = HERE / "work"
    recorded = check_first_tokens(work / "profile", work / "engine-ttft.json")
    sys.exit(not (check_drafts(read_run(run).boots) and recorded))


if __name__ == "__main__":
    main()
