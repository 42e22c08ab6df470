"""The answer of an engine as the messages that a client sends back of it in the next turn. In memory only, and bounded.

Reasoning is left out: clients drop it, and the canonical form of a message knows none (`digests`). Of several choices
the first counts. What is kept has the form of request messages, so that `prompts` reads both alike:

    chat, completions, messages   one message of the assistant: text, names and arguments of tool calls
    responses                     the output items as they are, without those of type reasoning
"""

from typing import Any, Final, NamedTuple

from profiles.prompts import json_of

# Characters of one answer: about 250,000 tokens. A longer one is not kept at all, for half of it is no evidence.
MOST_ANSWER_CHARS: Final = 1 << 20
_ITEM_KEYS: Final[tuple[str, ...]] = ("type", "role", "content", "output", "text", "name", "arguments")


class Answer(NamedTuple):
    """An answer in the form in which a request holds it. `messages` is empty where it said nothing."""

    messages: list[dict[str, Any]]
    response_id: str | None  # of Responses: what `previous_response_id` names


class _Call:
    """One tool call whose arguments come in fragments."""

    __slots__ = ("arguments", "id", "name")

    def __init__(self, id: Any) -> None:
        self.id = id
        self.name = ""
        self.arguments: list[str] = []


class AnswerKeeper:
    """Takes the events of one answer, or a whole one, and joins them. It accepts any JSON object."""

    def __init__(self, most_chars: int = MOST_ANSWER_CHARS) -> None:
        self._left = most_chars
        self._texts: list[str] = []
        self._calls: list[_Call] = []
        self._call_at: dict[int, _Call] = {}  # the latest call of an index
        self._items: dict[int, dict[str, Any]] = {}  # of Responses, by their place
        self._response_id: str | None = None
        # Where the last event put its text, and where an event that repeats puts its own: "text", an index of a call.
        self._put: int | str | None = None
        self._repeats: int | str | None = None

    def take(self, event: dict[str, Any]) -> None:
        """One event, or a whole answer."""
        self._put = None
        kind = event.get("type")
        if isinstance(kind, str) and kind.startswith("response."):
            self._take_responses(kind, event)
        elif kind == "message":
            for at, block in enumerate(_mappings(event.get("content"))):
                self._take_block(at, block, whole=True)
        elif isinstance(kind, str) and kind.startswith("content_block_"):
            at = _index(event)
            if kind == "content_block_start":
                self._take_block(at, _mapping(event.get("content_block")), whole=False)
            elif kind == "content_block_delta":
                delta = _mapping(event.get("delta"))
                self._add("text", delta.get("text"))
                self._add(at, delta.get("partial_json"))
        elif event.get("object") == "response":
            self._take_response(event)
        else:
            self._take_choices(event)

    def learn(self) -> None:
        """Later events may repeat the last one with another text."""
        self._repeats = self._put

    def repeat(self, text: str) -> None:
        """The text of an event that repeats the one that was learned."""
        if self._repeats is not None:
            self._add(self._repeats, text)

    def answer(self) -> Answer | None:
        """All that was said so far. None where there is nothing, or more than may be kept."""
        if self._left < 0:
            return None
        messages = [self._items[at] for at in sorted(self._items)]
        if not messages:
            text = "".join(self._texts)
            calls = [{"function": {"name": call.name, "arguments": "".join(call.arguments)}} for call in self._calls]
            if calls:
                messages = [{"role": "assistant", "content": text, "tool_calls": calls}]
            elif text and not text.isspace():
                messages = [{"role": "assistant", "content": text}]
        return Answer(messages, self._response_id) if messages or self._response_id else None

    def _spend(self, chars: int) -> bool:
        """Whether so much more may be kept. Once it may not, all is let go."""
        self._left -= chars
        if self._left >= 0:
            return True
        self._texts.clear()
        self._calls.clear()
        self._call_at.clear()
        self._items.clear()
        return False

    def _add(self, where: int | str, text: Any) -> None:
        if not isinstance(text, str) or not text or not self._spend(len(text)):
            return
        if where == "text":
            self._texts.append(text)
        elif isinstance(where, int) and where in self._call_at:
            self._call_at[where].arguments.append(text)
        self._put = where

    def _start_call(self, at: int, id: Any, name: Any) -> None:
        if not self._spend(64):  # a call costs something even where it is empty
            return
        call = self._call_at[at] = _Call(id)
        call.name = name if isinstance(name, str) else ""
        self._spend(len(call.name))
        self._calls.append(call)

    def _take_choices(self, event: dict[str, Any]) -> None:
        for choice in _mappings(event.get("choices")):
            if choice.get("index") not in (None, 0):
                continue
            said = _mapping(choice.get("delta") or choice.get("message"))
            self._add("text", said.get("content"))
            self._add("text", choice.get("text"))
            whole = "message" in choice
            for place, call in enumerate(_mappings(said.get("tool_calls"))):
                at = place if whole else _index(call)
                function = _mapping(call.get("function"))
                known = self._call_at.get(at)
                # Some engines give every call the index 0: another id beside a name is another call.
                other = known is not None and call.get("id") not in (None, "", known.id)
                if known is None or whole or (other and function.get("name")):
                    self._start_call(at, call.get("id"), function.get("name"))
                elif function.get("name") and not known.name:
                    known.name = str(function["name"])[:256]
                self._add(at, function.get("arguments"))
            old = said.get("function_call")
            if isinstance(old, dict):
                if 0 not in self._call_at:
                    self._start_call(0, None, old.get("name"))
                self._add(0, old.get("arguments"))

    def _take_block(self, at: int, block: dict[str, Any], *, whole: bool) -> None:
        """A block of Anthropic's messages. A stream opens a call with an empty input and sends it in fragments."""
        if block.get("type") == "tool_use":
            self._start_call(at, block.get("id"), block.get("name"))
            given = block.get("input")
            if given or whole:
                self._add(at, (json_of(given) or b"").decode())
        elif block.get("type") == "text":
            self._add("text", block.get("text"))

    def _take_responses(self, kind: str, event: dict[str, Any]) -> None:
        if kind == "response.output_text.delta":  # only until its item is done
            self._add("text", event.get("delta"))
        elif kind == "response.output_item.done":
            at = event.get("output_index")
            self._keep_item(at if isinstance(at, int) else len(self._items), _mapping(event.get("item")))
        elif isinstance(event.get("response"), dict):
            self._take_response(event["response"])

    def _take_response(self, response: dict[str, Any]) -> None:
        given = response.get("id")
        if isinstance(given, str) and given:
            self._response_id = given[:256]
        for at, item in enumerate(_mappings(response.get("output"))):
            if at not in self._items:
                self._keep_item(at, item)

    def _keep_item(self, at: int, item: dict[str, Any]) -> None:
        self._left += sum(map(len, self._texts))  # the item holds what its deltas said
        self._texts.clear()
        if item.get("type") == "reasoning":
            return
        slim = {key: item[key] for key in _ITEM_KEYS if key in item}
        if self._spend(len(json_of(slim) or b"")):
            self._items[at] = slim


def _index(source: dict[str, Any]) -> int:
    at = source.get("index")
    return at if isinstance(at, int) else 0


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []
