"""Functions that tasks on code are made of. Each runs; `$` words are names that a module chooses."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Source:
    """A function or class. `fault` turns a right line into a wrong one, where that can be done by one replacement."""

    name: str
    text: str
    fault: tuple[str, str] | None = None


SOURCES: tuple[Source, ...] = (
    Source(
        "merge_spans",
        '''
def merge_spans(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join spans that touch or overlap. The result is sorted and disjoint; empty spans vanish."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged
''',
        ("max(merged[-1][1], end)", "end"),
    ),
    Source(
        "group_by_$key",
        '''
def group_by_$key($items: Iterable[dict[str, str]]) -> dict[str, list[dict[str, str]]]:
    """Group $items by their $key, in order of first appearance. Those without one come under the empty string."""
    groups: dict[str, list[dict[str, str]]] = {}
    for $item in $items:
        groups.setdefault($item.get("$key", ""), []).append($item)
    return groups
''',
    ),
    Source(
        "edit_distance",
        '''
def edit_distance(left: str, right: str) -> int:
    """How many insertions, deletions and replacements turn one text into the other, at least."""
    previous = list(range(len(right) + 1))
    for row, a in enumerate(left, start=1):
        current = [row]
        for column, b in enumerate(right, start=1):
            cost = 0 if a == b else 1
            current.append(min(previous[column] + 1, current[column - 1] + 1, previous[column - 1] + cost))
        previous = current
    return previous[-1]
''',
        ("cost = 0 if a == b else 1", "cost = 1 if a == b else 0"),
    ),
    Source(
        "RecentCache",
        '''
class RecentCache:
    """Keeps the values that were used last. Asking for a value counts as use; the oldest one makes room."""

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self._capacity = capacity
        self._values: OrderedDict[str, object] = OrderedDict()
        self.hits = 0
        self.misses = 0

    def get(self, $key: str) -> object | None:
        if $key not in self._values:
            self.misses += 1
            return None
        self.hits += 1
        self._values.move_to_end($key)
        return self._values[$key]

    def put(self, $key: str, value: object) -> None:
        self._values[$key] = value
        self._values.move_to_end($key)
        while len(self._values) > self._capacity:
            self._values.popitem(last=False)
''',
        ("popitem(last=False)", "popitem(last=True)"),
    ),
    Source(
        "running_median",
        '''
def running_median(values: Iterable[float]) -> Iterator[float]:
    """The median of all values so far, after each of them. Two heaps hold the lower and the upper half."""
    lower: list[float] = []
    upper: list[float] = []
    for value in values:
        if lower and value > -lower[0]:
            heapq.heappush(upper, value)
        else:
            heapq.heappush(lower, -value)
        if len(lower) > len(upper) + 1:
            heapq.heappush(upper, -heapq.heappop(lower))
        elif len(upper) > len(lower):
            heapq.heappush(lower, -heapq.heappop(upper))
        if len(lower) > len(upper):
            yield -lower[0]
        else:
            yield (upper[0] - lower[0]) / 2
''',
        ("len(upper) > len(lower):", "len(upper) > len(lower) + 1:"),
    ),
    Source(
        "order_by_need",
        '''
def order_by_need(needs: dict[str, set[str]]) -> list[str]:
    """Names in an order in which each comes after all that it needs. Raises ValueError where they go in a circle."""
    waiting = {name: set(needed) for name, needed in needs.items()}
    for needed in list(waiting.values()):
        for name in needed:
            waiting.setdefault(name, set())
    ordered: list[str] = []
    while waiting:
        ready = sorted(name for name, needed in waiting.items() if not needed)
        if not ready:
            raise ValueError(f"a circle among {', '.join(sorted(waiting))}")
        ordered += ready
        for name in ready:
            del waiting[name]
        for needed in waiting.values():
            needed.difference_update(ready)
    return ordered
''',
    ),
    Source(
        "$Store",
        '''
class $Store:
    """Amounts per account. A transfer happens whole or not at all, and no account goes below zero."""

    def __init__(self) -> None:
        self._$total: dict[str, int] = defaultdict(int)
        self.history: list[tuple[str, str, int]] = []

    def deposit(self, account: str, amount: int) -> None:
        if amount <= 0:
            raise ValueError("a deposit is above zero")
        self._$total[account] += amount
        self.history.append(("", account, amount))

    def transfer(self, source: str, target: str, amount: int) -> None:
        if amount <= 0:
            raise ValueError("a transfer is above zero")
        if self._$total[source] < amount:
            raise ValueError(f"{source} holds {self._$total[source]}, which is less than {amount}")
        self._$total[source] -= amount
        self._$total[target] += amount
        self.history.append((source, target, amount))

    def $total(self, account: str) -> int:
        return self._$total[account]
''',
        ("[source] < amount", "[source] <= amount"),
    ),
    Source(
        "parse_duration",
        '''
def parse_duration(text: str) -> int:
    """Seconds of a text such as `1h30m` or `45s`. Raises ValueError for anything else."""
    units = {"d": 86400, "h": 3600, "m": 60, "s": 1}
    total = 0
    number = ""
    for character in text.strip().lower():
        if character.isdigit():
            number += character
        elif character in units and number:
            total += int(number) * units[character]
            number = ""
        else:
            raise ValueError(f"cannot read {text!r} as a duration")
    if number or not text.strip():
        raise ValueError(f"{text!r} ends without a unit")
    return total
''',
        ('"m": 60,', '"m": 6,'),
    ),
    Source(
        "TokenBucket",
        '''
class TokenBucket:
    """Lets `rate` calls per second through on average, and `burst` at once. The clock is an argument."""

    def __init__(self, rate: float, burst: int, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._tokens = float(burst)
        self._checked = clock()

    def allow(self, cost: float = 1.0) -> bool:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._checked) * self._rate)
        self._checked = now
        if self._tokens < cost:
            return False
        self._tokens -= cost
        return True

    def wait_time(self, cost: float = 1.0) -> float:
        missing = cost - self._tokens
        return max(0.0, missing / self._rate)
''',
        ("min(self._burst,", "max(self._burst,"),
    ),
    Source(
        "chunked",
        '''
def chunked($items: Iterable[object], size: int = CHUNK) -> Iterator[list[object]]:
    """Lists of `size` $items each; the last one may be shorter. Nothing is read ahead."""
    chunk: list[object] = []
    for $item in $items:
        chunk.append($item)
        if len(chunk) == size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
''',
    ),
    Source(
        "shortest_path",
        '''
def shortest_path(roads: dict[str, dict[str, float]], start: str, goal: str) -> tuple[float, list[str]]:
    """Length and stations of the shortest way. Raises KeyError where the goal cannot be reached."""
    best = {start: 0.0}
    before: dict[str, str] = {}
    waiting = [(0.0, start)]
    while waiting:
        length, here = heapq.heappop(waiting)
        if here == goal:
            path = [goal]
            while path[-1] != start:
                path.append(before[path[-1]])
            return length, path[::-1]
        if length > best[here]:
            continue
        for there, step in roads.get(here, {}).items():
            if length + step < best.get(there, float("inf")):
                best[there] = length + step
                before[there] = here
                heapq.heappush(waiting, (length + step, there))
    raise KeyError(goal)
''',
        ("return length, path[::-1]", "return length, path"),
    ),
    Source(
        "pack_runs",
        '''
def pack_runs(text: str) -> list[tuple[str, int]]:
    """Each run of equal characters as the character and its length."""
    runs: list[tuple[str, int]] = []
    for character in text:
        if runs and runs[-1][0] == character:
            runs[-1] = (character, runs[-1][1] + 1)
        else:
            runs.append((character, 1))
    return runs
''',
        ("runs[-1][1] + 1", "runs[-1][1] + 2"),
    ),
    Source(
        "sliding_maximum",
        '''
def sliding_maximum(values: Sequence[float], width: int) -> list[float]:
    """The largest value of each window of `width` neighbours, in one pass. Raises ValueError for a width below 1."""
    if width < 1:
        raise ValueError("a window holds at least one value")
    candidates: deque[int] = deque()
    maxima: list[float] = []
    for at, value in enumerate(values):
        while candidates and values[candidates[-1]] <= value:
            candidates.pop()
        candidates.append(at)
        if candidates[0] <= at - width:
            candidates.popleft()
        if at >= width - 1:
            maxima.append(values[candidates[0]])
    return maxima
''',
        ("candidates[0] <= at - width", "candidates[0] < at - width"),
    ),
    Source(
        "is_valid_number",
        '''
def is_valid_number(digits: str) -> bool:
    """Whether a card number's check digit is right: every second digit from the right is doubled, nines cast out."""
    if not digits.isdigit() or len(digits) < 2:
        return False
    checksum = 0
    for place, character in enumerate(reversed(digits)):
        value = int(character)
        if place % 2 == 1:
            value *= 2
            if value > 9:
                value -= 9
        checksum += value
    return checksum % 10 == 0
''',
        ("place % 2 == 1", "place % 2 == 0"),
    ),
    Source(
        "nearest",
        '''
def nearest(ordered: Sequence[float], wanted: float) -> float:
    """The value of an ascending sequence that lies nearest; the lower one of two. Raises ValueError if it is empty."""
    if not ordered:
        raise ValueError("nothing to choose from")
    at = bisect_left(ordered, wanted)
    if at == 0:
        return ordered[0]
    if at == len(ordered):
        return ordered[-1]
    below, above = ordered[at - 1], ordered[at]
    return below if wanted - below <= above - wanted else above
''',
        (
            "below if wanted - below <= above - wanted else above",
            "above if wanted - below <= above - wanted else below",
        ),
    ),
    Source(
        "Trie",
        '''
class Trie:
    """Words by their letters. `complete` lists the words that go on from a beginning, in alphabetical order."""

    def __init__(self, words: Iterable[str] = ()) -> None:
        self._children: dict[str, Trie] = {}
        self._ends = False
        for word in words:
            self.add(word)

    def add(self, word: str) -> None:
        node = self
        for letter in word:
            node = node._children.setdefault(letter, Trie())
        node._ends = True

    def complete(self, beginning: str) -> list[str]:
        node = self
        for letter in beginning:
            if letter not in node._children:
                return []
            node = node._children[letter]
        return [beginning + rest for rest in node._rests()]

    def _rests(self) -> Iterator[str]:
        if self._ends:
            yield ""
        for letter in sorted(self._children):
            for rest in self._children[letter]._rests():
                yield letter + rest
''',
        ("node._ends = True", "self._ends = True"),
    ),
    Source(
        "wrap_words",
        '''
def wrap_words(text: str, width: int) -> list[str]:
    """Lines of at most `width` characters, broken between words. A longer word stands alone on its line."""
    lines: list[str] = []
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}" if line else word
    if line:
        lines.append(line)
    return lines
''',
        ("len(line) + 1 + len(word) > width", "len(line) + len(word) > width"),
    ),
    Source(
        "summarise_$items",
        '''
def summarise_$items($items: Sequence[dict[str, float]], field: str) -> dict[str, float]:
    """Count, mean, smallest and largest value of a field over all $items that have it."""
    values = [$item[field] for $item in $items if field in $item]
    if not values:
        return {"count": 0}
    return {
        "count": len(values),
        "mean": sum(values) / len(values),
        "low": min(values),
        "high": max(values),
    }
''',
        ("sum(values) / len(values)", "sum(values) / len($items)"),
    ),
)
