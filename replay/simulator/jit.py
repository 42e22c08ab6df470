"""Kernels that are compiled when a shape comes for the first time, in the middle of serving.

A prefill of a new size and a batch of a new size each stop the whole engine once. Sizes fall into buckets of powers of
two. A warm-up that plays every measured shape pays all of it before the first window.
"""

from dataclasses import replace
from typing import Final

from profiles.units import MILLISECOND_NS
from replay.simulator.steps import Step

COMPILE_NS: Final = 400 * MILLISECOND_NS


class JitShapes:
    """Which buckets have been seen."""

    def __init__(self, scale: float) -> None:
        self._compile_ns = round(COMPILE_NS * scale)
        self._seen: set[tuple[str, int]] = set()

    def compile(self, step: Step) -> tuple[Step, list[str]]:
        """The step with the time of what it has to compile first, and the names of those kernels."""
        decoding = sum(row.job.decoding for row in step.rows)
        prefill = sum(row.tokens for row in step.rows if not row.job.decoding)
        shapes = {("_decode_attention_kernel", decoding), ("_build_prefill_chunk_metadata_kernel", prefill)}
        buckets = {(kernel, size.bit_length()) for kernel, size in shapes if size}
        new = sorted(buckets - self._seen)
        self._seen |= buckets
        late_ns = self._compile_ns * len(new)
        later = replace(step, tokens_ns=step.tokens_ns + late_ns, end_ns=step.end_ns + late_ns)
        return later if new else step, [kernel for kernel, _ in new]
