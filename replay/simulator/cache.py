"""The prefix cache: blocks of 16 tokens, each named by a hash of itself and of everything before it.

A hit is the longest run of known blocks from the head of the prompt, as in vLLM. A salt enters the first block, so
prompts with different salts share nothing and prompts with the same salt share as usual.
"""

import hashlib
from collections.abc import Sequence

BLOCK_TOKENS = 16
_HASH_BYTES = 16


def block_hashes(words: Sequence[str], salt: str = "") -> list[bytes]:
    """The chained hashes of all full blocks of `words`. A block that is not full has no hash and is never shared."""
    above = hashlib.blake2b(salt.encode(), digest_size=_HASH_BYTES).digest()
    hashes: list[bytes] = []
    for start in range(0, len(words) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        block = "\0".join(words[start : start + BLOCK_TOKENS]).encode()
        above = hashlib.blake2b(above + block, digest_size=_HASH_BYTES).digest()
        hashes.append(above)
    return hashes


class PrefixCache:
    """Known blocks, the least recently used first to go."""

    def __init__(self, capacity_blocks: int) -> None:
        self._capacity = capacity_blocks
        self._known: dict[bytes, None] = {}  # a dict keeps its order: the oldest use comes first

    def __len__(self) -> int:
        return len(self._known)

    def count_hits(self, hashes: Sequence[bytes]) -> int:
        """How many blocks from the head are known. They count as used now."""
        hits = 0
        while hits < len(hashes) and hashes[hits] in self._known:
            hits += 1
        self.store(hashes[:hits])
        return hits

    def store(self, hashes: Sequence[bytes]) -> None:
        """Know these blocks, as used now."""
        # The head last, so that it leaves last: without it the blocks behind it are worthless.
        for block in reversed(hashes):
            self._known.pop(block, None)
            self._known[block] = None
        self._evict()

    def limit(self, capacity_blocks: int) -> None:
        """Change the room, because running requests took some or gave some back."""
        self._capacity = capacity_blocks
        self._evict()

    def clear(self) -> None:
        """Forget everything, as POST /reset_prefix_cache asks."""
        self._known.clear()

    def _evict(self) -> None:
        while len(self._known) > max(0, self._capacity):
            del self._known[next(iter(self._known))]
