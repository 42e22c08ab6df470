"""A `docker` of a few lines: its containers are real processes that live on when a client is killed.

State is kept below $FAKE_DOCKER, one folder per container, and what each client was told in calls.jsonl there.
`install` writes the executable that a test puts into PATH.
"""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

IMAGES = {"small:1": ["registry.example/small@sha256:abc"]}


def install(folder: Path, name: str = "docker") -> Path:
    """An executable of that name in `folder`."""
    program = folder / name
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -IS {Path(__file__).resolve()} "$@"\n')
    program.chmod(0o755)
    return program


def root() -> Path:
    return Path(os.environ["FAKE_DOCKER"])


def value(words: list[str], option: str) -> list[str]:
    return [after for word, after in itertools.pairwise(words) if word == option]


def run(words: list[str]) -> int:
    image_at = next(at for at, word in enumerate(words) if word in IMAGES or word.startswith("missing"))
    image, argv = words[image_at], words[image_at + 1 :]
    if image not in IMAGES:
        print(f"docker: Error response from daemon: No such image: {image}.", file=sys.stderr)
        return 125
    number = f"{len(list(root().glob('*/made.json'))):064x}"
    folder = root() / f"c{number}"
    folder.mkdir()
    env = {"PATH": os.environ["PATH"]}
    for item in value(words[:image_at], "--env"):
        name, has, given = item.partition("=")
        env[name] = given if has else os.environ[name]
    labels = dict(item.split("=", 1) for item in value(words[:image_at], "--label"))
    (folder / "made.json").write_text(json.dumps({"labels": labels, "image": image, "name": value(words, "--name")[0]}))
    if os.fork() == 0:  # the daemon's side: it outlives the client
        os.setsid()
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        started = subprocess.Popen(argv, env=env, cwd=folder, stdin=subprocess.DEVNULL, start_new_session=True)
        (folder / "pid").write_text(str(started.pid))
        code = started.wait()
        (folder / "code.new").write_text(str(code if code >= 0 else 128 - code))
        (folder / "code.new").rename(folder / "code")
        os._exit(0)
    while not (folder / "pid").exists():
        time.sleep(0.005)
    print(number)
    return 0


def running(folder: Path) -> bool:
    return not (folder / "code").exists()


def end(folder: Path, number: int, patience_s: float) -> None:
    if running(folder):
        os.kill(int((folder / "pid").read_text()), number)
    deadline = time.monotonic() + patience_s
    while running(folder) and time.monotonic() < deadline:
        time.sleep(0.01)


def inspect(folder: Path) -> int:
    made = json.loads((folder / "made.json").read_text())
    alive = running(folder)
    state = {
        "Running": alive,
        "Pid": int((folder / "pid").read_text()) if alive else 0,
        "ExitCode": 0 if alive else int((folder / "code").read_text()),
        "OOMKilled": (folder / "oom").exists(),
        "StartedAt": time.strftime("%Y-%m-%dT%H:%M:%S.123456789Z", time.gmtime((folder / "pid").stat().st_mtime)),
    }
    facts = {"State": state, "Name": f"/{made['name']}", "Image": "sha256:f00", "Config": {"Labels": made["labels"]}}
    print(json.dumps([{"Id": folder.name[1:], **facts}]))
    return 0


def follow(folder: Path) -> int:
    with (folder / "log").open("rb") as log:
        while True:
            ended = not running(folder)
            data = log.read()
            os.write(1, data)
            if ended and not data:
                return 0
            time.sleep(0.01)


def show_image(target: str) -> int:
    if target != "sha256:f00" and target not in IMAGES:
        print(f"Error: No such image: {target}", file=sys.stderr)
        return 1
    print(json.dumps([{"RepoDigests": IMAGES["small:1"]}]))
    return 0


def list_containers(words: list[str]) -> int:
    wanted = [item.removeprefix("label=").split("=", 1) for item in value(words, "--filter")]
    for made in sorted(root().glob("c*/made.json")):
        labels = json.loads(made.read_text())["labels"]
        if all(labels.get(name) == text for name, text in wanted):
            print(made.parent.name[1:])
    return 0


def remove(folder: Path) -> int:
    if running(folder):
        print("Error response from daemon: container is running: stop it before removing", file=sys.stderr)
        return 1
    folder.rename(root() / f"gone-{folder.name}")
    return 0


def main(words: list[str]) -> int:
    with (root() / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps(words) + "\n")
    command, target = words[0], words[-1]
    general: dict[str, Callable[[], int]] = {
        "version": lambda: 0,
        "run": lambda: run(words),
        "image": lambda: show_image(target),
    }
    general["ps"] = lambda: list_containers(words)
    if command in general:
        return general[command]()
    folder = root() / f"c{target}"
    if not folder.is_dir():
        print(f"Error response from daemon: No such container: {target}", file=sys.stderr)
        return 1
    if command in ("inspect", "logs", "rm"):
        act: Callable[[Path], int] = {"inspect": inspect, "logs": follow, "rm": remove}[command]
        return act(folder)
    if command == "stop":
        end(folder, signal.SIGTERM, float(value(words, "--time")[0]))
    end(folder, signal.SIGKILL, 5)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
