"""An engine of a few lines for the tests of launchers: it listens, answers 200 to anything, and misbehaves on request.

    python small_engine.py PORT [FAULT ...]

It imports next to nothing, so that a test that starts many stays quick.
"""

import os
import signal
import socket
import sys

FAULTS = """
ignore-term    ignores SIGTERM
child          a child in the group that nobody stops
setsid-child   a child in its own session that ignores SIGTERM and holds gpu.lock
escape         forked twice, own session, no environment, no output, ignores SIGTERM
reuseport      shares its port
twin           with reuseport: a second server that leaves parent and session
flood          prints bytes that are no UTF-8, more than a pipe holds, before it listens
supervisor     serves from a child that is made anew when it dies
bad-flag       says so and exits with 1
slow           never listens
""".split("\n")


def sleep_for_ever() -> None:
    signal.alarm(120)  # a forgotten one does not stay
    while True:
        signal.pause()


def serve(port: int, *, share: bool) -> None:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if share:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind((os.environ.get("BIND", "127.0.0.1"), port))
    listener.listen(64)
    while True:
        connection, _ = listener.accept()
        with connection:
            if connection.recv(65536):
                connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")


def setsid_child() -> None:
    if os.fork():
        return
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    import fcntl

    lock = os.open("gpu.lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.kill(os.getppid(), signal.SIGKILL)
        os._exit(1)
    sleep_for_ever()


def escape() -> None:
    middle = os.fork()
    if middle:
        os.waitpid(middle, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    code = "import signal; signal.signal(15, signal.SIG_IGN); signal.alarm(120); signal.pause()"
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    os.execve(sys.executable, [sys.executable, "-ISc", code], {})


def second_server(port: int) -> None:
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.alarm(120)
    serve(port, share=True)


def flood() -> None:
    for _ in range(600):
        os.write(2, b"\xff\xfe progress \x1b[31m 12%\r" + b"x" * 1000 + b"\n")


def supervise(port: int) -> None:
    while True:
        worker = os.fork()
        if not worker:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.alarm(120)
            serve(port, share=False)
        os.waitpid(worker, 0)


def main() -> None:
    port, faults = int(sys.argv[1]), sys.argv[2:]
    print("loading weights", flush=True)
    if "bad-flag" in faults:
        print("torch.OutOfMemoryError: CUDA out of memory.", file=sys.stderr, flush=True)
        sys.exit(1)
    if "ignore-term" in faults:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "child" in faults and not os.fork():
        sleep_for_ever()
    does = {"setsid-child": setsid_child, "escape": escape, "flood": flood, "slow": sleep_for_ever}
    does |= {"twin": lambda: second_server(port), "supervisor": lambda: supervise(port)}
    for fault in faults:
        does.get(fault, str)()
    print("serving", flush=True)
    signal.alarm(120)
    serve(port, share="reuseport" in faults)


if __name__ == "__main__":
    main()
