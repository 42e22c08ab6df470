"""The machine: continuous batching as a state machine without a clock.

Each step takes every running request, within a budget of tokens: a decoding request brings its next token and the
drafts to be verified with it, a request whose prompt is not computed yet brings a chunk of it. What is left of the
budget admits waiting requests, first come first served. `Machine.plan_step` says when a step starts, when its tokens
leave and when it ends; `Machine.finish_step` applies it. Whoever drives the machine waits in between, in real time
(`server`) or not at all (tests).

What a step costs, with k drafts, D decoding rows, S rows that get drafts for their next step, P prompt tokens:

    target = step + verify × (D + drafts) + kv_read × context of the decoding rows
                  + prefill × P + pair × (P × context before and half of its own chunk)
    draft  = k × (draft + draft_row × S)

Tokens leave after `target` and the drafts are made behind their back, as vLLM's asynchronous scheduling does: a longer
draft therefore hardly moves the first token, and every later step pays for it.

Memory is reserved at admission for the whole answer, so nothing is ever preempted.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from replay.simulator.cache import BLOCK_TOKENS, PrefixCache


@dataclass(frozen=True, slots=True)
class Costs:
    """What the parts of a step cost, in nanoseconds. One set for all arms.

    They give 11.0 ms for a step at batch 1 with two drafts and 12.2 ms with three: a ratio of 1.11, the one that the
    acceptance and decode rates published for GB10 imply together. Prompts run at just under 20,000 tokens per second.
    """

    step_ns: float = 8_300_000  # the weights are read once, whatever the batch
    verify_ns: float = 260_000  # each decoded or drafted token; in a mixture of experts each brings experts of its own
    draft_ns: float = 900_000  # each pass of the draft layer
    draft_row_ns: float = 50_000  # each sequence in such a pass
    prefill_ns: float = 50_000  # each prompt token
    pair_ns: float = 0.5  # each prompt token times each token before it: attention
    kv_read_ns: float = 100  # each token of context that a decoding sequence reads
    host_ns: float = 1_200_000  # scheduling on the host; hidden behind the step by asynchronous scheduling
    eager_ns: float = 5_000_000  # kernel launches one by one; hidden by captured graphs


@dataclass(frozen=True, slots=True)
class Settings:
    """The flags that enter the model, and the speed of this boot."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 32_768
    kv_blocks: int = 8_192
    draft_tokens: int = 0
    prefix_caching: bool = True
    async_scheduling: bool = True
    enforce_eager: bool = False
    scale: float = 1.0  # all times are multiplied by it: the time scale, times the speed factor of the boot

    @property
    def kv_tokens(self) -> int:
        return self.kv_blocks * BLOCK_TOKENS


@dataclass(slots=True, eq=False)
class Job:
    """One request inside the machine. The first group is given, the second is the machine's."""

    id: str
    arrival_ns: int
    prompt_tokens: int
    output_tokens: int  # the answer's length, known beforehand; at least 1
    accept: Callable[[int, int], int]  # (tokens produced so far, drafts) to how many drafts hold
    blocks: Sequence[bytes] = ()  # hashes of the full blocks of prompt and answer: a next turn starts with both

    cached_tokens: int = 0
    computed_tokens: int = 0  # of the prompt
    produced_tokens: int = 0
    started_ns: int | None = None

    @property
    def decoding(self) -> bool:
        return self.computed_tokens >= self.prompt_tokens

    @property
    def need_blocks(self) -> int:
        return -(-(self.prompt_tokens + self.output_tokens) // BLOCK_TOKENS)


@dataclass(frozen=True, slots=True)
class Row:
    """What one request brings to a step: a chunk of its prompt, or its next token with drafts."""

    job: Job
    tokens: int

    @property
    def finishes_prefill(self) -> bool:
        return not self.job.decoding and self.job.computed_tokens + self.tokens >= self.job.prompt_tokens


@dataclass(frozen=True, slots=True)
class Step:
    """A planned step. Its tokens leave at `tokens_ns`; the machine is free again at `end_ns`."""

    start_ns: int
    tokens_ns: int
    end_ns: int
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Output:
    """The tokens that a step made for one request."""

    job: Job
    tokens: int
    last: bool
    planned_ns: int


@dataclass(slots=True)
class Counts:
    """What the machine has done since boot, in tokens unless the name says otherwise."""

    prompt: int = 0
    generation: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    draft_rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    accepted_at: list[int] = field(default_factory=list)  # by draft position
    steps: int = 0


def step_cost(rows: Sequence[Row], settings: Settings, costs: Costs) -> tuple[int, int]:
    """Nanoseconds from the start of a step to its tokens, and to its end. The formula stands at the top."""
    target = costs.step_ns + (costs.eager_ns if settings.enforce_eager else 0.0)
    drafting_rows = 0
    for row in rows:
        job = row.job
        if job.decoding:
            target += costs.verify_ns * row.tokens
            target += costs.kv_read_ns * (job.prompt_tokens + job.produced_tokens)
            drafting_rows += 1
        else:
            target += costs.prefill_ns * row.tokens
            target += costs.pair_ns * row.tokens * (job.computed_tokens + row.tokens / 2)
            drafting_rows += row.finishes_prefill
    draft = settings.draft_tokens * (costs.draft_ns + costs.draft_row_ns * drafting_rows) if drafting_rows else 0.0
    if settings.async_scheduling:
        return round(target * settings.scale), round((target + draft) * settings.scale)
    whole = round((target + draft + costs.host_ns) * settings.scale)
    return whole, whole


class Machine:
    """Waiting and running requests, the cache, the counts. Drive it with plan_step and finish_step in turn."""

    def __init__(self, settings: Settings, costs: Costs | None = None) -> None:
        self.settings = settings
        self.costs = costs or Costs()
        self.cache = PrefixCache(settings.kv_blocks)
        self.counts = Counts(accepted_at=[0] * settings.draft_tokens)
        self._waiting: deque[Job] = deque()
        self._running: list[Job] = []

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def held_blocks(self) -> int:
        """Blocks that running requests hold, shared heads counted for each of them."""
        return sum(job.need_blocks for job in self._running)

    def submit(self, job: Job) -> None:
        """Put a request in the queue. It joins the first step that starts at or after its arrival."""
        self._waiting.append(job)

    def abort(self, job: Job) -> bool:
        """Drop a request whose client has gone. False if it was not here any more."""
        for place in (self._waiting, self._running):
            if job in place:
                place.remove(job)
                return True
        return False

    def plan_step(self, free_ns: int) -> Step | None:
        """The next step of a machine that is free from `free_ns` on, or None when there is nothing to do.

        A request that arrives after the start waits for the following step, even if the driver wakes up late.
        """
        if self._running:
            start_ns = free_ns
        elif self._waiting:
            start_ns = max(free_ns, self._waiting[0].arrival_ns)
        else:
            return None
        budget = self.settings.max_num_batched_tokens
        rows: list[Row] = []
        for job in self._running:
            wanted = 1 + self.settings.draft_tokens if job.decoding else job.prompt_tokens - job.computed_tokens
            if taken := min(wanted, budget):
                rows.append(Row(job, taken))
                budget -= taken
        while budget and self._waiting and self._admits(self._waiting[0], start_ns):
            job = self._waiting.popleft()
            self._admit(job, start_ns)
            taken = min(job.prompt_tokens - job.computed_tokens, budget)
            rows.append(Row(job, taken))
            budget -= taken
        tokens_after_ns, end_after_ns = step_cost(rows, self.settings, self.costs)
        return Step(start_ns, start_ns + tokens_after_ns, start_ns + end_after_ns, tuple(rows))

    def finish_step(self, step: Step) -> list[Output]:
        """Apply a step: what came out for each request, in the order of its rows. Call it once, at `tokens_ns`."""
        self.counts.steps += 1
        outputs: list[Output] = []
        for row in step.rows:
            job = row.job
            if job not in self._running:  # aborted while the step ran
                continue
            made = self._verify(row) if job.decoding else self._prefill(row)
            if not made:
                continue
            made = min(made, job.output_tokens - job.produced_tokens)
            job.produced_tokens += made
            self.counts.generation += made
            last = job.produced_tokens >= job.output_tokens
            if last:
                self._running.remove(job)
                self._fit_cache()
                if self.settings.prefix_caching:
                    self.cache.store(job.blocks)
            outputs.append(Output(job, made, last, step.tokens_ns))
        return outputs

    def _admits(self, job: Job, start_ns: int) -> bool:
        return (
            job.arrival_ns <= start_ns
            and len(self._running) < self.settings.max_num_seqs
            and self.held_blocks + job.need_blocks <= self.settings.kv_blocks
        )

    def _admit(self, job: Job, start_ns: int) -> None:
        job.started_ns = start_ns
        if self.settings.prefix_caching:
            # The last token of a prompt is always computed: the first answer token comes out of it.
            usable = job.blocks[: (job.prompt_tokens - 1) // BLOCK_TOKENS]
            job.cached_tokens = self.cache.count_hits(usable) * BLOCK_TOKENS
            job.computed_tokens = job.cached_tokens
            self.counts.prefix_queries += job.prompt_tokens
            self.counts.prefix_hits += job.cached_tokens
        self._running.append(job)
        self._fit_cache()

    def _fit_cache(self) -> None:
        self.cache.limit(self.settings.kv_blocks - self.held_blocks)

    def _prefill(self, row: Row) -> int:
        """One token when the prompt is complete, none before."""
        job = row.job
        job.computed_tokens += row.tokens
        if self.settings.prefix_caching:
            self.cache.store(job.blocks[: job.computed_tokens // BLOCK_TOKENS])
        if not job.decoding:
            return 0
        self.counts.prompt += job.prompt_tokens
        return 1

    def _verify(self, row: Row) -> int:
        """The accepted drafts and the token that follows them."""
        drafts = row.tokens - 1
        if not drafts:
            return 1
        accepted = row.job.accept(row.job.produced_tokens, drafts)
        # Counted before the answer's end cuts them, as vLLM counts.
        self.counts.draft_rounds += 1
        self.counts.drafted += drafts
        self.counts.accepted += accepted
        for position in range(accepted):
            self.counts.accepted_at[position] += 1
        return 1 + accepted
