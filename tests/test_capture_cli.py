"""`firsttoken record`: what a person can get wrong, said before anything starts."""

import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from capture.cli import parse_address, parse_upstream, record
from profiles.errors import FirsttokenError, UsageError


def refused(*options: str) -> FirsttokenError:
    """The error of a command line that starts nothing."""
    result = CliRunner().invoke(record, options)
    assert isinstance(result.exception, FirsttokenError), result.output
    return result.exception


def test_a_busy_port_is_said_in_one_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as busy:
        listen = f"127.0.0.1:{busy.getsockname()[1]}"
        problem = refused("--upstream", "http://127.0.0.1:1", "--listen", listen, "--out", str(tmp_path / "c"))
    assert problem.problem == f"{listen} is already in use"
    assert problem.exit_code == 1
    assert not (tmp_path / "c").exists()


def test_the_recorder_does_not_listen_where_the_engine_does(tmp_path: Path) -> None:
    problem = refused("--upstream", "http://127.0.0.1:8100", "--out", str(tmp_path / "c"))
    assert isinstance(problem, UsageError)


def test_a_file_is_not_a_capture(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    problem = refused("--upstream", "http://127.0.0.1:1", "--out", str(tmp_path / "file"))
    assert isinstance(problem, UsageError)


@pytest.mark.parametrize(
    "text",
    ["127.0.0.1:8000", "ftp://h:1", "http://", "http://h:x", "http://h:0", "http://h:1/v1", "http://u:p@h:1", ""],
)
def test_a_malformed_upstream_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not the address of an engine"):
        parse_upstream(text)


@pytest.mark.parametrize("text", ["8100", "127.0.0.1", "127.0.0.1:x", ":8100", "h:70000", "h:1/x", "u@h:1", ""])
def test_a_malformed_listen_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not an address"):
        parse_address("--listen", text)


def test_addresses_are_read_as_written() -> None:
    assert parse_upstream("http://10.0.0.7:8000/") == ("http://10.0.0.7:8000", ("10.0.0.7", 8000))
    assert parse_upstream("https://engine") == ("https://engine:443", ("engine", 443))
    assert parse_upstream("http://[::1]:8000")[0] == "http://[::1]:8000"
    assert str(parse_address("--listen", "[::1]:8100")) == "[::1]:8100"


NO_PEM = "this is no certificate\n"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--ca", "FILE"), "for an https engine"),
        (("--insecure-upstream",), "for an https engine"),
        (("--upstream", "https://127.0.0.1:1", "--ca", "FILE"), "holds no certificate"),
        (("--certs", "FILE"), "does not hold a private key"),
        (("--sample-bodies", "0.5"), "--sample-bodies is for bodies that are kept"),
        (("--hash-key", "FILE"), "--hash-key has nothing to do"),
        (("--metrics-listen", "127.0.0.1:0"), "cannot be used"),
        (("--metrics-listen", "127.0.0.1:8100"), "cannot be used"),
        (("--metrics-listen", "nonsense"), "is not an address"),
    ],
)
def test_options_that_make_no_sense_are_refused_with_a_hint(
    tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    (tmp_path / "file").write_text(NO_PEM)
    given = [str(tmp_path / "file") if option == "FILE" else option for option in options]
    upstream = () if "--upstream" in options else ("--upstream", "http://127.0.0.1:1")
    problem = refused(*upstream, "--out", str(tmp_path / "c"), *given)
    assert isinstance(problem, UsageError)
    assert said in problem.problem
    assert problem.hint
    assert not (tmp_path / "c").exists()
