"""Files of class rules: what is refused and how, what a user's file does, and that polars does what the rules say."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import polars as pl
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.class_conditions import COLUMNS, COMPARE, NUMBER, TEXT, Condition, read_condition
from profiles.class_rules import DEFAULT_RULES, Rules, Shown
from profiles.classes_cli import classes
from profiles.classify import classify_frame, read_rules
from profiles.errors import RuleError

END = '\n[[class]]\nname = "rest"\nwhy = "What is left."\n'


def one(**keys: str) -> str:
    """A class whose keys are given as TOML."""
    return "[[class]]\n" + "".join(
        f"{key} = {value}\n" for key, value in ({"name": '"a"', "why": '"w"'} | keys).items()
    )


def read(folder: Path, text: str) -> Rules:
    path = folder / "my.toml"
    path.write_text(text, encoding="utf-8")
    return read_rules(path)


@pytest.mark.parametrize(
    ("text", "line", "key", "problem", "hint"),
    [
        ("[[class]\n", 1, "", "not TOML", ""),
        ("", 0, "class", "is missing", ""),
        ("class = []\n", 1, "class", "no class", "`firsttoken profile classes`"),
        ("chars_per_token = 0\n" + END, 1, "chars_per_token", "1 or more", "4"),
        ("schema = 2\n" + END, 1, "schema", "2 is unknown; write 1", ""),
        (one(wehn='"tools > 0"') + END, 4, "class[0].wehn", "unknown key", "Did you mean 'when'?"),
        (one(when='["tols > 0"]') + END, 4, "class[0].when", "unknown column 'tols'", "Did you mean 'tools'?"),
        (one(when='["xyzzy > 0"]') + END, 4, "class[0].when", "unknown column 'xyzzy'", "--columns"),
        (one(when='["workload == code"]') + END, 4, "class[0].when", "unknown column 'workload'", ""),
        (one(when='["tools => 1"]') + END, 4, "class[0].when", "unknown operator '=>'", "Write >=."),
        (one(when='["tools = 1"]') + END, 4, "class[0].when", "unknown operator '='", "Write ==."),
        (one(when='["tools unknwon"]') + END, 4, "class[0].when", "unknown operator 'unknwon'", "'unknown'"),
        (one(when='["tools >"]') + END, 4, "class[0].when", "no value", "COLUMN OPERATOR VALUE"),
        (one(when='["> 3"]') + END, 4, "class[0].when", "not a condition", "COLUMN OPERATOR VALUE"),
        (one(when='["tools known 3"]') + END, 4, "class[0].when", "goes on after", "tools known"),
        (one(when='["tools > many"]') + END, 4, "class[0].when", "'many' is none", "digits"),
        (one(when='["input_chars > prompt_tokens"]') + END, 4, "class[0].when", "is none", "1 * COLUMN"),
        (one(when='["input_tokens > 4 * model"]') + END, 4, "class[0].when", "model holds no number", "numbers"),
        (one(when='["model > 3"]') + END, 4, "class[0].when", "> is for numbers", "=="),
        (one(when='["tools like 3*"]') + END, 4, "class[0].when", "like is for text", "=="),
        (one(when='["stream == yes"]') + END, 4, "class[0].when", "true or false", "stream == true"),
        (one(when='["model == two words"]') + END, 4, "class[0].when", "not a value", "Quote"),
        (one(when='["model in m"]') + END, 4, "class[0].when", "needs a list", "in [m]"),
        (one(when='["model == [m, n]"]') + END, 4, "class[0].when", "takes one value", "in"),
        (one(when='["endpoint == embedding"]') + END, 4, "class[0].when", "never 'embedding'", "'embeddings'"),
        (one(when="3") + END, 4, "class[0].when", "must be a text in quotes or a list in brackets, and a whole", ""),
        (one(when='[\n  "tools > 0",\n  "tols > 0",\n]') + END, 6, "class[0].when", "unknown column", "'tools'"),
        (one(any='["tools > 0", {when = "n > x"}]') + END, 4, "class[0].any[1]", "'x' is none", ""),
        (one(when='"n > 1"', says='"{3}"') + END, 5, "class[0].says", "no value for {3}", "{1}"),
        (one(when='"n > 1"', says='"{modl}"') + END, 5, "class[0].says", "no value for {modl}", "'model'"),
        (one(when='"n > 1"', says='"{n"') + END, 5, "class[0].says", "expected '}'", "{{"),
        (one(any='["n > 1"]', says='"x"') + END, 5, "class[0].says", "case by case", "Move it"),
        (one(name='"Chat 1"', when='"n > 1"') + END, 2, "class[0].name", "no name for a class", "lower-case"),
        (one(name='"all"', when='"n > 1"') + END, 2, "class[0].name", "no name for a class", "'all'"),
        (one(why='""', when='"n > 1"') + END, 3, "class[0].why", "one line", ""),
        ('[[class]]\nwhy = "w"\n' + END, 1, "class[0].name", "is missing", ""),
        (one(when='"n > 1"') + one(when='"n > 2"') + END, 6, "class[1].name", "two classes", "`any`"),
        (one(when='"n > 1"'), 1, "class[0]", "does not take what is left", "End the file"),
        (one() + END, 6, "class[1].name", "never reached", "above a"),
        (one(when='"n >= 1"') + one(name='"b"', when='"n >= 4"') + END, 6, "class[1].name", "never reached", "above a"),
        (one(any='["n > 1", "n == 3"]') + END, 4, "class[0].any[1]", "never reached", "Remove it"),
    ],
)
def test_a_mistake_is_refused_with_its_place(
    tmp_path: Path, text: str, line: int, key: str, problem: str, hint: str
) -> None:
    with pytest.raises(RuleError) as caught:
        read(tmp_path, text)
    assert (caught.value.line, caught.value.key) == (line, key)
    assert problem in caught.value.problem
    assert hint in caught.value.hint


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="No such file"):
        read_rules(tmp_path / "none.toml")
    (tmp_path / "latin.toml").write_bytes(b'why = "\xe9"')
    with pytest.raises(RuleError, match="not UTF-8"):
        read_rules(tmp_path / "latin.toml")


@pytest.mark.parametrize(
    ("earlier", "later"),
    [
        ("n > 1", "n >= 1"),
        ("n >= 4", "n >= 1.5 * tools"),
        ("n in [1, 2]", "n in [1, 2, 3]"),
        ("n < 3", "n > 3"),
        ("n unknown", "n > 3"),
        ("model like q*", "model == qwen"),  # true, but not seen: better to let it pass than to refuse a right file
        ("model == a", "model != a"),
    ],
)
def test_a_rule_that_may_be_reached_is_accepted(tmp_path: Path, earlier: str, later: str) -> None:
    assert read(tmp_path, one(when=f'"{earlier}"') + one(name='"b"', when=f'"{later}"') + END).names == (
        "a",
        "b",
        "rest",
    )


def test_the_users_classes_come_first_and_the_default_ones_follow(tmp_path: Path) -> None:
    head, first, rest = DEFAULT_RULES.read_text(encoding="utf-8").partition('[[class]]\nname = "embedding"')
    own = """[[class]]
name = "translation"
why = "The translator asks model mt-hu only."
any = [
  { when = ["model == mt-hu", "tenant in [3, 7]"], says = "tenant {tenant} asks {model}" },
  "path like */translate*",
]
language = false

"""
    rules = read(tmp_path, head + own + first + rest)
    assert rules.names == ("translation", *read_rules().names)
    frame = pl.DataFrame(
        {
            "model": ["mt-hu", "mt-hu", None, "qwen"],
            "tenant": [7, 1, 3, None],
            "path": [None, None, "/v1/translate/x", "/v1/chat/completions"],
            "language": ["hu", "hu", "hu", "hu"],
            "prompt_tokens": [9, 9, 9, 9],
        }
    )
    assert classify_frame(frame, rules).select("workload", "workload_rule").rows() == [
        ("translation", "tenant 7 asks mt-hu"),
        ("chat_single.hu", "turns unknown"),
        ("translation", "path like */translate*"),
        ("chat_single.hu", "turns unknown"),
    ]


def test_two_hashes_tell_a_reformatted_file_from_changed_rules(tmp_path: Path) -> None:
    rules = read(tmp_path, one(when='["n > 1000"]') + END)
    same = read(tmp_path, "# a comment\n" + one(when='"n  >  1_000"', why='"other words"') + END)
    other = read(tmp_path, one(when='["n > 1001"]') + END)
    assert same.sha256 != rules.sha256
    assert same.semantic_sha256 == rules.semantic_sha256 != other.semantic_sha256
    assert rules.name == "my.toml"


def test_values_are_read_as_they_are_written() -> None:
    assert read_condition("input_tokens >= 4 * output_tokens") == Condition("input_tokens", ">=", (4,), "output_tokens")
    assert read_condition('model in ["a, b", c]'.replace("a, b", "a b")) == Condition("model", "in", ("a b", "c"))
    assert read_condition("temperature<=0.5") == Condition("temperature", "<=", (0.5,))
    assert read_condition("stream != false") == Condition("stream", "!=", (False,))
    assert read_condition("model == 7") == Condition("model", "==", ("7",))
    assert read_condition(" code_share  unknown ") == Condition("code_share", "unknown")


@pytest.mark.parametrize(
    ("pattern", "takes", "leaves"),
    [
        ("*/rerank", ["/v1/rerank", "/rerank"], ["/rerank2", "rerank"]),
        ("qwen*", ["qwen", "qwen/3"], ["my-qwen"]),
        ("*audio*", ["audio", "/v1/audio/x"], ["adio"]),
        ("a*b*c", ["abc", "a\nb c"], ["ac", "abcd"]),
        ("a.c", ["a.c"], ["abc"]),
        ("*", ["", "x"], []),
    ],
)
def test_a_star_stands_for_any_text(tmp_path: Path, pattern: str, takes: list[str], leaves: list[str]) -> None:
    rules = read(tmp_path, one(when=f'"model like {pattern}"') + END)
    found = classify_frame(pl.DataFrame({"model": [*takes, *leaves, None]}), rules)["workload"].to_list()
    assert found == ["a"] * len(takes) + ["rest"] * (len(leaves) + 1)


# --- The same rules, evaluated row by row in Python.


def value_of(row: dict[str, Any], column: str, chars_per_token: int) -> Any:
    chars = row.get("input_chars")
    if column == "input_tokens":
        return row["prompt_tokens"] if row.get("prompt_tokens") is not None else chars and chars // chars_per_token
    if column == "input_counted_by":
        if row.get("prompt_tokens") is not None:
            return "prompt_tokens"
        return None if chars is None else f"input_chars/{chars_per_token}"
    if column == "turns":
        turn = row.get("turn")
        return row["user_turns"] if row.get("user_turns") is not None else None if turn is None else turn + 1
    return row.get(column)


def holds(condition: Condition, row: dict[str, Any], chars_per_token: int) -> bool:
    value = value_of(row, condition.column, chars_per_token)
    if condition.operator in ("known", "unknown"):
        return (value is not None) == (condition.operator == "known")
    if value is None:
        return False
    if condition.operator == "in":
        return value in condition.values
    if condition.operator == "like":
        forms = [".*".join(map(re.escape, str(pattern).split("*"))) for pattern in condition.values]
        return any(re.fullmatch(form, value, re.DOTALL) for form in forms)
    limit: Any = condition.values[0]
    if condition.times is not None:
        factor = value_of(row, condition.times, chars_per_token)
        if factor is None:
            return False
        limit *= factor
    return bool(COMPARE[condition.operator](value, limit))


def classify_row(row: dict[str, Any], rules: Rules) -> tuple[str, str]:
    each, rule = next(
        (each, rule)
        for each, rule in rules.ordered()
        if all(holds(condition, row, rules.chars_per_token) for condition in rule.conditions)
    )
    language = row.get("language")
    suffix = f".{language}" if each.language and language not in (None, "en") else ""
    values = [
        value_of(row, piece.column, rules.chars_per_token) if isinstance(piece, Shown) else piece for piece in rule.says
    ]
    return each.name + suffix, "".join("unknown" if value is None else str(value) for value in values)


WORDS: dict[str, Sequence[str]] = {
    "endpoint": ("chat", "embeddings", "other"),
    "path": ("/v1/chat/completions", "/v1/rerank", "/x/audio/y", ""),
    "last_role": ("user", "tool"),
    "finish": ("stop", "tool_calls", "length"),
    "response_format": ("text", "json_schema", "regex", "structural_tag"),
    "language": ("en", "hu"),
    "think_kind": ("tool", "human"),
    "unread": ("not JSON",),
}
NUMBERS = ("prompt_tokens", "output_tokens", "input_chars", "messages", "user_turns", "turn", "tools", "tool_results")
MORE_NUMBERS = ("images", "audios", "max_tokens", "reasoning_tokens")
# Near the thresholds, since elsewhere every value is as good as the next.
SIZES = st.sampled_from([0, 1, 2, 15, 16, 17, 511, 512, 1_023, 1_024, 2_048, 4_096, 16_384, 65_536, 300_000])
KNOWN = (
    {column: st.sampled_from(words) for column, words in WORDS.items()}
    | dict.fromkeys((*NUMBERS, *MORE_NUMBERS), SIZES)
    | {"code_share": st.sampled_from([0.0, 0.29, 0.3, 1.0]), "reasoning": st.booleans()}
)
TYPES = {NUMBER: pl.Int64(), TEXT: pl.String()}
SCHEMA = {
    column: pl.Float64() if column == "code_share" else TYPES.get(COLUMNS[column], pl.Boolean()) for column in KNOWN
}
ROWS = st.lists(
    st.fixed_dictionaries({}, optional={column: st.none() | each for column, each in KNOWN.items()}), max_size=6
)
COLUMN_SETS = st.sets(st.sampled_from(sorted(KNOWN)))


@settings(max_examples=60, deadline=None)
@given(ROWS, COLUMN_SETS)
def test_every_request_is_of_the_one_class_that_the_rules_give_row_by_row(
    rows: list[dict[str, Any]], missing: set[str]
) -> None:
    rules = read_rules()
    schema = {column: kind for column, kind in SCHEMA.items() if column not in missing}
    rows = [{column: row.get(column) for column in schema} for row in rows]
    frame = pl.DataFrame(rows, schema=schema) if schema else pl.DataFrame()
    found = classify_frame(frame, rules)
    if not schema:
        return
    assert found.select("workload", "workload_rule").rows() == [classify_row(row, rules) for row in rows]
    assert found.select(list(schema)).equals(frame)


# --- The command.


def run(*arguments: str) -> Any:
    return CliRunner().invoke(classes, arguments)


def test_the_default_file_comes_out_byte_for_byte_and_is_accepted_again(tmp_path: Path) -> None:
    printed = run()
    assert (printed.exit_code, printed.stdout_bytes) == (0, DEFAULT_RULES.read_bytes())
    (tmp_path / "mine.toml").write_bytes(printed.stdout_bytes)
    assert read_rules(tmp_path / "mine.toml").semantic_sha256 == read_rules().semantic_sha256


def test_check_prints_the_classes_in_order(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(one(when='"n > 1"') + END, encoding="utf-8")
    checked = run("--check", str(path))
    assert checked.stdout == "  1  a                w\n  2  rest             What is left.\n"
    assert "2 classes, sha256" in checked.stderr
    assert all(len(line) <= 80 for line in run("--check", str(DEFAULT_RULES)).stdout.splitlines())


def test_a_wrong_file_is_an_error_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(one(when='"tols > 1"') + END, encoding="utf-8")
    with pytest.raises(RuleError, match=re.escape(f"{path}:4: class[0].when: unknown column 'tols'")):
        classes.main(["--check", str(path)], standalone_mode=False)


def test_json_and_columns_are_for_programs_and_for_writers() -> None:
    assert run("--json").stdout.startswith('{\n  "file": "classes.toml",\n  "sha256":')
    listed = dict(line.split(maxsplit=1) for line in run("--columns").stdout.splitlines())
    assert (listed["tools"], listed["model"], listed["stream"]) == ("number", "text", "true or false")
    assert isinstance(classes, click.Command)
