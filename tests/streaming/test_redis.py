"""A stream from a real Redis server, killed and started again."""

import json
import random
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
from commands import runner
from test_stream import COMMAND, EVENTS, events, same, write

from scaledsgd import ItemRanker, load
from scaledsgd.streaming.sources import open_feed
from scaledsgd.streaming.stream import Stream

redis = pytest.importorskip("redis", reason="the extra 'redis' is not installed")

BATCH, COUNT = 400, 5000
WANTED = ["--new", "ranking", "--rank", "3", "--user", "user", "--item", "item"]
WANTED += ["--batch", str(BATCH), "--every", str(BATCH), "--idle", "1", "--json"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """The address of a server of our own that keeps nothing."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("no redis-server on this machine")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = tmp_path_factory.mktemp("redis")
    options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", str(folder)]
    process = subprocess.Popen(
        [binary, "--port", str(port), *options], stdout=subprocess.DEVNULL, stderr=sys.stderr
    )
    client = redis.Redis(port=port)
    for _ in range(100):
        try:
            client.ping()
            break
        except redis.ConnectionError:
            time.sleep(0.1)
    yield client, f"redis://127.0.0.1:{port}/0/events"
    process.terminate()
    process.wait()


@pytest.fixture
def stream(server):
    """The address of a stream with events in it."""
    client, url = server
    client.flushall()
    table = events(COUNT)
    pipe = client.pipeline()
    for user, item in zip(table["user"].tolist(), table["item"].tolist(), strict=True):
        pipe.xadd("events", {"user": user, "item": item})
    pipe.execute()
    return client, url


def ranker() -> ItemRanker:
    return ItemRanker(rank=3, random_state=0)


def follow(model, url: str, out, checkpoints: int | None = None, acknowledge: bool = True) -> None:
    feed = open_feed(url, idle=0.1)
    if not acknowledge:
        feed.learned = lambda position: None
    run = Stream(model, feed, out, EVENTS, BATCH, every=BATCH)
    run.resume()
    for number, _ in enumerate(run.checkpoints(), 1):
        if number == checkpoints:
            return


def pending(client) -> int:
    return client.xpending("events", "scaledsgd")["pending"]


def test_a_stream_teaches_what_a_file_does(stream, tmp_path):
    client, url = stream
    follow(ranker(), url, tmp_path / "m")
    assert pending(client) == 0
    follow(ranker(), write(tmp_path / "a.jsonl", events(COUNT)), tmp_path / "file")
    one, other = load(tmp_path / "m"), load(tmp_path / "file")
    assert one.factors.X.tolist() == other.factors.X.tolist()


def test_what_was_not_acknowledged_is_not_learned_twice(stream, tmp_path):
    """A checkpoint was written, and the process died before it could tell the server."""
    client, url = stream
    follow(ranker(), url, tmp_path / "whole")
    client.xgroup_destroy("events", "scaledsgd")
    follow(ranker(), url, tmp_path / "m", checkpoints=3, acknowledge=False)
    assert pending(client) >= 3 * BATCH
    follow(load(tmp_path / "m"), url, tmp_path / "m", checkpoints=2)
    follow(load(tmp_path / "m"), url, tmp_path / "m")
    assert pending(client) == 0
    assert same(tmp_path / "whole", tmp_path / "m")


@pytest.mark.slow
def test_kill_dash_nine(stream, tmp_path):
    client, url = stream
    command = [*COMMAND, "stream", "m", "--from", url, *WANTED]
    rng, killed = random.Random(0), 0
    for _ in range(3):
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE)
        for _ in range(rng.randrange(1, 4)):
            process.stdout.readline()
        time.sleep(rng.random() * 0.02)
        process.kill()
        killed += process.wait() == -signal.SIGKILL
    assert killed == 3
    assert subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE).returncode == 0
    assert pending(client) == 0
    client.xgroup_destroy("events", "scaledsgd")
    follow(ranker(), url, tmp_path / "whole")
    assert same(tmp_path / "whole", tmp_path / "m")


def test_entries_that_are_no_events_are_refused(server, capsys, tmp_path, monkeypatch):
    client, url = server
    client.flushall()
    monkeypatch.chdir(tmp_path)
    table = events(200)
    for user, item in zip(table["user"].tolist(), table["item"].tolist(), strict=True):
        client.xadd("events", {"user": user, "item": item})
    client.xadd("events", {"user": 5}, id="9999999999999-1")
    client.xadd("events", {"user": b"\xff", "item": 3})
    client.xadd("events", {"user": "5", "item": "tea"})
    code, out, err = runner(capsys)("stream", "m", "--from", url, *WANTED)
    assert code == 0
    told = json.loads(out.splitlines()[-1])
    assert (told["events"], told["refused"]) == (200, 3)
    assert "refused: events, entry 9999999999999-1: no 'item'" in err
    assert pending(client) == 0


def test_a_server_that_is_not_there_is_told_in_a_line(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = runner(capsys)("stream", "m", "--from", "redis://127.0.0.1:1/0/s", *WANTED)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("scaledsgd: redis://127.0.0.1:1/0/s: ")
