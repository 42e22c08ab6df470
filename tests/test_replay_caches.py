"""Caches between boots: what is emptied, what never is, and what a rule must say about it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import FirsttokenError, RuleError
from profiles.experiment import Experiment, load_experiment
from replay import caches
from replay.caches import check_caches, directories, drop_page_cache, prepare, refusal, size_of
from replay.clock import SystemClock

CLOCK = SystemClock()
RULE = """
[rule]
id = "caches"
[profile]
path = "profile"
[engine]
argv = ["engine"]
{engine}
[[arm]]
name = "v0"
{arm}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a working directory of its own, on a machine whose temporary directory is elsewhere."""
    for name in caches.MODEL_STORE_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "home"
    (folder / "work").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    monkeypatch.chdir(folder / "work")
    return folder


def experiment(folder: Path, engine: str = "", arm: str = "") -> Experiment:
    path = folder / "experiment.toml"
    path.write_text(RULE.format(engine=engine, arm=arm))
    return load_experiment(path)


def filled(path: Path) -> Path:
    """A cache of three files, 30 bytes, in two folders."""
    (path / "inner").mkdir(parents=True)
    for name in ("a", "inner/b", "inner/.c"):
        (path / name).write_bytes(bytes(10))
    return path


# What may be emptied


@pytest.mark.parametrize(
    "name",
    [
        ".cache/vllm/torch_compile_cache",
        ".triton",
        ".nv/ComputeCache",
        ".cache/flashinfer",
        "work/caches/v0",
        "../tmp/torchinductor_me",
    ],
)
def test_a_cache_below_home_working_or_temporary_directory_may_be_emptied(home: Path, name: str) -> None:
    path = (home / name).resolve()
    assert refusal(path) is None  # also before it exists
    filled(path)
    assert refusal(path) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("/", "not below your home"),
        ("/usr", "not below your home"),
        ("/usr/share/cache", "not below your home"),
        ("~", "not below your home"),
        ("~/..", "not below your home"),
        ("~/work", "nothing in its name says that it is a cache"),
        ("~/Documents", "nothing in its name says that it is a cache"),
        ("~/.ssh", "nothing in its name says that it is a cache"),
        ("~/.cache", "models lie in"),
        ("~/.cache/huggingface/hub", "models lie in"),
    ],
)
def test_what_is_no_cache_is_never_emptied(home: Path, name: str, why: str) -> None:
    path = Path(name).expanduser().resolve()
    found = refusal(path)
    assert found is not None
    assert why in found
    with pytest.raises(FirsttokenError, match="will not be emptied"):
        prepare("wipe", [path], CLOCK)


def test_a_link_to_a_cache_is_refused_and_so_is_a_cache_behind_a_link(home: Path, tmp_path: Path) -> None:
    other = filled(tmp_path / "other" / "cache")
    (home / "cache").symlink_to(other)
    (home / "linked").symlink_to(other.parent)
    assert refusal(home / "cache") == "it is a link"
    assert "not below your home" in str(refusal(home / "linked" / "cache"))
    assert size_of(other).files == 3


def test_a_file_and_a_folder_of_somebody_else_are_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "a.cache").write_text("x")
    assert refusal(home / "a.cache") == "it is not a directory"
    filled(home / "cache")
    monkeypatch.setattr("os.access", lambda *_: False)
    assert refusal(home / "cache") == "you may not write to it"


def test_what_a_run_needs_neither_lies_in_a_cache_nor_holds_it(home: Path) -> None:
    run = home / "cache" / "runs" / "one"
    (run / "boots" / "cache").mkdir(parents=True)
    assert refusal(home / "cache", [run]) == f"{run} lies in it"
    assert refusal(run, [run]) == f"{run} lies in it"
    assert refusal(run / "boots" / "cache", [run]) == f"it lies in {run}"
    assert refusal(home / "cache" / "v0", [run]) is None


def test_the_working_directory_and_the_home_are_never_in_a_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = home / "cache" / "work"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert refusal(home / "cache") == f"{inner} lies in it"
    monkeypatch.setenv("HOME", str(inner / "home"))
    monkeypatch.chdir(home)
    assert refusal(home / "cache") is not None


def test_a_model_store_that_a_variable_names_is_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert refusal(home / "cache") is None
    monkeypatch.setenv("HF_HOME", str(home / "cache" / "hf"))
    assert refusal(home / "cache") == f"models lie in {home / 'cache' / 'hf'}"
    assert refusal(home / "cache" / "hf" / "hub") is not None
    assert refusal(home / "cache" / "triton") is None


@given(st.lists(st.sampled_from(["..", ".", "work", "cache", ".cache", "home"]), max_size=6))
def test_no_path_reaches_the_home_or_above(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    home = tmp_path_factory.getbasetemp() / "some" / "home"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setattr("tempfile.tempdir", str(home / "tmp"))
        path = home.joinpath(*parts).resolve()
        if refusal(path) is None:
            assert home in path.parents
            assert any("cache" in part for part in path.relative_to(home).parts)


# What a policy does


def test_wipe_empties_the_directory_and_records_both_sizes(home: Path) -> None:
    path, none = filled(home / "cache"), home / "none-cache"
    step = prepare("wipe", [path, none], CLOCK)
    assert step.name == "caches"
    assert step.facts == {
        "policy": "wipe",
        "dirs": [
            {"path": str(path), "before_bytes": 30, "before_files": 3, "after_bytes": 0, "after_files": 0},
            {
                "path": str(home / "none-cache"),
                "before_bytes": 0,
                "before_files": 0,
                "after_bytes": 0,
                "after_files": 0,
            },
        ],
    }
    assert step.proof == "2 directories emptied, 30 B before"
    assert list(path.iterdir()) == []
    assert not none.exists()


@pytest.mark.parametrize("policy", ["keep", "prewarm"])
def test_the_other_policies_measure_and_touch_nothing(home: Path, policy: str) -> None:
    path = filled(home / "models")
    step = prepare(policy, [path], CLOCK)
    assert step.facts["dirs"] == [{"path": str(path), "before_bytes": 30, "before_files": 3}]
    assert step.proof == "left as they are: 30 B in 1 directory"
    assert size_of(path).files == 3
    assert prepare(policy, [], CLOCK).proof == "left as they are, no cache_dirs to measure"


def test_links_in_a_cache_are_removed_and_what_they_point_to_stays(home: Path) -> None:
    precious = filled(home / "precious")
    path = filled(home / "cache")
    (path / "link").symlink_to(precious)
    (path / "inner" / "link").symlink_to(precious)
    assert size_of(path).files == 5
    prepare("wipe", [path], CLOCK)
    assert list(path.iterdir()) == []
    assert size_of(precious).files == 3


def test_a_cache_that_became_a_link_since_the_plan_is_not_followed(home: Path) -> None:
    rule = experiment(home / "work", 'cache = "wipe"\ncache_dirs = ["~/cache"]')
    (path,) = check_caches(rule)
    precious = filled(home / "precious")
    path.symlink_to(precious)
    with pytest.raises(FirsttokenError, match="it is a link") as refused:
        prepare("wipe", [path], CLOCK)
    assert "changed since the run was planned" in refused.value.hint
    assert size_of(precious).files == 3


def test_what_cannot_be_removed_stops_the_run_and_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = filled(home / "cache")

    def refuse(name: str) -> None:
        raise PermissionError(13, "Permission denied", name)

    monkeypatch.setattr("shutil.rmtree", refuse)
    with pytest.raises(FirsttokenError, match=r"inner: cannot be removed \(Permission denied\)"):
        prepare("wipe", [path], CLOCK)


def test_a_cache_that_somebody_fills_meanwhile_is_not_called_empty(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = filled(home / "cache")
    monkeypatch.setattr(caches, "_empty", lambda *_: None)
    with pytest.raises(FirsttokenError, match="3 files came back"):
        prepare("wipe", [path], CLOCK)


def test_the_page_cache_is_written_out_and_dropped(tmp_path: Path) -> None:
    done: list[str] = []
    free = [10**9, 9 * 10**9]
    file = tmp_path / "drop_caches"
    step = drop_page_cache(CLOCK, file=file, free=lambda: free.pop(0), sync=lambda: done.append("sync"))
    assert (file.read_text(), done) == ("3\n", ["sync"])
    assert step.facts == {"before_free_bytes": 10**9, "after_free_bytes": 9 * 10**9}
    assert step.proof == "9.0 GB free, 1.0 GB before"
    with pytest.raises(FirsttokenError, match="cannot be dropped"):
        drop_page_cache(CLOCK, file=tmp_path / "none" / "drop_caches", sync=lambda: None)


# What the rule says


def test_a_tilde_is_the_home_and_a_relative_path_starts_at_the_rule(home: Path) -> None:
    rule = experiment(home / "work", 'cache_dirs = ["~/.triton", "my/../cache", "/tmp/cache"]')
    assert directories(rule) == (home / ".triton", home / "work" / "cache", Path("/tmp/cache"))


def test_a_rule_that_would_empty_the_wrong_folder_is_refused_before_any_boot(home: Path) -> None:
    text = 'cache = "wipe"\ncache_dirs = ["~/.triton", "{}"]'
    for entry, why in (("~", "cache"), ("../..", "cache"), ("profile", "nothing in its name")):
        with pytest.raises(RuleError, match=r"engine\.cache_dirs: ") as refused:
            check_caches(experiment(home / "work", text.format(entry)))
        assert why in refused.value.problem
        assert refused.value.line == 9
    profile = home / "work" / "cache" / "profile"
    rule = experiment(home / "work", text.format("cache"))
    assert check_caches(rule) == (home / ".triton", home / "work" / "cache")
    with pytest.raises(RuleError, match="profile lies in it"):
        check_caches(rule, [profile])


def test_keep_may_name_what_wipe_may_not(home: Path) -> None:
    assert check_caches(experiment(home / "work", 'cache_dirs = ["~"]')) == (home,)


def test_dropping_the_page_cache_without_permission_is_refused_before_any_boot(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = experiment(home / "work", "drop_page_cache = true")
    monkeypatch.setattr(caches, "DROP_CACHES", home / "none")
    with pytest.raises(RuleError, match=r"engine\.drop_page_cache: the page cache may be dropped by root only"):
        check_caches(rule)
    (home / "none").write_text("")
    assert check_caches(rule) == ()


EXTERNAL = 'launcher = "external"\nurl = "http://h"\n'


@pytest.mark.parametrize(
    ("engine", "arm", "problem"),
    [
        ('cache = "wipe"', "", "engine.cache: cache = .wipe. needs cache_dirs"),
        ('cache = "wipe"\ncache_dirs = [" "]', "", "engine.cache_dirs: an entry is empty"),
        ("cool_down_c = 0", "", "engine.cool_down_c: must be a temperature"),
        ("cool_down_c = inf", "", "engine.cool_down_c: must be a temperature"),
        ('cool_down_timeout = "10"', "", "engine.cool_down_timeout: '10' is not a duration"),
        ("min_available_gib = 0", "", "engine.min_available_gib: must be a number above 0"),
        ("min_available_gib = nan", "", "engine.min_available_gib: must be a number above 0"),
        ("memory_tolerance_gib = -1.0", "", "engine.memory_tolerance_gib: must be a number above 0"),
        ("log_limit_mib = 0", "", "engine.log_limit_mib: must be a number above 0"),
        ("", 'ready_timeout = "soon"', r"arm\[0\].ready_timeout: 'soon' is not a duration"),
        (
            'launcher = "external"\nurl = "http://h"\ncache = "prewarm"',
            "",
            "engine.cache: an engine that is up already",
        ),
        (
            'launcher = "external"\nurl = "http://h"\ndrop_page_cache = true',
            "",
            "drop_page_cache: an engine that is up",
        ),
    ],
)
def test_a_rule_that_cannot_be_kept_is_refused_with_its_key(
    tmp_path: Path, engine: str, arm: str, problem: str
) -> None:
    with pytest.raises(RuleError, match=problem):
        experiment(tmp_path, engine, arm)


def test_a_container_without_mounts_needs_no_wipe_and_a_hook_may_wipe_by_itself(tmp_path: Path) -> None:
    with pytest.raises(RuleError, match="needs cache_dirs") as refused:
        experiment(tmp_path, 'launcher = "docker"\nimage = "vllm"\ncache = "wipe"')
    assert 'cache = "keep" is cold each time' in refused.value.hint
    hooks = 'launcher = "command"\ncache = "wipe"\n[engine.hooks]\nstart = ["a"]\nstop = ["b"]\nwipe = ["c"]'
    assert experiment(tmp_path, hooks).file.engine is not None
