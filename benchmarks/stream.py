"""Streams: how fast events are learned, in how much memory, and whether a kill is survived.

python benchmarks/stream.py speed
python benchmarks/stream.py kill [--kills 200]
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scaledsgd import ItemRanker, MatrixCompleter, Recommender
from scaledsgd.io import model_file as store
from scaledsgd.streaming.sources import open_feed
from scaledsgd.streaming.stream import Stream

COUNT, RANK, UNSEEN = 1_000_000, 16, 0.05
USERS, ITEMS = 50_000, 20_000
REPEATS = 5
EVENTS = {"user": "user", "item": "item"}
ENTRIES = {"row": "user", "column": "item", "value": "value"}
COMMAND = [sys.executable, "-m", "scaledsgd"]

# Of the kills. Some sixty checkpoints in a run: a life of a second sees several of them.
BATCH, EVERY = 8_192, 16_384
LIFE = 1.0  # seconds of learning at most, so that as many kills as possible fit a minute


def events(count: int = COUNT, unseen: float = UNSEEN, words: bool = False) -> pa.Table:
    """Items of very different popularity, and a share that was never seen before."""
    rng = np.random.default_rng(0)
    item = np.minimum((50 * rng.pareto(1.0, count)).astype(np.int64), ITEMS - 1)
    new = rng.random(count) < unseen
    item[new] = ITEMS + np.arange(new.sum())
    user = rng.integers(0, USERS, count)
    names = (lambda ids: pa.array(np.char.add("n", ids.astype(str)))) if words else pa.array
    value = np.sin(user) * np.cos(item)
    return pa.table({"user": names(user), "item": names(item), "value": value})


def write_parquet(table: pa.Table, folder: Path, parts: int = 4) -> str:
    folder.mkdir()
    size = -(-len(table) // parts)
    for part in range(parts):
        pq.write_table(table.slice(part * size, size), folder / f"{part}.parquet")
    return str(folder / "*.parquet")


def learn(model, source: str, columns: dict, out: Path) -> float:
    """Seconds of a whole stream, its checkpoint included."""
    out.unlink(missing_ok=True)
    stream = Stream(model, open_feed(source), out, columns)
    clock = time.perf_counter()
    for _ in stream.checkpoints():
        pass
    return time.perf_counter() - clock


def speed(folder: Path) -> None:
    numbers = write_parquet(events(), folder / "numbers")
    words = write_parquet(events(words=True), folder / "words")
    ranking = {"rank": RANK, "random_state": 0}
    contestants = {
        "item-item": (lambda: ItemRanker(**ranking), numbers, EVENTS),
        "item-item, 2 threads": (lambda: ItemRanker(**ranking, n_jobs=2), numbers, EVENTS),
        "item-item, ids are words": (lambda: ItemRanker(**ranking, n_jobs=2), words, EVENTS),
        "recommender": (lambda: Recommender(**ranking, n_jobs=2), numbers, EVENTS),
        "matrix": (
            lambda: MatrixCompleter(**ranking, dtype="float32", n_jobs=2), numbers, ENTRIES,
        ),
    }  # fmt: skip
    taken: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(REPEATS + 1):
        for name, (make, source, columns) in contestants.items():
            seconds = learn(make(), source, columns, folder / "model")
            if turn:  # the first one compiles
                taken[name].append(seconds)
    print(f"{COUNT:,} events from Parquet, {UNSEEN:.0%} of unseen items, rank {RANK}")
    for name, seconds in taken.items():
        print(f"  {name:26} {COUNT / np.median(seconds) / 1e6:.2f} M events/s")
    peaks = {count: memory(count) for count in (COUNT, 8 * COUNT)}
    told = ", ".join(f"{peak / 2**20:.0f} MB for {count:,}" for count, peak in peaks.items())
    print(f"memory with no unseen items: {told}")


def memory(count: int) -> int:
    """Peak memory of a process that learns so many events about the same items."""
    with tempfile.TemporaryDirectory() as folder:
        source = write_parquet(events(count, unseen=0.0), Path(folder, "events"))
        code = [sys.executable, __file__, "peak", source, f"{folder}/model"]
        return int(subprocess.run(code, capture_output=True, check=True, text=True).stdout)


def peak(source: str, out: str) -> None:
    learn(ItemRanker(rank=RANK, random_state=0), source, EVENTS, Path(out))
    # Not getrusage, whose peak is at least what the parent had when it started us.
    told = Path("/proc/self/status").read_text().split()
    print(1024 * int(told[told.index("VmHWM:") + 1]))


def start(source: str, out: Path) -> subprocess.Popen:
    options = ["--new", "ranking", "--rank", str(RANK), "--user", "user", "--item", "item"]
    options += ["--batch", str(BATCH), "--every", str(EVERY), "--json"]
    return subprocess.Popen(
        [*COMMAND, "stream", str(out), "--from", source, *options], stdout=subprocess.PIPE
    )


def same(one: Path, other: Path) -> bool:
    """Whether two models are the same to the bit, clocks aside."""
    (a, told), (b, heard) = store.read(one), store.read(other)
    told.pop("seconds"), heard.pop("seconds")
    arrays = a.keys() == b.keys() and all(a[n].tobytes() == b[n].tobytes() for n in a)
    return arrays and told == heard


def kill(folder: Path, kills: int) -> bool:
    """Streams that are killed at random moments until they end all the same."""
    table = events()
    lines = folder / "events.jsonl"
    with lines.open("w") as file:
        for user, item in zip(table["user"].to_pylist(), table["item"].to_pylist(), strict=True):
            file.write(json.dumps({"user": user, "item": item}) + "\n")
    sources = {"Parquet": write_parquet(table, folder / "p"), "JSONL": str(lines)}
    begun = time.monotonic()
    with ThreadPoolExecutor(len(sources)) as pool:  # side by side: a process uses one core
        jobs = [pool.submit(survive, folder, *job, kills // 2) for job in sources.items()]
        sound = all(job.result() for job in jobs)
    print(f"{time.monotonic() - begun:.0f} s")
    return sound


def survive(folder: Path, name: str, source: str, kills: int) -> bool:
    """Whether streams of one kind end as if nobody had killed them."""
    whole, broken, rng = folder / f"{name}-whole", folder / f"{name}-broken", random.Random(name)
    clock = time.monotonic()
    process = start(source, whole)
    process.stdout.readline()  # the first checkpoint
    first = time.monotonic() - clock
    process.communicate()
    latest = min(0.9 * (time.monotonic() - clock), first + LIFE)
    died, ended, sound = 0, 0, True
    while died < kills or broken.exists():
        process = start(source, broken)
        try:  # a moment from shortly before the first checkpoint on
            wait = rng.uniform(0.7 * first, latest) if died < kills else None
            process.communicate(timeout=wait)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        died += process.returncode == -signal.SIGKILL
        if process.returncode == 0:
            ended, sound = ended + 1, sound and same(whole, broken)
            broken.unlink()
    told = "identical to the bit" if sound else "DIFFERENT"
    print(f"{name}: {died} kills, {ended} streams of {COUNT:,} events ended, all {told}")
    return sound


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    parts.add_parser("speed", help="events a second, and memory")
    killing = parts.add_parser("kill", help="kill -9 at random moments")
    killing.add_argument("--kills", type=int, default=200)
    measured = parts.add_parser("peak")
    measured.add_argument("source")
    measured.add_argument("out")
    given = parser.parse_args()
    if given.part == "peak":
        peak(given.source, given.out)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        if given.part == "speed":
            speed(Path(folder))
            return 0
        return 0 if kill(Path(folder), given.kills) else 1


if __name__ == "__main__":
    sys.exit(main())
