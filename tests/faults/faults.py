"""Faults, one after the other, and whether every event was learned once, to the same bits.

    python tests/faults/faults.py --kills 300 --cuts 50 --restarts 20 --rotations 20
    python tests/faults/faults.py --soak 10        (minutes)

A stream runs in a forked process, which is killed only after its checkpoint has advanced: before,
a kill proves nothing. What is left in the end must be what a stream that nobody disturbed leaves.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import resource
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from streams import EVENTS, PAIRS, events, same, write

from scaledsgd import ItemRanker, MatrixCompleter, load
from scaledsgd.io import model_file
from scaledsgd.streaming.sources import open_feed
from scaledsgd.streaming.stream import Stream

BATCH = 100
COLUMNS = {"ranker": EVENTS, "matrix": PAIRS}
MODELS = {
    "ranker": lambda: ItemRanker(rank=3, random_state=0),
    "matrix": lambda: MatrixCompleter(rank=3, random_state=0),
}


def follow(kind: str, source: str, out: Path, every: int = BATCH, **how) -> None:
    """A stream from its checkpoint on to its end."""
    model = load(out) if out.exists() else MODELS[kind]()
    stream = Stream(model, open_feed(source, **how), out, COLUMNS[kind], BATCH, every=every)
    stream.resume()
    for _ in stream.checkpoints():
        pass


def forked(work: Callable[[], object]) -> int:
    """A process of its own that does some work: its number."""
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        work()
        status = 0
    finally:
        os._exit(status)


def lines_in(out: Path) -> int:
    if not out.exists():
        return 0
    (told,) = model_file.read(out)[1]["streams"].values()
    return told["lines"]


def killed(work: Callable[[], object], out: Path, rng: random.Random) -> bool:
    """Whether a process was killed after it had written a checkpoint, and before it was done."""
    before, wanted = lines_in(out), rng.choice([1, 1, 2])
    last, seen, pid = out.stat().st_ino if out.exists() else 0, 0, forked(work)
    while seen < wanted:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert status == 0, "a stream ended by itself, and badly"
            return False
        now = out.stat().st_ino if out.exists() else 0
        seen, last = seen + (now != last), now
        time.sleep(0.0005)
    time.sleep(rng.random() * 0.01)
    os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.WIFSIGNALED(status) and lines_in(out) > before


def kills(source: str, kind: str, home: Path, count: int, rng: random.Random, **how) -> int:
    """So many kills in streams from a source. Returns how many streams that took."""
    follow(kind, source, home / "whole", **how)
    done = streams = 0
    while done < count:
        out = home / f"broken{streams}"
        streams += 1
        while done < count and killed(lambda out=out: follow(kind, source, out, **how), out, rng):
            done += 1
        follow(kind, source, out, **how)
        assert same(home / "whole", out), (source, streams)
        out.unlink()
    assert not list(home.glob(".*.part"))
    return streams


# --- Redis ---------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class Server:
    """A Redis that keeps what it was told, through any kill."""

    def __init__(self, home: Path):
        self.port, self.home = free_port(), home
        self.start()

    def start(self) -> None:
        import redis

        binary = shutil.which("redis-server")
        options = [
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
        ]
        self.process = subprocess.Popen(
            [binary, "--port", str(self.port), *options, "--dir", str(self.home)],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.client = redis.Redis(port=self.port)
        while True:
            with contextlib.suppress(redis.ConnectionError):
                self.client.ping()
                return
            time.sleep(0.05)

    def kill(self) -> None:
        self.client.close()
        self.process.kill()
        self.process.wait()

    def add(self, table: dict, start: int, stop: int) -> None:
        pipe = self.client.pipeline()
        for user, item in zip(
            table["user"][start:stop].tolist(), table["item"][start:stop].tolist(), strict=True
        ):
            pipe.xadd("events", {"user": user, "item": item})
        pipe.execute()

    def url(self, port: int | None = None) -> str:
        return f"redis://127.0.0.1:{port or self.port}/0/events"


class Proxy(threading.Thread):
    """Passes bytes on to a port, and cuts the connection after some of them."""

    def __init__(self, to: int, cuts: int, rng: random.Random):
        super().__init__(daemon=True)
        self.port, self.to, self.left, self.cut, self.rng = free_port(), to, cuts, 0, rng
        self.listener = socket.create_server(("127.0.0.1", self.port))

    def run(self) -> None:
        while True:
            client, _ = self.listener.accept()
            threading.Thread(target=self.serve, args=(client,), daemon=True).start()

    def serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self.to)) as server:
            patience = self.rng.randrange(2_000, 60_000)  # bytes
            while True:
                for ready in select.select([client, server], [], [])[0]:
                    part = ready.recv(4096)
                    if not part:
                        return
                    patience -= len(part)
                    if patience < 0 and self.left:
                        self.left, self.cut = self.left - 1, self.cut + 1
                        return  # in the middle of an answer
                    (server if ready is client else client).sendall(part)


def cuts(home: Path, count: int, rng: random.Random, entries: int = 20_000) -> int:
    """A stream through a wire that breaks so many times."""
    server = Server(home)
    try:
        table = events(entries)
        server.add(table, 0, entries)
        proxy = Proxy(server.port, count, rng)
        proxy.start()
        follow("ranker", server.url(), home / "whole", every=2000, idle=0.5)
        rounds = 0
        while proxy.cut < count:
            out = home / f"cut{rounds}"
            rounds += 1
            follow("ranker", server.url(proxy.port), out, every=2000, idle=0.5)
            assert same_but_source(home / "whole", out)
        return proxy.cut
    finally:
        server.kill()


def same_but_source(one: Path, other: Path) -> bool:
    """Whether two models are the same but for the address that they were taught from."""
    (a, told), (b, heard) = model_file.read(one), model_file.read(other)
    for facts in (told, heard):
        facts.pop("seconds")
        facts["streams"] = list(facts["streams"].values())
        for stream in facts["streams"]:
            stream["position"] = None
    return a.keys() == b.keys() and all(np.array_equal(a[n], b[n]) for n in a) and told == heard


def restarts(home: Path, count: int) -> int:
    """A server that is killed and started again so many times, while a stream follows."""
    server, done = Server(home), 0
    table, step = events(BATCH * 5 * (count + 1)), BATCH * 5
    out = home / "restarted"
    try:
        server.add(table, 0, step)
        pid = forked(lambda: follow("ranker", server.url(), out, idle=2.5))
        for n in range(count):
            while lines_in(out) < step * n + BATCH:  # it has read on since the last one
                time.sleep(0.01)
            server.kill()
            server.start()
            done += 1
            server.add(table, step * (n + 1), step * (n + 2))
        assert os.waitpid(pid, 0)[1] == 0
        assert lines_in(out) == len(table["user"])
        source = write(home / "all.jsonl", table)
        follow("ranker", source, home / "whole")
        assert same_but_source(home / "whole", out)
        return done
    finally:
        server.kill()


# --- Files ---------------------------------------------------------------------------------------


def rotations(home: Path, count: int, rng: random.Random, name: str = "a.csv") -> int:
    """A file that is rotated so many times, now before and now after it was read."""
    per = 5 * BATCH + 37
    lines = (
        Path(write(home / name, events(per * (count + 1)))).read_text().splitlines(keepends=True)
    )
    header = [lines.pop(0)] if name.endswith(".csv") else []
    whole, path, out = home / f"whole{Path(name).suffix}", home / name, home / "rotated"
    whole.write_text("".join(header + lines))
    follow("matrix", str(whole), home / "whole")
    path.write_text("".join(header))
    at = done = 0
    while done < count:
        take = rng.randrange(2 * BATCH, per)
        with path.open("a") as file:
            file.write("".join(lines[at : at + take]))
        at += take
        # Whole batches are learned while it is read; what is left over, when the rest has come.
        if not out.exists() or rng.random() < 0.7:
            model = load(out) if out.exists() else MODELS["matrix"]()
            stream = Stream(model, open_feed(str(path)), out, PAIRS, BATCH, every=BATCH)
            stream.resume()
            for _ in stream.checkpoints():
                if rng.random() < 0.5 or at - stream.lines < 2 * BATCH:
                    break
        for old in sorted(home.glob(f"{name}.*"), key=lambda p: -int(p.suffix[1:])):
            old.rename(home / f"{name}.{int(old.suffix[1:]) + 1}")
        path.rename(home / f"{name}.1")
        path.write_text("".join(header))
        for old in home.glob(f"{name}.*"):  # whatever the clock says
            os.utime(old, (rng.randrange(10**9),) * 2)
        done += 1
    with path.open("a") as file:
        file.write("".join(lines[at:]))
    follow("matrix", str(path), out)
    (told,) = model_file.read(out)[1]["streams"].values()
    assert (told["events"], told["refused"]) == (len(lines), 0)
    assert np.array_equal(load(home / "whole").factors.X, load(out).factors.X)
    return done


def full_disk(home: Path) -> None:
    """No room for a checkpoint: the last one stays, and a later run goes on from it."""
    source = write(home / "b.csv", events(40 * BATCH))
    follow("matrix", source, home / "whole")

    room = int(0.8 * (home / "whole").stat().st_size)

    def small() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with contextlib.suppress(OSError):
            follow("matrix", source, home / "full")

    assert os.waitpid(forked(small), 0)[1] == 0
    assert 0 < lines_in(home / "full") < 40 * BATCH
    assert not list(home.glob(".full.*.part"))
    follow("matrix", source, home / "full")
    assert same(home / "whole", home / "full")


# --- For long ------------------------------------------------------------------------------------


def soak(home: Path, minutes: float) -> Iterator[dict]:
    """Events through a pipe for so long; what the process that learns holds, every few seconds."""
    read, pipe = os.pipe()
    out = home / "soaked"

    def learn() -> None:
        os.close(pipe)
        os.dup2(read, 0)
        sys.stdin = os.fdopen(0, "rb", closefd=False)
        follow("matrix", "-", out, every=100 * BATCH, idle=5.0)

    pid = forked(learn)
    os.close(read)
    text = Path(write(home / "some.jsonl", events(50_000))).read_bytes()
    begun = told = time.monotonic()
    sent, spent = 0, 0.0
    with os.fdopen(pipe, "wb") as feed:
        while time.monotonic() - begun < 60 * minutes:
            feed.write(text)
            sent += 50_000
            if time.monotonic() - told > max(2.0, minutes * 3):
                told, before, spent = time.monotonic(), spent, _processor(pid)
                status = Path(f"/proc/{pid}/status").read_text().splitlines()
                held = next(int(part.split()[1]) for part in status if part.startswith("VmRSS"))
                yield {
                    "seconds": round(told - begun),
                    "events": sent,
                    # By the processor's time: whoever else is at work on the machine does not show.
                    "per_processor_second": round(sent / (spent - before)),
                    "megabytes": held // 1024,
                    "files": len(os.listdir(f"/proc/{pid}/fd")),
                }
                sent = 0
    assert os.waitpid(pid, 0)[1] == 0


def _processor(pid: int) -> float:
    """Seconds of a processor that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("kills", "cuts", "restarts", "rotations"):
        parser.add_argument(f"--{name}", type=int, default=0)
    parser.add_argument("--soak", type=float, default=0.0, help="minutes")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)

        def room(name: str) -> Path:
            (home / name).mkdir()
            return home / name

        if given.kills:
            each = [given.kills // 3 + (n < given.kills % 3) for n in range(3)]
            table = events(30_000)
            streams = kills(
                write(room("jsonl") / "a.jsonl", table), "ranker", home / "jsonl", each[0], rng
            )
            print(
                f"kill -9, JSONL: {each[0]} after an advance, {streams} streams, same bits",
                flush=True,
            )
            streams = kills(
                write(room("parquet") / "a.parquet", table),
                "matrix",
                home / "parquet",
                each[1],
                rng,
            )
            print(
                f"kill -9, Parquet: {each[1]} after an advance, {streams} streams, same bits",
                flush=True,
            )
            server = Server(room("redis"))
            server.add(table, 0, 30_000)
            streams = kills(server.url(), "ranker", home / "redis", each[2], rng, idle=0.3)
            server.kill()
            print(
                f"kill -9, Redis: {each[2]} after an advance, {streams} streams, same bits",
                flush=True,
            )
        if given.cuts:
            print(f"cut connections: {cuts(room('cuts'), given.cuts, rng)}, same bits", flush=True)
        if given.restarts:
            print(
                f"Redis restarts: {restarts(room('restarts'), given.restarts)}, same bits",
                flush=True,
            )
        if given.rotations:
            half = given.rotations // 2
            done = rotations(room("csv"), half, rng)
            done += rotations(room("lines"), given.rotations - half, rng, "a.jsonl")
            print(f"rotations: {done}, every event once, same bits", flush=True)
        if given.kills or given.rotations:
            full_disk(room("full"))
            print("disk full: the last checkpoint stayed, same bits", flush=True)
        if given.soak:
            for told in soak(room("soak"), given.soak):
                print(json.dumps(told), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
