"""A stand-in for nvidia-smi: a script that prints what a test gives it, once or for ever."""

from pathlib import Path

# What the tool says on a GB10: neither its memory nor the memory's clock is its own.
GB10 = "0, 2411, 3003, 45.21, 64, 96, [N/A], 0x0000000000000000"
H200 = "0, 1470, 1980, 693.08, 56, 100, 1011, 0x0000000000000004"


def write_tool(folder: Path, gpus: str = GB10, apps: str = "", *, before: str = "") -> Path:
    """The script, for `tool=`. `gpus` and `apps` are what each look prints; `before` is shell that runs first."""
    tool = folder / "nvidia-smi"
    (folder / "gpus").write_text(gpus + "\n" if gpus else "")
    (folder / "apps").write_text(apps + "\n" if apps else "")
    tool.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {folder}/asked\n'
        f"{before}\n"
        f'case "$*" in *compute-apps*) what={folder}/apps;; *) what={folder}/gpus;; esac\n'
        'cat "$what"\n'
        'case "$*" in *-lms*) while sleep 0.05; do cat "$what" || exit; done;; esac\n'
    )
    tool.chmod(0o700)
    return tool


def asked(folder: Path) -> list[str]:
    """The command lines that the tool was called with."""
    file = folder / "asked"
    return file.read_text().splitlines() if file.exists() else []
