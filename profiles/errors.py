"""What can go wrong, and who is at fault.

    FirsttokenError           exit 1   something failed; the message says what, where and what to do
    ├── UsageError            exit 2   the command line or a setting is wrong
    │   ├── FormatError       exit 2   a file is not what it should be: path, line, problem
    │   └── RuleError         exit 2   experiment.toml or a file of class rules: path, key, problem
    ├── EngineFailed          exit 1   an engine did not boot, died, or would not go away
    └── RunInvalid            exit 4   the run cannot be judged

Commands raise these and nothing else for what a user can cause. The front door prints the message and the hint,
without a traceback, and exits with `exit_code`. Any other exception is our own bug and shows its traceback.

Exit codes that are results: 3 something is inconclusive (`report`, `profile diff`), 5 the load has changed
(`profile diff`).
"""

from pathlib import Path


class FirsttokenError(Exception):
    """A failure that a user can understand: `problem` in one sentence, `hint` says what to do."""

    exit_code = 1

    def __init__(self, problem: str, hint: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.problem}\n  {self.hint}" if self.hint else self.problem


class UsageError(FirsttokenError):
    """The command line or a setting is wrong; nothing was started."""

    exit_code = 2


class FormatError(UsageError):
    """A file that is not what it should be. `line` counts from 1; 0 stands for the file as a whole."""

    def __init__(self, path: Path, problem: str, *, line: int = 0, hint: str = "") -> None:
        where = f"{path}:{line}" if line else f"{path}"
        super().__init__(f"{where}: {problem}", hint)
        self.path = path
        self.line = line


class RuleError(UsageError):
    """A key of experiment.toml that cannot be accepted."""

    def __init__(self, path: Path, key: str, problem: str, *, line: int = 0, hint: str = "") -> None:
        where = f"{path}:{line}" if line else f"{path}"
        super().__init__(f"{where}: {key}: {problem}" if key else f"{where}: {problem}", hint)
        self.path = path
        self.key = key
        self.line = line


class EngineFailed(FirsttokenError):
    """An engine that did not boot, died, or would not go away. `log_tail` holds its last lines, `diagnosis` is one word
    for it (`runs.BootFacts.diagnosis`)."""

    def __init__(
        self, problem: str, hint: str = "", log_tail: tuple[str, ...] = (), *, diagnosis: str | None = None
    ) -> None:
        super().__init__(problem, hint)
        self.log_tail = log_tail
        self.diagnosis = diagnosis


class RunInvalid(FirsttokenError):
    """The run cannot be judged."""

    exit_code = 4
