"""What looks like a credential, and how it is taken out of a request body.

Two ways to know one: by the name of the field that holds it, at any depth, and by its shape, in any text. Neither is
complete: a password in a sentence has no shape. They are the second line behind "bodies are not kept".
"""

import json
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from profiles.prompts import json_of

REMOVED: Final = "[removed]"
# Keys and list items looked through; a body with more of them is not cleaned, and so must not be kept.
MOST_VALUES = 500_000


class Shape(NamedTuple):
    """A kind of token. `marks`: a text with none of them holds no such token, which is found out at memory speed."""

    issuer: str
    marks: tuple[str, ...]
    pattern: re.Pattern[str]  # its group `secret`, if it has one, is what is removed


def _after(prefix: str, rest: str) -> re.Pattern[str]:
    # The word boundary is asked for after the prefix: an expression that starts with plain characters is found faster.
    return re.compile(rf"{prefix}(?<![A-Za-z0-9]{prefix}){rest}", re.ASCII)


SHAPES: Final = (
    # A digit is asked for where the prefix also begins ordinary words. Looking for it is limited, or a text of nothing
    # but prefixes would cost its square.
    Shape("OpenAI, Anthropic and many gateways", ("sk-",), _after("sk-", r"(?=[\w-]{0,60}\d)[\w-]{8,}")),
    Shape("HTTP", ("earer ",), re.compile(r"[Bb]earer (?=[\w.~+/-]{0,80}\d)(?P<secret>[\w.~+/-]{8,}=*)", re.ASCII)),
    Shape("Amazon", ("AKIA",), _after("AKIA", r"[0-9A-Z]{16}(?![0-9A-Za-z])")),
    Shape("Amazon, for a session", ("ASIA",), _after("ASIA", r"[0-9A-Z]{16}(?![0-9A-Za-z])")),
    Shape("Hugging Face", ("hf_",), _after("hf_", r"(?=[A-Za-z]{0,60}\d)[A-Za-z0-9]{16,}")),
    Shape("GitHub", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), re.compile(r"gh[pousr]_[A-Za-z0-9]{16,}")),
    Shape("GitHub, fine-grained", ("github_pat_",), _after("github_pat_", r"\w{16,}")),
    Shape("GitLab", ("glpat-",), _after("glpat-", r"[\w-]{16,}")),
    Shape("Google", ("AIza",), _after("AIza", r"[\w-]{30,}")),
    Shape("Groq", ("gsk_",), _after("gsk_", r"[A-Za-z0-9]{16,}")),
    Shape("NVIDIA", ("nvapi-",), _after("nvapi-", r"[\w-]{16,}")),
    Shape("Slack", ("xox",), _after("xox", r"[abeoprs]-[\w-]{8,}")),
    Shape("JSON web token", ("eyJ",), _after("eyJ", r"[\w-]{8,400}+\.[\w-]{8,8000}(?:\.[\w-]*)?")),
    Shape(
        "private key",
        ("PRIVATE KEY-----",),
        re.compile(
            r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?:[A-Za-z0-9+/=\s\\:,]|-(?!-)){0,20000}"
            r"(?:-----END [A-Z ]{0,40}PRIVATE KEY-----)?"
        ),
    ),
    Shape("password in an address", ("://",), re.compile(r"://[^/\s:@\"']{0,200}+:(?P<secret>[^/\s@\"']{1,200}+)@")),
)

# `name = value` and `"name": "value"` in text and in arguments of tools, in lower case. A digit is asked for, so that
# `password: str` and `api_key = settings.key` stay.
_NAMES_IN_TEXT = (
    "api_key api-key apikey authorization _token -token client_secret secret_key access_key private_key password "
    "passwd cookie"
).split()
_VALUE = (
    r"\\?[\"']?\s{0,4}[:=]\s{0,4}\\?[\"']?(?:(?:bearer|basic|token) )?"
    r"(?=[^\s\"'&,;<>(){}\[\]\\]{0,80}\d)(?P<secret>[^\s\"'&,;<>(){}\[\]\\]{6,})"
)
_PAIRS = tuple((name, re.compile(name + _VALUE)) for name in _NAMES_IN_TEXT)

# Names of fields, in lower case and without `-`, `_` and blanks.
_NAMES: Final = frozenset(
    "authorization proxyauthorization cookie cookies setcookie credential credentials password passwd passphrase "
    "extraheaders secret secrets bearer apitoken hftoken githubtoken".split()
)
_ENDINGS: Final = (
    "apikey",
    "apikeys",
    "authtoken",
    "accesstoken",
    "refreshtoken",
    "sessiontoken",
    "securitytoken",
    "bearertoken",
    "idtoken",
    "secretkey",
    "accesskey",
    "privatekey",
    "clientsecret",
    "password",
)
# In the schema of a tool's parameter that has such a name, only these can hold a value.
_PROPERTIES, _PARAMETER = "properties", "parameter"
_VALUES_OF_A_SCHEMA: Final = frozenset(("default", "const", "enum", "example", "examples"))
_SEPARATORS = str.maketrans("", "", "-_ .")
# No encoder writes a plain letter, digit, `-` or `_` as an escape; whoever does hides a word from a search.
_HIDDEN = re.compile(rb"\\u00(?:2[dD]|3[0-9]|4[1-9a-fA-F]|5[0-9aAfF]|6[1-9a-fA-F]|7[0-9aA])")


# The end of a key; a quote inside a string has a backslash before it.
_KEY = re.compile(rb'(?:(?<!\\)|\\\\)"[ \t\r\n]*:')
# Data in base 64: no token is found inside, for tokens stand alone.
_DATA = re.compile(rb"[A-Za-z0-9+/=]{4096,}")
_LARGE_BODY_BYTES = 256 * 1024


class TooManyValues(ValueError):
    """The document has more values than are looked through."""


def is_credential_name(name: str) -> bool:
    """Whether a field of this name holds a credential: `X-Api-Key`, `aws_secret_access_key`, `authorization`."""
    plain = name.lower().translate(_SEPARATORS)
    return plain in _NAMES or plain.endswith(_ENDINGS)


def looks_like_credential(text: str) -> bool:
    """Whether a token of a known shape is in the text."""
    return any(any(mark in text for mark in shape.marks) and shape.pattern.search(text) for shape in SHAPES)


class Search(NamedTuple):
    """What to look for in texts: shapes of tokens, and names that stand before a value."""

    shapes: Sequence[Shape]
    pairs: Sequence[tuple[str, re.Pattern[str]]]


EVERYTHING: Final = Search(SHAPES, _PAIRS)
NOTHING: Final = Search((), ())


def search_for(body: bytes) -> Search:
    """What of it a JSON body may hold at all, found out with a few searches at memory speed."""
    if _HIDDEN.search(body) is not None:
        return EVERYTHING
    lower = _DATA.sub(b"", body).lower() if len(body) > _LARGE_BODY_BYTES else body.lower()
    shapes = tuple(shape for shape in SHAPES if any(mark.lower().encode() in lower for mark in shape.marks))
    return Search(shapes, tuple(pair for pair in _PAIRS if pair[0].encode() in lower))


def without_tokens(text: str, search: Search = EVERYTHING) -> tuple[str, int]:
    """The text with its tokens replaced, and how many there were."""
    removed = 0
    for shape in search.shapes:
        if any(mark in text for mark in shape.marks):
            text, found = shape.pattern.subn(_without_secret, text)
            removed += found
    lower = text.lower() if search.pairs else ""
    if len(lower) != len(text) and search.pairs:  # the dotted capital I grows: then places do not correspond
        lower = text.replace("\u0130", "I").lower()
    for name, pattern in search.pairs:
        if name in lower:
            spans = [match.span("secret") for match in pattern.finditer(lower)]
            text, lower = _cut_out(text, spans), _cut_out(lower, spans)
            removed += len(spans)
    return text, removed


def _cut_out(text: str, spans: list[tuple[int, int]]) -> str:
    pieces: list[str] = []
    done = 0
    for start, end in spans:
        pieces += (text[done:start], REMOVED)
        done = end
    return "".join((*pieces, text[done:]))


def _without_secret(match: re.Match[str]) -> str:
    if "secret" not in match.re.groupindex:
        return REMOVED
    whole, (start, end) = match.group(), match.span("secret")
    return whole[: start - match.start()] + REMOVED + whole[end - match.start() :]


def remove_credentials(document: Any, search: Search = EVERYTHING) -> tuple[int, int]:
    """Replace credentials inside a JSON object or list, in place: how many there were, and how many keys were seen.

    Fields go by their names, whatever `search` says. Raises TooManyValues.
    """
    removed = keys = 0
    left = MOST_VALUES
    texts = bool(search.shapes or search.pairs)
    known: dict[str, bool] = {}
    stack: list[tuple[Any, str]] = [(document, "")]
    while stack:
        node, role = stack.pop()
        left -= len(node)
        if left < 0:
            raise TooManyValues
        if isinstance(node, dict):
            keys += len(node)
            for key in list(node):
                suspect = known.get(key)
                if suspect is None:
                    suspect = known[key] = is_credential_name(key) or key.lower().endswith("headers")
                if (suspect or role == _PARAMETER) and _is_credential(key, node[key], role):
                    node[key] = REMOVED
                    removed += 1
                if texts:
                    clean, found = without_tokens(key, search)
                    if found:
                        node[clean] = node.pop(key)
                        removed += found
        for key, value in list(node.items()) if isinstance(node, dict) else enumerate(node):
            if isinstance(value, dict | list):
                stack.append((value, _role_of_value(key, role, known) if isinstance(key, str) else ""))
            elif texts and isinstance(value, str):
                node[key], found = without_tokens(value, search)
                removed += found
    return removed, keys


def _is_credential(key: str, value: Any, role: str) -> bool:
    if value is None or isinstance(value, bool) or value in ("", REMOVED, [], {}):
        return False
    if role == _PARAMETER:
        return key in _VALUES_OF_A_SCHEMA
    # Under `properties` stands the schema of a parameter by that name; it has to stay one. Of a table, `headers` is
    # the list of its columns.
    return role != _PROPERTIES if isinstance(value, dict) else is_credential_name(key)


def _role_of_value(key: str, role: str, known: dict[str, bool]) -> str:
    if role == _PROPERTIES:
        return _PARAMETER if known.get(key) else ""
    return _PROPERTIES if key == _PROPERTIES else ""


def clean_json(body: bytes, document: dict[str, Any]) -> tuple[bytes | None, int]:
    """The JSON without credentials, and how many were taken out. `document` is what it says, and is changed.

    Without any, the body is returned byte for byte. None where it is nested too deeply to be written anew. Raises
    TooManyValues.
    """
    removed, keys = remove_credentials(document, search_for(body))
    if not removed and keys < _keys_in(body) and _has_secret_twin(body):
        removed = 1
    return (json_of(document) if removed else body), removed


def _keys_in(body: bytes) -> int:
    """At least as many as the keys of the JSON. Counted at memory speed where it is written as encoders write it."""
    if b'\\\\"' in body or any(blank in body for blank in (b" :", b"\t:", b"\n:", b"\r:")):
        return sum(1 for _ in _KEY.finditer(body))
    return body.count(b'":') - body.count(b'\\":')


def _has_secret_twin(body: bytes) -> bool:
    """Of two fields with one name a parser keeps the last. Whether a first, still in the bytes, is a credential."""
    found = False

    def look(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal found
        kept = dict(pairs)
        if len(kept) < len(pairs):
            for key, value in pairs:
                if value is not kept[key]:
                    found = found or remove_credentials({key: value})[0] > 0
        return kept

    try:
        json.loads(body, object_pairs_hook=look)
    except (ValueError, RecursionError):
        return True  # it cannot be told, so it is written anew
    return found
