"""The peer tools, installed by hand: `python -m benchmarks.replay.peers install --into FOLDER`.

Each gets an environment of its own, from wheels only, at the version that was measured. Of vLLM, whose wheel needs
torch and a GPU, only its benchmark script is unpacked (`serve_script`). A tiny tokenizer is made for those that want
one.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import click

from benchmarks.children import ROOT, environment

AIPERF, GUIDELLM, INFERENCE_PERF, VLLM = "aiperf", "guidellm", "inference-perf", "vllm"
VLLM_VERSION = "0.33.0"
PACKAGES: Mapping[str, tuple[str, ...]] = {
    AIPERF: ("aiperf==0.13.0",),
    GUIDELLM: ("guidellm==0.8.1",),
    INFERENCE_PERF: ("inference-perf==0.7.0",),
    VLLM: ("aiohttp==3.14.5", "numpy==2.4.6", "regex==2026.11.19", "tqdm==4.70.1"),  # what its script imports
}
NAMES = tuple(PACKAGES)
SCRIPT = "vllm/benchmarks/"


class Peers:
    """A folder of installed peers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()

    def python(self, name: str) -> Path:
        return self._folder / name / "bin" / "python"

    def program(self, name: str) -> Path:
        """The command that a user of the tool types; for vLLM, the Python that runs its script."""
        return self.python(name) if name == VLLM else self._folder / name / "bin" / name

    @property
    def tokenizer(self) -> Path:
        return self._folder / "tokenizer"

    @property
    def vllm_source(self) -> Path:
        return self._folder / VLLM / "source"

    def missing(self, name: str) -> str | None:
        """Why a peer cannot run; None if it can."""
        needed = [self.program(name), self.vllm_source / SCRIPT if name == VLLM else self.tokenizer]
        if all(path.exists() for path in needed):
            return None
        return f"not installed: python -m benchmarks.replay.peers install {name} --into FOLDER"

    def environment(self, name: str) -> dict[str, str]:
        """A home of their own, so that no cache or settings of the user's takes part."""
        home = self._folder / "home"
        home.mkdir(exist_ok=True)
        own = {"HOME": str(home), "PATH": f"{self.program(name).parent}{os.pathsep}{os.environ.get('PATH', '')}"}
        dropped = ("PYTHONPATH", "VIRTUAL_ENV", "XDG_CACHE_HOME", "XDG_CONFIG_HOME")
        return {key: value for key, value in environment().items() if key not in dropped} | own


@click.group()
def main() -> None:
    """Install the tools that the benchmark compares with."""


@main.command()
@click.argument("names", nargs=-1, type=click.Choice(NAMES))
@click.option("--into", required=True, type=click.Path(path_type=Path, file_okay=False), help="Folder; made if absent.")
def install(names: tuple[str, ...], into: Path) -> None:
    """Install peers; all of them where none is named. GuideLLM brings torch along: 6 GB."""
    into.mkdir(parents=True, exist_ok=True)
    peers = Peers(into)
    for name in names or NAMES:
        click.echo(f"{name}: {' '.join(PACKAGES[name])}", err=True)
        if not peers.program(name).exists():
            _make_environment(into / name, PACKAGES[name])
        if name == VLLM:
            _unpack_script(peers.vllm_source)
        elif not peers.tokenizer.exists():
            # A folder that is whole or absent.
            made = into / "tokenizer.part"
            argv = [peers.python(name), ROOT / "benchmarks" / "replay" / "tokenizer.py", made]
            subprocess.run(argv, check=True, env=peers.environment(name) | {"HF_HUB_OFFLINE": "1"})
            made.rename(peers.tokenizer)


def _make_environment(folder: Path, packages: tuple[str, ...]) -> None:
    wheels = ["install", "--quiet", "--only-binary", ":all:"]
    python = folder / "bin" / "python"
    uv = shutil.which("uv")
    if uv is not None:
        subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, folder], check=True)
        # Compiled, as pip does it, so that no first start pays for it.
        subprocess.run([uv, "pip", *wheels, "--compile-bytecode", "--python", python, *packages], check=True)
    else:
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
        subprocess.run([python, "-m", "pip", *wheels, *packages], check=True)


def _unpack_script(source: Path) -> None:
    if source.exists():
        return
    with tempfile.TemporaryDirectory(dir=source.parent) as scratch:
        download = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", scratch]
        subprocess.run([sys.executable, *download, f"vllm=={VLLM_VERSION}"], check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        part = Path(scratch) / "source"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(part, [name for name in archive.namelist() if name.startswith(SCRIPT)])
        part.rename(source)


if __name__ == "__main__":
    main()
