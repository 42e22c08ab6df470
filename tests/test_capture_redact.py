"""What is kept of a request in each mode: never text by default, ids that show sharing, bodies without credentials."""

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import capture.redact
import profiles.credentials
import profiles.digests
from capture.block_key import open_key
from capture.headers import HEADERS_READ, TENANT_HEADERS, headers_read
from capture.redact import Asked, Redactor, needs_key
from capture.settings import BODY_MODES, FULL, HASHED, NONE
from profiles.capture_folder import HASH_KEY
from profiles.credentials import is_credential_name, without_tokens
from profiles.digests import Digests, canonical
from profiles.errors import UsageError
from profiles.records import BLOCK_CHARS, KeyedFacts, RequestFacts

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
SECRET = "sk-SECRET-7f3-0123456789abcdef"


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def assistant(content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": content}


def chat(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": list(messages), **more}


def encoded(document: Any) -> bytes:
    return json.dumps(document).encode()


def read(redactor: Redactor, document: Any, **headers: str) -> Asked:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return redactor.read(encoded(document), pairs)


def keyed(document: Any, key: bytes = KEY, **headers: str) -> KeyedFacts:
    found = read(Redactor(HASHED, key), document, **headers).facts.keyed
    assert found is not None
    return found


# --- Arguments


@pytest.mark.parametrize(
    "arguments",
    [
        {"mode": "all"},
        {"mode": HASHED},
        {"mode": NONE, "tenants": True},
        {"mode": FULL},
        {"mode": HASHED, "key": b"short"},
        {"sample": 1.1},
        {"sample": -0.1},
        {"sample": float("nan")},
    ],
)
def test_arguments_that_make_no_sense_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  each says what is wrong in its own words
        Redactor(**arguments)


# --- Never raises, never quotes

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
PLACES = (
    "messages input prompt role content type text tools tool_calls function arguments name functions system id output "
    "instructions response_format json_schema schema thinking n image_url url source data metadata session_id "
    "conversation cache_salt previous_response_id prompt_cache_key guided_json structured_outputs json reasoning "
    "effort max_tokens temperature tool_choice stop user extra_headers authorization model"
).split()
ODD_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "user", "tool_use", "data:x;base64,YQ=="]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(PLACES), inner, max_size=5),
    max_leaves=8,
)
DOCUMENTS = st.dictionaries(st.sampled_from(PLACES), ODD_JSON, max_size=5)


def every_policy() -> Iterator[Redactor]:
    for mode in BODY_MODES:
        yield Redactor(mode, KEY, 0.5, True)
        yield Redactor(mode, KEY)


@settings(max_examples=40)
@given(DOCUMENTS | ANY_JSON)
def test_no_json_is_a_fault_in_any_mode(document: Any) -> None:
    for redactor in every_policy():
        facts = redactor.read(encoded(document)).facts
        assert facts.unread in (None, "not a JSON object", "not JSON")  # integers beyond 64 bits are read as floats
        assert "fault" not in (facts.cut or "")


@settings(max_examples=40)
@given(
    st.binary(max_size=60),
    st.lists(st.tuples(st.sampled_from(sorted(HEADERS_READ)) | st.binary(max_size=5), st.binary(max_size=20))),
)
def test_no_bytes_are_a_fault_in_any_mode(body: bytes, headers: list[tuple[bytes, bytes]]) -> None:
    for redactor in every_policy():
        asked = redactor.read(body, headers)
        assert "fault" not in f"{asked.facts.unread} {asked.facts.cut}"
        assert msgspec.json.decode(msgspec.json.encode(asked.facts), type=RequestFacts) == asked.facts


def test_a_fault_of_ours_costs_ids_and_is_told_without_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def explode(*_: object) -> None:
        raise KeyError(SECRET)

    redactor = Redactor(HASHED, KEY)
    monkeypatch.setattr(redactor._digests, "blocks", explode)
    asked = read(redactor, chat(user("four")))
    assert (asked.facts.input_chars, asked.facts.cut, asked.facts.keyed) == (4, "recorder fault: KeyError", None)
    monkeypatch.setattr(capture.redact, "prompt_of", explode)
    assert read(redactor, chat(user("four"))) == Asked(RequestFacts(body_bytes=65, unread="recorder fault: KeyError"))


def seeded(document: Any, secret: str) -> Iterator[Any]:
    """The document with the secret in each place in turn: as a value, and as a key."""
    if isinstance(document, dict):
        for key, value in document.items():
            yield document | {key: secret}
            yield {**{name: item for name, item in document.items() if name != key}, secret: value}
            for inner in seeded(value, secret):
                yield document | {key: inner}
    elif isinstance(document, list):
        for at, value in enumerate(document):
            yield [*document[:at], secret, *document[at + 1 :]]
            for inner in seeded(value, secret):
                yield [*document[:at], inner, *document[at + 1 :]]


RICH = chat(
    {"role": "system", "content": "s"},
    user([{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,YQ=="}}]),
    assistant(None)
    | {"tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}]},
    {"role": "tool", "tool_call_id": "c", "content": "42", "name": "f"},
    tools=[{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}],
    tool_choice={"type": "function", "function": {"name": "f"}},
    response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
    reasoning_effort="high",
    reasoning={"effort": "low"},
    thinking={"type": "enabled"},
    chat_template_kwargs={"enable_thinking": True},
    stop=["x"],
    user="u",
    metadata={"session_id": "s", "headers": {"authorization": "a"}},
    previous_response_id="r",
    conversation={"id": "c"},
    prompt_cache_key="p",
    cache_salt="c",
    temperature=0.5,
    max_tokens=5,
    n=1,
    extra_headers={"x": "y"},
)
EVERY_HEADER = [(name, SECRET.encode()) for name in sorted(headers_read(tenants=True))]


@pytest.mark.parametrize("mode", [NONE, HASHED])
def test_a_secret_in_any_place_never_comes_out(mode: str) -> None:
    redactor = Redactor(mode, KEY, tenants=True)
    places = 0
    for document in seeded(RICH, SECRET):
        asked = redactor.read(encoded(document), EVERY_HEADER)
        assert asked.body is None
        assert b"SECRET" not in msgspec.json.encode(asked.facts), document
        places += 1
    assert places > 100


@settings(max_examples=40)
@given(DOCUMENTS, st.sampled_from(["SECRET words of a prompt", SECRET]))
def test_a_secret_in_any_json_never_comes_out(document: dict[str, Any], secret: str) -> None:
    for place in seeded(document, secret):
        for mode in (NONE, HASHED):
            assert b"SECRET" not in msgspec.json.encode(Redactor(mode, KEY).read(encoded(place)).facts)


def test_no_mode_but_the_asked_one_says_who(tmp_path: Path) -> None:
    document = chat(user("a" * 500), metadata={"session_id": "s"}, cache_salt="c")
    assert read(Redactor(NONE), document, x_session_id="s", authorization="Bearer t").facts.keyed is None
    assert read(Redactor(HASHED, KEY), document, authorization="Bearer t").facts.keyed == keyed(document)
    assert keyed(document).tenant is None
    only = read(Redactor(NONE, KEY, tenants=True), document, authorization="Bearer t").facts.keyed
    assert only is not None
    assert only == KeyedFacts(tenant=only.tenant)


# --- Blocks

TEXTS = st.text(min_size=0, max_size=300)


@settings(max_examples=40)
@given(TEXTS, TEXTS, TEXTS)
def test_equal_prefixes_have_equal_leading_blocks_and_no_others_do(prefix: str, one: str, two: str) -> None:
    a, b = keyed(chat(user(prefix + one))), keyed(chat(user(prefix + two)))
    head = len("\x02user\n")
    assert len(a.blocks) == a.prompt_chars // BLOCK_CHARS == (head + len(prefix + one)) // BLOCK_CHARS
    texts = ["\x02user\n" + prefix + rest for rest in (one, two)]
    same = [left == right for left, right in zip(*texts, strict=False)]
    shared = (same.index(False) if False in same else len(same)) // BLOCK_CHARS
    assert a.blocks[:shared] == b.blocks[:shared]
    assert not set(a.blocks[shared:]) & set(b.blocks[shared:])
    assert len({*a.blocks, *b.blocks}) == len(a.blocks) + len(b.blocks) - min(shared, len(a.blocks), len(b.blocks))


@given(st.text(min_size=200, max_size=300))
@settings(max_examples=20)
def test_another_key_makes_other_ids_of_everything(text: str) -> None:
    document = chat(user(text), cache_salt=text, metadata={"session_id": text}, guided_json={"a": text})
    a, b = keyed(document), keyed(document, OTHER_KEY)

    def ids(facts: KeyedFacts) -> set[str | None]:
        chains = {message.chain for message in facts.messages}
        return {*facts.blocks, *chains, facts.schema, facts.cache_salt, facts.session}

    assert not ids(a) & ids(b)
    assert len(ids(a)) == len(a.blocks) + 4, "one text has another id in each role"
    assert keyed(document) == a


def test_the_next_turn_goes_on_where_the_last_one_ended() -> None:
    first = chat({"role": "system", "content": "s" * 100}, user("q" * 100), tools=[{"name": "f"}])
    second = chat(*first["messages"], assistant("a" * 100), user("more"), tools=[{"name": "f"}])
    before, after = keyed(first), keyed(second)
    assert after.blocks[: len(before.blocks)] == before.blocks
    assert after.messages[:2] == before.messages
    assert [(message.role, message.chars) for message in after.messages] == [
        ("system", 100),
        ("user", 100),
        ("assistant", 100),
        ("user", 4),
    ]
    assert not set(after.blocks) & set(keyed(chat(*second["messages"])).blocks), "tools come first in a template"


def test_two_messages_are_not_one_with_both_texts() -> None:
    assert (
        keyed(chat(user("a"), assistant("b" * 64))).blocks
        != keyed(chat(user("a\x02assistant\n" + "b" * 64))).blocks[:0]
    )
    split, joined = keyed(chat(user("a"), user("b"))), keyed(chat(user("ab")))
    assert split.messages[-1].chain != joined.messages[-1].chain


def test_text_of_any_alphabet_has_the_same_blocks_however_it_goes_on() -> None:
    plain, accented = keyed(chat(user("a" * 200))), keyed(chat(user("a" * 200 + "é")))
    assert accented.blocks == plain.blocks


def test_a_very_long_text_is_cut_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles.digests, "MOST_BLOCKS", 10)
    asked = read(Redactor(HASHED, KEY), chat(user("a" * 2_000), user("b")))
    assert asked.facts.keyed is not None
    assert len(asked.facts.keyed.blocks) == 10
    assert asked.facts.keyed.prompt_chars == 2_013
    assert "no blocks beyond" in (asked.facts.cut or "")


# --- Messages, media, schema, salt

SAME: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("white space", assistant("a  b\n"), assistant("a b")),
    ("thoughts", assistant("<think>long\nthoughts</think>\n\na"), assistant("a")),
    ("parts", assistant([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]), assistant("ab")),
    (
        "ids of calls",
        {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "assistant", "tool_calls": [{"id": "2", "function": {"name": "f", "arguments": "{}"}}]},
    ),
]
DIFFERENT: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("text", assistant("a"), assistant("b")),
    ("role", assistant("a"), user("a")),
    (
        "arguments",
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[]"}}]},
    ),
    (
        "images",
        user([{"type": "image_url", "image_url": {"url": "data:image/png;base64,YQ=="}}]),
        user([{"type": "image_url", "image_url": {"url": "data:image/png;base64,Yg=="}}]),
    ),
    (
        "Anthropic's calls",
        assistant([{"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}]),
        assistant([{"type": "tool_use", "id": "1", "name": "f", "input": {"a": 2}}]),
    ),
]


@pytest.mark.parametrize(("name", "one", "two"), SAME)
def test_messages_that_a_client_sends_back_in_another_form_are_the_same(name: str, one: Any, two: Any) -> None:
    assert keyed(chat(one)).messages[-1].chain == keyed(chat(two)).messages[-1].chain


@pytest.mark.parametrize(("name", "one", "two"), DIFFERENT)
def test_messages_that_differ_have_different_ids(name: str, one: Any, two: Any) -> None:
    assert keyed(chat(one)).messages[-1].chain != keyed(chat(two)).messages[-1].chain


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("", ""),
        (" a\n\tb ", "a b"),
        ("<think>a</think>b<think>c</think>d", "bd"),
        ("<think>no end", "<think>no end"),
        ("</think>a<think>", "</think>a<think>"),
        ("<think>" * 50_000, "<think>" * 50_000),  # its square would not end in this test
    ],
)
def test_the_canonical_form_of_a_text(text: str, plain: str) -> None:
    assert canonical(text) == plain


def test_one_image_has_one_id_in_every_dialect() -> None:
    forms = [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGVsbG8="}},
        {"type": "input_image", "image_url": "data:image/png;base64,aGVsbG8="},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGVsbG8="}},
    ]
    media = [keyed(chat(user([form]))).media for form in forms]
    assert {len(found) for found in media} == {1}
    assert {(found[0].id, found[0].bytes) for found in media} == {(media[0][0].id, 5)}
    (fetched,) = keyed(chat(user([{"type": "image_url", "image_url": {"url": "https://host/a.png"}}]))).media
    assert fetched.bytes is None


def test_schemas_and_salts_keep_their_pattern_of_equality() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    forms: list[dict[str, Any]] = [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}},
        {"guided_json": schema},
        {"structured_outputs": {"json": schema}},
        {"text": {"format": {"type": "json_schema", "schema": schema}}},
    ]
    found = [keyed(chat(user("a"), **form)) for form in forms]
    assert len({facts.schema for facts in found}) == 1
    assert found[0].schema_bytes == len(json.dumps(schema, separators=(",", ":")))
    assert keyed(chat(user("a"), guided_json={})).schema != found[0].schema
    salts = [keyed(chat(user("a"), cache_salt=salt)).cache_salt for salt in ("x", "y", "x")]
    assert salts[0] == salts[2] != salts[1]
    assert keyed(chat(user("a"))).cache_salt is None


# --- Sessions and tenants

SESSIONS: list[tuple[str, dict[str, str], dict[str, Any], str | None]] = [
    ("a header", {"X_Session_Id": "s"}, {}, "x-session-id"),
    ("the stronger header", {"conversation_id": "t", "x_dynamo_session_id": "s"}, {}, "x-dynamo-session-id"),
    ("a header before the body", {"session_id": "s"}, {"prompt_cache_key": "t"}, "session-id"),
    ("an empty header", {"session_id": " "}, {"prompt_cache_key": "s"}, "body.prompt_cache_key"),
    ("a conversation", {}, {"conversation": {"id": "s"}, "prompt_cache_key": "t"}, "body.conversation"),
    ("a conversation by name", {}, {"conversation": "s"}, "body.conversation"),
    ("metadata", {}, {"metadata": {"session_id": "s", "user_id": "t"}}, "body.metadata.session_id"),
    ("never the user", {}, {"user": "s", "metadata": {"user_id": "s"}}, None),
]


@pytest.mark.parametrize("mode", [HASHED, FULL])
@pytest.mark.parametrize(("name", "headers", "body", "source"), SESSIONS)
def test_the_session_and_what_named_it(
    name: str, headers: dict[str, str], body: dict[str, Any], source: str | None, mode: str
) -> None:
    facts = read(Redactor(mode, KEY), chat(user("a"), **body), **headers).facts.keyed
    assert (facts.session_source if facts else None) == source
    expected = None if source is None else Digests(KEY).id_of("session", "s")
    assert (facts.session if facts else None) == expected


def test_parents_agents_and_previous_responses() -> None:
    facts = keyed(
        chat(user("a"), previous_response_id="resp_1"),
        x_session_id="child",
        x_parent_session_id="parent",
        x_claude_code_agent_id="one",
        x_claude_code_parent_agent_id="two",
    )
    assert facts.parent_session == keyed(chat(user("a")), x_session_id="parent").session
    assert facts.agent == keyed(chat(user("a")), x_claude_code_parent_agent_id="one").parent_agent
    assert facts.agent != facts.parent_agent
    assert facts.previous_response == keyed(chat(user("b"), previous_response_id="resp_1")).previous_response


def test_a_tenant_is_one_in_whichever_header_its_key_comes() -> None:
    redactor = Redactor(HASHED, KEY, tenants=True)
    found = [
        read(redactor, chat(), **headers).facts.keyed
        for headers in ({"authorization": "Bearer t"}, {"api_key": "t"}, {"x_api_key": "t"}, {"x_api_key": "other"})
    ]
    tenants = [facts.tenant for facts in found if facts is not None]
    assert len(tenants) == 4
    assert tenants[0] == tenants[1] == tenants[2] != tenants[3]
    assert tenants[0] != Digests(KEY).id_of("session", "t")


def test_only_headers_of_the_list_are_handed_over() -> None:
    assert all(name == name.lower() for name in HEADERS_READ)
    secret = b"authorization proxy-authorization cookie api-key x-api-key x-auth-token set-cookie".split()
    assert not HEADERS_READ & set(secret)
    assert headers_read(tenants=False) == HEADERS_READ
    assert headers_read(tenants=True) - HEADERS_READ == {name.encode() for name in TENANT_HEADERS}


AGENTS = [
    ("OpenAI/Python 1.99.0", "openai-python"),
    ("AsyncOpenAI/Python 1.99.0", "openai-python"),
    ("OpenAI/JS 5.0", "openai-node"),
    ("Anthropic/Python 0.6", "anthropic-python"),
    ("langchain-openai/0.3", "langchain"),
    ("litellm/1.80", "litellm"),
    ("python-httpx/0.28", "httpx"),
    ("Python/3.12 aiohttp/3.11", "aiohttp"),
    ("python-requests/2.32", "requests"),
    ("node-fetch/1.0", "node-fetch"),
    ("Go-http-client/1.1", "go"),
    ("Java-http-client/21", "java"),
    ("curl/8.5", "curl"),
    ("Mozilla/5.0 (X11)", "browser"),
    ("secret agent", "other"),
]


@pytest.mark.parametrize(("agent", "client"), AGENTS)
def test_the_client_by_its_user_agent(agent: str, client: str) -> None:
    assert read(Redactor(), chat(), user_agent=agent).facts.client == client


def test_what_is_kept_of_the_other_headers() -> None:
    facts = read(
        Redactor(), chat(), content_type="application/json; charset=secret", accept="text/event-stream, secret/secret"
    ).facts
    assert (facts.media_type, facts.accepts, facts.encoding) == ("application/json", "text/event-stream", None)
    facts = read(Redactor(), chat(), content_type="secret", accept="secret", content_encoding="secret").facts
    assert (facts.media_type, facts.accepts, facts.encoding) == ("other", "other", "other")
    assert facts.unread == "unknown coding"
    facts = read(Redactor(), chat()).facts
    assert (facts.media_type, facts.accepts, facts.encoding, facts.client) == (None, None, None, None)


# --- Full bodies

KEPT = [
    b'{"model":"m","messages":[{"role":"user","content":"h\xc3\xa9\\u00e9 \\u0041"}]}',
    b' {"a" :  1.0,\n"a":2,"max_tokens":5} \r\n',
    b'{"tools":[{"function":{"parameters":{"properties":{"password":{"type":"string"},"api_key":{}}}}}]}',
    b'{"authorization":null,"api_key":"","cookie":[],"prompt":"a task-force-of-nations, api_key: str, hf_tokenizer"}',
    b'{"headers":["name","age"],"stop":["\\\\"]}',
    b"\xff\x00",
    b"not json",
    b"[1]",
]


@pytest.mark.parametrize("body", KEPT)
def test_a_body_without_credentials_is_kept_byte_for_byte(body: bytes) -> None:
    asked = Redactor(FULL, KEY).read(body)
    assert (asked.body, asked.facts.scrubbed) == (body, 0)
    hashed = Redactor(HASHED, KEY).read(body).facts.keyed
    messages = [] if hashed is None else hashed.messages
    assert asked.facts.keyed == (KeyedFacts(messages=messages) if messages else None)


CLEANED: list[tuple[bytes, bytes, int]] = [
    (b'{"api_key":"SECRET"}', b'{"api_key":"[removed]"}', 1),
    (b'{"extra_headers":{"x":"SECRET"},"n":1}', b'{"extra_headers":"[removed]","n":1}', 1),
    (
        b'{"metadata":{"headers":{"authorization":"SECRET"},"a":1}}',
        b'{"metadata":{"headers":"[removed]","a":1}}',
        1,
    ),
    (b'{"a":[{"X-Api-Key":"SECRET","Cookie":"SECRET"}]}', b'{"a":[{"X-Api-Key":"[removed]","Cookie":"[removed]"}]}', 2),
    (b'{"prompt":"use sk-SECRET-7f3-12"}', b'{"prompt":"use [removed]"}', 1),
    (b'{"prompt":"use \\u0073k-SECRET-7f3-12"}', b'{"prompt":"use [removed]"}', 1),
    (b'{"sk-SECRET-7f3-12":1}', b'{"[removed]":1}', 1),
    (b'{"arguments":"{\\"api_key\\": \\"SECRET-7f3\\"}"}', b'{"arguments":"{\\"api_key\\": \\"[removed]\\"}"}', 1),
    (
        b'{"properties":{"password":{"type":"string","default":"SECRET"}}}',
        b'{"properties":{"password":{"type":"string","default":"[removed]"}}}',
        1,
    ),
    # Of two fields with one name a parser keeps the last: the first must not stay in the bytes.
    (b'{"api_key":"SECRET","api_key":null}', b'{"api_key":null}', 1),
    (b'{"a":"sk-SECRET-7f3-12","a":1}', b'{"a":1}', 1),
    (b'{"api_\\u006bey" \n:"SECRET","api_key":null}', b'{"api_key":null}', 1),
    (b"api_key=SECRET-7f3&n=1", b"api_key=[removed]&n=1", 1),
    (b'{"api_key": "SECRET-7f3"', b'{"api_key": "[removed]"', 1),
]


@pytest.mark.parametrize(("body", "clean", "scrubbed"), CLEANED)
def test_credentials_are_taken_out_of_a_body(body: bytes, clean: bytes, scrubbed: int) -> None:
    asked = Redactor(FULL, KEY).read(body)
    assert (asked.body, asked.facts.scrubbed) == (clean, scrubbed)


def test_the_case_that_leaked_elsewhere() -> None:
    marker = "SECRET-7f3"
    names = (
        "authorization",
        "api_key",
        "x_api_key",
        "x_auth_token",
        "cookie",
        "proxy_authorization",
    )
    body = chat(
        user("hello"),
        metadata={"headers": {"authorization": f"Bearer {marker}"}},
        extra_headers={"X-Anything": marker},
    )
    for redactor in every_policy():
        asked = read(redactor, body, **dict.fromkeys(names, marker))
        assert marker.encode() not in msgspec.json.encode(asked.facts) + (asked.body or b"")


SHAPES = [
    "sk-proj-abcDEF0123456789",
    "sk-ant-api03-abcDEF0123456789",
    "AKIAIOSFODNN7EXAMPLE",
    "ASIAIOSFODNN7EXAMPLE",
    "hf_abcdefghij0123456789",
    "ghp_abcdefghij0123456789",
    "github_pat_abcdefghij0123456789",
    "glpat-abcdefghij0123456789",
    "AIza" + "a1" * 18,
    "gsk_abcdefghij0123456789",
    "nvapi-abcdefghij0123456789",
    "xoxb-1234567890-abc",
    "eyJhbGciOiJI.eyJzdWIiOiIx.abc-def",
    "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
]


@pytest.mark.parametrize("token", SHAPES)
@pytest.mark.parametrize("around", ["{}", "use {} now", "x={}", "é\n{}\n"])
def test_a_token_is_known_by_its_shape(token: str, around: str) -> None:
    assert without_tokens(around.format(token)) == (around.format("[removed]"), 1)


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Authorization: Bearer abc12345", "Authorization: Bearer [removed]"),
        ("curl -H 'X-Api-Key: abc12345'", "curl -H 'X-Api-Key: [removed]'"),
        ("https://host/?api_key=abc12345&n=1", "https://host/?api_key=[removed]&n=1"),
        ("postgres://bob:pw@host/db", "postgres://bob:[removed]@host/db"),
        ("İ PASSWORD = 'hunter22'", "İ PASSWORD = '[removed]'"),
        ('"access_token": "abc12345"', '"access_token": "[removed]"'),
    ],
)
def test_a_value_behind_a_telling_name_is_taken_out_of_text(text: str, clean: str) -> None:
    assert without_tokens(text) == (clean, 1)


@pytest.mark.parametrize(
    "text",
    [
        "task-force-of-the-nations-1",
        "a bearer certificate of 2024",
        "password: str",
        "max_tokens: 4096",
        "desk-1234567890",
        "api_key = settings.key",
        "Basic understanding",
        "hf_transformers_library",
        "http://host:8000/v1",
    ],
)
def test_ordinary_words_stay(text: str) -> None:
    assert without_tokens(text) == (text, 0)


@pytest.mark.parametrize("text", ["sk-" * 50_000, "-eyJ" * 50_000, "api_key=" * 20_000, "://" * 50_000 + ":"])
def test_no_text_costs_its_square(text: str) -> None:
    without_tokens(text)  # minutes, if it did


@pytest.mark.parametrize(
    ("name", "credential"),
    [
        ("Authorization", True),
        ("X-API-Key", True),
        ("aws_secret_access_key", True),
        ("hf_token", True),
        ("max_tokens", False),
        ("token_type_ids", False),
        ("prompt_cache_key", False),
        ("keys", False),
    ],
)
def test_names_of_credentials(name: str, credential: bool) -> None:
    assert is_credential_name(name) is credential


def test_a_compressed_body_is_kept_plain_and_one_that_cannot_be_read_not_at_all() -> None:
    body = encoded(chat(user("a"), api_key=SECRET))
    asked = Redactor(FULL, KEY).read(gzip.compress(body), [(b"Content-Encoding", b"gzip")])
    assert (asked.facts.encoding, asked.facts.scrubbed) == ("gzip", 1)
    assert json.loads(asked.body or b"") == chat(user("a"), api_key="[removed]")
    asked = Redactor(FULL, KEY).read(body, [(b"content-encoding", b"br")])
    assert (asked.body, asked.facts.cut) == (None, "body not kept: not read")


def test_what_cannot_be_looked_through_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = b'{"api_key":"x","a":' + b"[" * 900 + b"]" * 900 + b"}"
    asked = Redactor(FULL, KEY).read(deep)
    assert (asked.body, asked.facts.cut) == (None, "body not kept: nested too deeply")
    monkeypatch.setattr(profiles.credentials, "MOST_VALUES", 3)
    asked = Redactor(FULL, KEY).read(b'{"a":[1,2,3,4]}')
    assert (asked.body, asked.facts.cut) == (None, "body not kept: too many values to look through")


@pytest.mark.parametrize("mode", BODY_MODES)
def test_a_body_that_is_not_there_says_why_in_the_recorders_words(mode: str) -> None:
    assert Redactor(mode, KEY).read(None).facts.unread == "no body"
    asked = Redactor(mode, KEY).read(None, why_none="too large to be read")
    assert (asked.facts.unread, asked.body) == ("too large to be read", None)


# --- Sampling


@settings(max_examples=30)
@given(st.text(max_size=20), st.text(min_size=1, max_size=20), st.lists(st.text(max_size=20), max_size=6))
def test_all_turns_of_a_conversation_fall_the_same_way(system: str, first: str, later: list[str]) -> None:
    redactor = Redactor(FULL, KEY, 0.5)
    messages = [{"role": "system", "content": system}, user(first)]
    fell = set()
    for text in later:
        fell.add(read(redactor, chat(*messages)).facts.sampled)
        messages += [assistant(text), user(text)]
    fell.add(read(redactor, chat(*messages)).facts.sampled)
    assert len(fell) == 1


def test_a_named_session_falls_the_same_way_whatever_is_said() -> None:
    redactor = Redactor(FULL, KEY, 0.5)
    for session in range(20):
        fell = {
            read(redactor, chat(user(f"{session} {turn}")), x_session_id=f"s{session}").facts.sampled
            for turn in range(5)
        }
        assert len(fell) == 1


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_the_share_of_sessions_is_the_one_asked_for(share: float) -> None:
    redactor = Redactor(FULL, KEY, share)
    kept = [read(redactor, chat(user(f"conversation {number}"))) for number in range(600)]
    assert all((asked.body is not None) == asked.facts.sampled for asked in kept)
    # Five standard deviations; the key is fixed, so this is no matter of luck.
    assert sum(asked.facts.sampled for asked in kept) / 600 == pytest.approx(share, abs=0.1 if 0 < share < 1 else 0)


def test_what_is_left_out_keeps_its_lengths_and_its_session() -> None:
    document = chat(user("a" * 500), metadata={"session_id": "s"})
    facts = read(Redactor(HASHED, KEY, 0.0), document).facts
    assert (facts.sampled, facts.input_chars) == (False, 500)
    assert facts.keyed is not None
    assert (facts.keyed.blocks, facts.keyed.messages) == ([], [])
    assert facts.keyed.session == keyed(document).session
    assert read(Redactor(NONE, sample=0.0), document).facts.sampled is True, "nothing is kept that could be left out"


# --- The key


@pytest.mark.parametrize("mode", BODY_MODES)
@pytest.mark.parametrize("tenants", [False, True])
def test_a_restart_does_not_tear_a_session_apart(mode: str, tenants: bool) -> None:
    """Whatever keeps sessions or tenants has a key that outlasts the process, and will not do without."""
    assert needs_key(mode, tenants=tenants) is (mode != NONE or tenants)
    if needs_key(mode, tenants=tenants):
        with pytest.raises(ValueError, match="needs a key"):
            Redactor(mode, tenants=tenants)


def test_the_key_of_a_capture_is_made_once_and_is_ours_alone(tmp_path: Path) -> None:
    key = open_key(tmp_path)
    assert len(key) == 32
    assert (tmp_path / HASH_KEY).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [HASH_KEY]
    assert open_key(tmp_path) == key
    assert open_key(tmp_path / "elsewhere", tmp_path / HASH_KEY) == key, "the recorders of a fleet may share one"
    other = tmp_path / "other"
    other.mkdir()
    assert open_key(other) != key


def key_file(path: Path, content: bytes, mode: int = 0o600) -> Path:
    path.write_bytes(content)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("content", "key"),
    [
        (b"00112233445566778899aabbccddeeff\n", bytes.fromhex("00112233445566778899aabbccddeeff")),
        (b"a pass phrase with blanks\n", b"a pass phrase with blanks\n"),
        (b"\xff" * 16, b"\xff" * 16),
    ],
)
def test_a_given_key_is_hexadecimal_or_plain(tmp_path: Path, content: bytes, key: bytes) -> None:
    assert open_key(tmp_path, key_file(tmp_path / "k", content)) == key


def test_a_key_that_protects_nothing_is_refused(tmp_path: Path) -> None:
    link, folder, pipe = tmp_path / "link", tmp_path / "folder", tmp_path / "pipe"
    good = key_file(tmp_path / "good", b"k" * 32)
    link.symlink_to(good)
    folder.mkdir()
    os.mkfifo(pipe, 0o600)
    refused = [
        (tmp_path / "missing", "cannot be read"),
        (key_file(tmp_path / "short", b"k" * 15), "at least 16 bytes"),
        (key_file(tmp_path / "hex", b"ab" * 15), "at least 16 bytes, this one 15"),
        (key_file(tmp_path / "open", b"k" * 32, 0o644), "by others"),
        (key_file(tmp_path / "long", b"k" * 5_000), "at most"),
        (link, "symbolic link"),
        (folder, "not a regular file"),
        (pipe, "not a regular file"),
    ]
    for path, why in refused:
        with pytest.raises(UsageError, match=why):
            open_key(tmp_path, path)
    with pytest.raises(UsageError, match="cannot make the hash key"):
        open_key(tmp_path / "nowhere")
    (folder / HASH_KEY).symlink_to(tmp_path / "nothing")
    with pytest.raises(UsageError, match="symbolic link"):
        open_key(folder)
