"""A RUN directory with known effects, written with the real file forms. No engine and no clock behind it.

Every request has a size of its own, the same in all arms; every boot draws a factor; every request draws some noise. An
arm's effect multiplies TTFT or TPOT, for all classes or for some. So the right verdict is known before the report.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from profiles.experiment import load_experiment
from profiles.files import append_line, make_folder, write_document, write_whole
from profiles.functional import FunctionalOutcome
from profiles.records import ENGINE, ERROR, OK, TIMEOUT, Outcome, ResponseFacts
from profiles.runs import (
    AA_SUFFIX,
    BOOT,
    BOOTS,
    EVENTS,
    FORMAT,
    FUNCTIONAL,
    MANIFEST,
    OUTCOMES,
    RULE,
    VERSION,
    BootFacts,
    LagFacts,
    LogFinding,
    ScheduleLag,
    WindowFacts,
    boot_folder_name,
)
from profiles.units import HOUR_NS, MILLISECOND_NS, MINUTE_NS, SECOND_NS

CLASSES = ("chat", "json_extraction", "rag_long", "short_qa")
TTFT_MS = {"chat": 150.0, "json_extraction": 200.0, "rag_long": 1500.0, "short_qa": 90.0}
TPOT_MS = 17.0
WALL_NS = 1_800_000_000 * SECOND_NS

RULE_HEAD = """
[rule]
id = "test-rule"
question = "Do the flags help?"
[profile]
path = "profile"
[engine]
argv = ["engine"]
"""
GUARDS = """
[[guard]]
metric = "ttft_p90"
margin = 0.10
[[guard]]
metric = "throughput@c=8"
direction = "higher"
margin = 0.05
role = "advisory"
"""


@dataclass(frozen=True, slots=True)
class Effect:
    """Relative changes of an arm: 0.05 is 5 % slower. A mapping gives them by class."""

    ttft: float | Mapping[str, float] = 0.0
    tpot: float | Mapping[str, float] = 0.0
    findings: tuple[LogFinding, ...] = ()
    selection: Mapping[str, Any] = field(default_factory=dict)
    kv_tokens: int | None = None
    changes: tuple[str, ...] = ()
    cached: int | None = None  # of 1000 prompt tokens
    acceptance: Mapping[str, float] = field(default_factory=dict)  # accepted tokens per draft, by class
    ttft_at: Mapping[int, float | Mapping[str, float]] = field(default_factory=dict)  # more of it in the sweep, by c
    tpot_at: Mapping[int, float | Mapping[str, float]] = field(default_factory=dict)
    tokens: Mapping[str, float] = field(default_factory=dict)  # output tokens of a class at c = 8, as a change
    throughput: float = 0.0  # output tokens of the mix at c = 8, as a change
    draft: int = 3  # tokens of a draft
    output: float | Mapping[str, float] = 0.0  # output tokens of each answer, as a change


@dataclass(slots=True)
class Synthetic:
    """What to write. `edit_outcome` and `edit_boot` may return something else, or None for nothing at all.

    `mode` is the kind of the windows that decide. At the recorded pace, observed or timed, it is one.
    """

    arms: dict[str, Effect]
    mode: str = "closed"
    sweep: tuple[int, ...] = ()  # levels, each with 16 requests
    per_class: bool = False  # a window at c = 8 for each class
    blocks: int = 5
    done_blocks: int | None = None
    requests: int = 60
    boot_sd: float = 0.004
    noise_sd: float = 0.02
    baseline: Effect = Effect()
    copy: Effect | None = None  # of the baseline; None: as the baseline
    aa: bool = True  # whether the baseline is booted twice in each block
    rule: str = GUARDS
    design: str = ""
    load: str = ""
    seed: int = 1
    scale: int = 1  # every latency times this
    drift: float = 0.0  # each boot is slower than the one before it by this much
    classes: tuple[str, ...] = CLASSES
    ttft_ms: Mapping[str, float] = field(default_factory=lambda: TTFT_MS)
    finished: bool = True
    edit_outcome: Callable[[str, int, Outcome], Outcome | None] = lambda arm, block, outcome: outcome
    edit_boot: Callable[[BootFacts], BootFacts | None] = lambda facts: facts
    edit_manifest: Callable[[dict[str, Any]], None] = lambda manifest: None
    events: list[dict[str, Any]] = field(default_factory=list)
    functional: Callable[[str, int], list[FunctionalOutcome]] | None = None  # what a boot's probes brought

    def write(self, path: Path) -> Path:
        make_folder(path)
        write_whole(path / RULE, self.toml().encode())
        experiment = load_experiment(path / RULE)
        names = ["v0", *self.arms, *(["v0" + AA_SUFFIX] if self.aa else [])]
        draw = np.random.default_rng(self.seed)
        order = [[str(name) for name in draw.permutation(names)] for _ in range(self.blocks)]
        manifest = self.manifest(order)
        manifest["rule"]["bytes_sha256"] = experiment.bytes_sha256
        manifest["rule"]["semantic_sha256"] = experiment.semantic_sha256
        self.edit_manifest(manifest)
        write_document(path / MANIFEST, manifest)
        append_line(path / EVENTS, {"at_ns": 0, "wall_ns": WALL_NS - 12 * HOUR_NS, "event": "rule_fixed"})
        sizes = np.exp(draw.normal(0, 0.4, self.requests))
        for block, slots in enumerate(order[: self.done_blocks], start=1):
            for slot, arm in enumerate(slots, start=1):
                self.write_boot(path, arm, block, slot, sizes, draw)
        for event in self.events:
            append_line(path / EVENTS, {"at_ns": 1, "wall_ns": WALL_NS, **event})
        if self.finished:
            append_line(path / EVENTS, {"at_ns": 2, "wall_ns": WALL_NS + HOUR_NS, "event": "run_done"})
        return path

    def toml(self) -> str:
        lines = [
            RULE_HEAD,
            f"[load]\nrequests_per_boot = {self.requests}\n{self.load}[design]\nblocks = {self.blocks}\n{self.design}",
        ]
        lines.append('[[arm]]\nname = "v0"\nbaseline = true')
        for name, effect in self.arms.items():
            changes = ", ".join(f'"{change}"' for change in effect.changes)
            lines.append(f'[[arm]]\nname = "{name}"\nargs = ["--{name}"]\nchanges = [{changes}]')
        return "\n".join(lines) + self.rule

    def windows(self) -> list[tuple[str, int, int]]:
        """Deciding windows: name, c, requests. Six, three and one tenth of the requests, as the arrivals are."""
        if self.mode != "closed":
            return [(self.mode, 0, self.requests)]
        first, second = round(0.6 * self.requests), round(0.3 * self.requests)
        counts = (first, second, self.requests - first - second)
        return [(f"closed-c{c}", c, count) for c, count in enumerate(counts, start=1) if count]

    def manifest(self, order: list[list[str]]) -> dict[str, Any]:
        windows = [
            {
                "name": name,
                "kind": self.mode,
                "c": c,
                "deciding": True,
                "workload": None,
                "limit_ns": None,
                "requests": n,
            }
            for name, c, n in self.windows()
        ]
        windows += [
            window | {"name": f"sweep-c{c}", "kind": "sweep", "c": c, "deciding": False, "requests": 16}
            for window in windows[:1]
            for c in self.sweep
        ]
        windows.append(windows[0] | {"name": "closed-c8", "kind": "closed", "c": 8, "deciding": False, "requests": 60})
        return {
            "format": FORMAT,
            "version": VERSION,
            "tool": "firsttoken test",
            "rule": {"id": "test-rule", "question": "Do the flags help?"},
            "profile": {"path": "profile", "sha256": "0" * 64, "arrivals_at": {"1": 600, "2": 300, "3": 100}},
            "operating_point": {
                "levels": [1, 2, 3],
                "weights": {"1": 0.6, "2": 0.3, "3": 0.1},
                "cover": 0.95,
                "max": 3,
                "mode": self.mode,
                "mode_reason": None,
                "pace": None if self.mode == "closed" else self.pace(),
            },
            "baseline": "v0",
            "aa": "v0" + AA_SUFFIX if self.aa else None,
            "skipped": [{"arm": "fastsafetensors", "reason": "runs out of memory on this platform while loading"}],
            "blocks": self.blocks,
            "order": order,
            "windows": windows,
        }

    def pace(self) -> dict[str, Any]:
        return {
            "recorded": 1300,
            "replayable": 1200,
            "requests": self.requests,
            "whole": False,
            "sessions_unknown": 0.12,
            "arrivals_at": self.arrivals_at(),
            "peak": 3,
        }

    def arrivals_at(self) -> dict[str, int]:
        """Six, three and one tenth of the requests meet c = 1, 2 and 3."""
        first, second = round(0.6 * self.requests), round(0.3 * self.requests)
        return {"1": first, "2": second, "3": self.requests - first - second}

    def effect_of(self, arm: str) -> Effect:
        if arm == "v0":
            return self.baseline
        if arm == "v0" + AA_SUFFIX:
            return self.copy if self.copy is not None else self.baseline
        return self.arms[arm]

    def write_boot(
        self, path: Path, arm: str, block: int, slot: int, sizes: "np.ndarray[Any, Any]", draw: np.random.Generator
    ) -> None:
        effect = self.effect_of(arm)
        facts = self.edit_boot(self.boot_facts(arm, block, slot, effect))
        place = (block - 1) * (len(self.arms) + 2) + slot
        speed = np.exp(draw.normal(0, self.boot_sd, 2) + self.drift * place)
        noise = np.exp(draw.normal(0, self.noise_sd, (self.requests, 2)))
        if facts is None:
            return
        folder = path / BOOTS / boot_folder_name(block, slot, arm, facts.attempt)
        make_folder(folder)
        lines = []
        number = 0
        for window, c, count in self.windows():
            for index in range(count):
                workload = self.classes[number % len(self.classes)]
                outcome = self.outcome(window, c, index, number, workload, effect, sizes[number], speed * noise[number])
                edited = self.edit_outcome(arm, block, outcome)
                if edited is not None:
                    lines.append(msgspec.json.encode(edited))
                number += 1
        for c in self.sweep:
            for outcome in self.swept(c, effect, np.random.default_rng((self.seed, block, slot, c))):
                edited = self.edit_outcome(arm, block, outcome)
                if edited is not None:
                    lines.append(msgspec.json.encode(edited))
        # Without the sync to disk of write_whole: a test makes thousands of these.
        (folder / OUTCOMES).write_bytes(b"".join(line + b"\n" for line in lines))
        (folder / BOOT).write_bytes(msgspec.json.encode(facts))
        if self.functional is not None:
            probed = [msgspec.json.encode(item) + b"\n" for item in self.functional(arm, block)]
            (folder / FUNCTIONAL).write_bytes(b"".join(probed))

    def swept(self, c: int, effect: Effect, draw: np.random.Generator) -> list[Outcome]:
        noise = np.exp(draw.normal(0, self.boot_sd, (16, 2)))
        names = [self.classes[number % len(self.classes)] for number in range(16)]
        for column, more in enumerate((effect.ttft_at, effect.tpot_at)):
            noise[:, column] *= [1 + _of(more.get(c, 0.0), name) for name in names]
        return [
            self.outcome(f"sweep-c{c}", c, number, number, name, effect, 1.0, noise[number])
            for number, name in enumerate(names)
        ]

    def outcome(
        self, window: str, c: int, index: int, request: int, workload: str, effect: Effect, size: float, factor: Any
    ) -> Outcome:
        sent_ns = 10 * SECOND_NS * (request + 1)
        first_ns = self.ttft_ms[workload] * size * (1 + _of(effect.ttft, workload)) * factor[0] * MILLISECOND_NS
        gap_ns = TPOT_MS * (1 + _of(effect.tpot, workload)) * factor[1] * MILLISECOND_NS
        tokens = round((40 + request % 50) * (1 + _of(effect.output, workload)))
        first_token_ns = sent_ns + self.scale * round(first_ns)
        last_token_ns = first_token_ns + self.scale * round(gap_ns * (tokens - 1))
        response = ResponseFacts(
            first_byte_ns=first_token_ns,
            first_token_ns=first_token_ns,
            last_token_ns=last_token_ns,
            first_event_tokens=1,
            prompt_tokens=1000,
            output_tokens=tokens,
            cached_tokens=effect.cached,
            output=True,
            done=True,
        )
        return Outcome(
            window=window,
            c=c,
            index=index,
            request=request,
            workload=workload,
            due_ns=sent_ns - (0 if c else MILLISECOND_NS // 10),
            send_started_ns=sent_ns,
            end_ns=last_token_ns,
            status=200,
            outcome=OK,
            response=response,
        )

    def schedule_lag(self, block: int) -> ScheduleLag:
        p99_ns = 100_000 * block
        return ScheduleLag(p50_ns=50_000, p99_ns=p99_ns, max_ns=2 * p99_ns, late_share=0.0, requests=self.requests)

    def boot_facts(self, arm: str, block: int, slot: int, effect: Effect) -> BootFacts:
        started_ns = HOUR_NS * (10 * block + slot)
        windows = [
            WindowFacts(
                name=name,
                kind=self.mode,
                c=c,
                deciding=True,
                started_ns=0,
                ended_ns=60 * SECOND_NS,
                requests=count,
                arrivals_at={} if c else self.arrivals_at(),
                schedule_lag=None if c else self.schedule_lag(block),
            )
            for name, c, count in self.windows()
        ]
        windows += [plain_window(f"sweep-c{c}", "sweep", c) for c in self.sweep]
        for workload, accepted in effect.acceptance.items():
            counters = {
                "vllm:spec_decode_num_drafts_total": 100.0,
                "vllm:spec_decode_num_accepted_tokens_total": 100 * accepted,
                "vllm:spec_decode_num_draft_tokens_total": 100.0 * effect.draft,
            }
            windows.append(
                WindowFacts(
                    name=f"single-{workload}",
                    kind="single",
                    c=1,
                    deciding=False,
                    workload=workload,
                    started_ns=0,
                    ended_ns=SECOND_NS,
                    requests=5,
                    counters=counters,
                )
            )
        windows.append(
            WindowFacts(
                name="closed-c8",
                kind="closed",
                c=8,
                deciding=False,
                limit_ns=60 * SECOND_NS,
                started_ns=0,
                ended_ns=70 * SECOND_NS,
                requests=90,
                output_tokens=round((6000 + 10 * block) * (1 + effect.throughput)),
            )
        )
        for workload in self.classes if self.per_class else ():
            tokens = round(6000 * (1 + effect.tokens.get(workload, 0.0)) + 10 * block)
            windows.append(
                plain_window(
                    f"closed-c8-for-60s-{workload}",
                    "closed",
                    8,
                    workload=workload,
                    limit_ns=60 * SECOND_NS,
                    output_tokens=tokens,
                )
            )
        return BootFacts(
            arm=arm,
            block=block,
            slot=slot,
            status="done",
            argv=["engine"],
            wall_ns=WALL_NS,
            mono_ns=0,
            spawned_ns=started_ns,
            ready_ns=started_ns + MINUTE_NS,
            gone_ns=started_ns + 20 * MINUTE_NS,
            stop="term",
            simulated=True,
            findings=list(effect.findings),
            selection=dict(effect.selection),
            kv_tokens=effect.kv_tokens,
            windows=windows,
            lag=LagFacts(p50_ns=100_000, p99_ns=2 * MILLISECOND_NS, max_ns=5 * MILLISECOND_NS, samples=1000),
        )


def plain_window(name: str, kind: str, c: int, **more: Any) -> WindowFacts:
    """A window that only describes."""
    return WindowFacts(
        name=name, kind=kind, c=c, deciding=False, started_ns=0, ended_ns=70 * SECOND_NS, requests=16, **more
    )


def with_windows(facts: BootFacts, wanted: str, **changes: Any) -> BootFacts:
    """The same boot, its windows of this name changed."""
    windows = [
        msgspec.structs.replace(window, **changes) if window.name == wanted else window for window in facts.windows
    ]
    return msgspec.structs.replace(facts, windows=windows)


def _of(change: float | Mapping[str, float], workload: str) -> float:
    return change if isinstance(change, float | int) else change.get(workload, 0.0)


def failed(outcome: Outcome) -> Outcome:
    """The same request, broken by the engine before a token came."""
    return msgspec.structs.replace(outcome, outcome=ERROR, origin=ENGINE, status=500, response=ResponseFacts())


def timed_out(outcome: Outcome, limit_ns: int) -> Outcome:
    """The same request, cut at the time-out before a token came."""
    assert outcome.send_started_ns is not None
    end_ns = outcome.send_started_ns + limit_ns
    return msgspec.structs.replace(outcome, outcome=TIMEOUT, origin=ENGINE, end_ns=end_ns, response=ResponseFacts())
