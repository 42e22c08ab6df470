"""Workload class of a request: ordered rules, the first that speaks wins.

The rules read `RequestFacts` and `ResponseFacts` alone, so that a class can be made again from a capture without any
text. A class is what a verdict may differ on: draft acceptance depends on it, and so does the length of the prefill.
"""

from collections.abc import Callable
from dataclasses import dataclass

from profiles.dialects import EMBEDDINGS, OTHER
from profiles.records import RequestFacts, ResponseFacts

# Four characters make a token in English prose, fewer elsewhere. Used only where the engine said nothing.
CHARS_PER_TOKEN = 4
# A JSON answer much shorter than what it was drawn from copies from it, and drafts well.
EXTRACTION_INPUT_TO_OUTPUT = 4
# Without an answer's length: extracted JSON is rarely longer than 128 tokens, times the ratio above.
EXTRACTION_INPUT_TOKENS = 512
# A label, a grade, a yes: no decode rate can be felt in so few tokens.
CLASSIFICATION_OUTPUT_TOKENS = 16
# Long prompts of one user turn, by prompt tokens; each is named after the next power of two. Longest first.
RAG_PROMPT_TOKENS = {"rag_128k": 65_536, "rag_32k": 16_384, "rag_8k": 4_096}
# A few retrieved passages. So short a prompt is also a file to edit, so code and reasoning are asked first.
SHORT_RAG, SHORT_RAG_PROMPT_TOKENS = "rag_2k", 1_024
# Chat about code quotes a few lines; a task on code is mostly code.
CODE_SHARE = 0.3

_JSON_FORMATS = ("json_schema", "json_object", "guided_json")
_CONSTRAINED_FORMATS = ("choice", "regex", "grammar")
_TOOL_FINISHES = ("tool_calls", "tool_use", "function_call")


@dataclass(frozen=True, slots=True)
class Workload:
    """A class and the rule that chose it. A rule that names `input_chars/4` went by an estimate."""

    name: str
    rule: str


@dataclass(frozen=True, slots=True)
class _Facts:
    endpoint: str
    request: RequestFacts
    response: ResponseFacts

    def input_tokens(self) -> tuple[int, str]:
        """Tokens of the prompt, and what they were counted by."""
        if self.response.prompt_tokens is not None:
            return self.response.prompt_tokens, "prompt_tokens"
        return self.request.input_chars // CHARS_PER_TOKEN, f"input_chars/{CHARS_PER_TOKEN}"


def classify(endpoint: str, request: RequestFacts, response: ResponseFacts) -> Workload:
    """The class of a request. Languages other than English are classes of their own: `chat_single.hu`."""
    facts = _Facts(endpoint, request, response)
    for rule in _RULES:
        workload = rule(facts)
        if workload is not None:
            break
    else:
        workload = Workload("chat_single", "one user turn")
    if workload.name in _WITHOUT_LANGUAGE or request.language in (None, "en"):
        return workload
    return Workload(f"{workload.name}.{request.language}", workload.rule)


def _not_generation(facts: _Facts) -> Workload | None:
    if facts.endpoint == EMBEDDINGS:
        return Workload("embedding", "endpoint embeddings")
    if facts.request.unread is not None:
        return Workload("unknown", f"body unread: {facts.request.unread}")
    if facts.endpoint == OTHER and not facts.request.messages:
        return Workload("other", "no prompt in a form we read")
    return None


def _tools(facts: _Facts) -> Workload | None:
    request = facts.request
    if not request.tools:
        return None
    if request.last_role == "tool":
        return Workload("agent_tool_loop", "last message is a tool's result")
    if facts.response.finish in _TOOL_FINISHES:
        return Workload("agent_tool_loop", f"finish {facts.response.finish}")
    if request.tool_results >= 2:
        return Workload("agent_tool_loop", "two tool results or more")
    return Workload("tool_call", "tools offered")


def _structured(facts: _Facts) -> Workload | None:
    wanted = facts.request.response_format
    if wanted in _CONSTRAINED_FORMATS:
        return Workload("constrained", f"format {wanted}")
    if wanted not in _JSON_FORMATS:
        return None
    tokens, counted_by = facts.input_tokens()
    output = facts.response.output_tokens
    if not output:
        name = "json_extraction" if tokens >= EXTRACTION_INPUT_TOKENS else "json_generation"
        sign = "≥" if tokens >= EXTRACTION_INPUT_TOKENS else "<"
        return Workload(name, f"format {wanted}, {counted_by} {sign} {EXTRACTION_INPUT_TOKENS}, output unknown")
    ratio = EXTRACTION_INPUT_TO_OUTPUT
    if tokens >= ratio * output:
        return Workload("json_extraction", f"format {wanted}, {counted_by} ≥ {ratio} × output")
    return Workload("json_generation", f"format {wanted}, {counted_by} < {ratio} × output")


def _classification(facts: _Facts) -> Workload | None:
    limit, output = facts.request.max_tokens, facts.response.output_tokens
    if limit is not None and limit <= CLASSIFICATION_OUTPUT_TOKENS:
        return Workload("classification", f"max_tokens ≤ {CLASSIFICATION_OUTPUT_TOKENS}")
    if output and output <= CLASSIFICATION_OUTPUT_TOKENS:
        return Workload("classification", f"output_tokens ≤ {CLASSIFICATION_OUTPUT_TOKENS}")
    return None


def _rag(facts: _Facts) -> Workload | None:
    return _long_prompt(facts, RAG_PROMPT_TOKENS)


def _short_rag(facts: _Facts) -> Workload | None:
    return _long_prompt(facts, {SHORT_RAG: SHORT_RAG_PROMPT_TOKENS})


def _long_prompt(facts: _Facts, least_tokens: dict[str, int]) -> Workload | None:
    if facts.request.user_turns != 1:
        return None
    tokens, counted_by = facts.input_tokens()
    for name, least in least_tokens.items():
        if tokens >= least:
            return Workload(name, f"{counted_by} ≥ {least}, one user turn")
    return None


def _code(facts: _Facts) -> Workload | None:
    share = facts.request.code_share
    return Workload("code", f"code_share ≥ {CODE_SHARE}") if share is not None and share >= CODE_SHARE else None


def _reasoning(facts: _Facts) -> Workload | None:
    if facts.response.reasoning_tokens:
        return Workload("reasoning", "reasoning_tokens > 0")
    return Workload("reasoning", "reasoning asked for") if facts.request.reasoning else None


def _several_turns(facts: _Facts) -> Workload | None:
    return Workload("chat_multi", "several user turns") if facts.request.user_turns > 1 else None


_RULES: tuple[Callable[[_Facts], Workload | None], ...] = (
    _not_generation,
    _tools,
    _structured,
    _classification,
    _rag,
    _code,
    _reasoning,
    _short_rag,
    _several_turns,
)
_WITHOUT_LANGUAGE = frozenset({"embedding", "unknown", "other"})
