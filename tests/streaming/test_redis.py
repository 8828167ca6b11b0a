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
from streams import COMMAND, EVENTS, events, same, write

from scaledsgd import ItemRanker, load
from scaledsgd.cli.main import main
from scaledsgd.io.atomic import alone
from scaledsgd.io.tables import InputError
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


def follow(model, url: str, out, checkpoints: int | None = None, **how) -> None:
    feed = open_feed(url, idle=0.1, **how)
    run = Stream(model, feed, out, EVENTS, BATCH, every=BATCH)
    run.resume()
    for number, _ in enumerate(run.checkpoints(), 1):
        if number == checkpoints:
            return


def told(out) -> dict:
    (position,) = load(out)._streams.values()
    return position


def test_a_stream_teaches_what_a_file_does(stream, tmp_path):
    _, url = stream
    follow(ranker(), url, tmp_path / "m")
    follow(ranker(), write(tmp_path / "a.jsonl", events(COUNT)), tmp_path / "file")
    one, other = load(tmp_path / "m"), load(tmp_path / "file")
    assert one.factors.X.tolist() == other.factors.X.tolist()


def test_the_model_knows_what_it_has_learned(stream, tmp_path):
    """Another one reads all of it; so does one begun anew; one from a backup what came since."""
    _, url = stream
    follow(ranker(), url, tmp_path / "m", checkpoints=4)
    (tmp_path / "backup").write_bytes((tmp_path / "m").read_bytes())
    follow(load(tmp_path / "m"), url, tmp_path / "m")
    for out in ("second", "m"):
        (tmp_path / out).unlink(missing_ok=True)
        follow(ranker(), url, tmp_path / out)
    follow(load(tmp_path / "backup"), url, tmp_path / "backup")
    assert same(tmp_path / "m", tmp_path / "second")
    assert same(tmp_path / "m", tmp_path / "backup")
    assert told(tmp_path / "m")["events"] == COUNT


def test_what_is_gone_is_told(stream, tmp_path):
    client, url = stream
    follow(ranker(), url, tmp_path / "m", checkpoints=4)
    whole = (tmp_path / "m").read_bytes()

    def refused(match: str) -> None:
        with pytest.raises(InputError, match=match):
            follow(load(tmp_path / "m"), url, tmp_path / "m")
        assert (tmp_path / "m").read_bytes() == whole

    client.xtrim("events", maxlen=COUNT - 4 * BATCH)  # what was learned may go
    assert client.xlen("events") == COUNT - 4 * BATCH
    follow(load(tmp_path / "m"), url, tmp_path / "m", checkpoints=1)
    (tmp_path / "m").write_bytes(whole)
    (entry, _), *_ = client.xrange("events", count=1)
    client.xdel("events", entry)
    refused("entries after the last that was learned are gone: --skip-lost")
    client.xtrim("events", maxlen=1000)
    refused("entries after the last that was learned are gone: --skip-lost")
    follow(load(tmp_path / "m"), url, tmp_path / "m", skip_lost=True)
    assert told(tmp_path / "m")["events"] == 4 * BATCH + 1000
    follow(load(tmp_path / "m"), url, tmp_path / "m")
    (tmp_path / "m").write_bytes(whole)
    for ids in ("1-{}", "9999999999999-{}"):  # below what was learned, and above
        client.delete("events")
        refused("begun anew: --restart")
        for n in range(5000):
            client.xadd("events", {"user": 1, "item": n}, id=ids.format(n + 1))
        refused("begun anew: --restart")


def test_two_processes_do_not_overwrite_each_other(stream, tmp_path, monkeypatch):
    """Whoever comes second finds the lock taken before she has loaded anything."""
    _, url = stream
    loaded = []
    monkeypatch.chdir(tmp_path)
    follow(ranker(), url, "m", checkpoints=2)
    monkeypatch.setattr("scaledsgd.load", lambda path: loaded.append(path))
    with alone("m"):
        assert main(["stream", "m", "--from", url, *WANTED]) == 2
    assert not loaded


@pytest.mark.slow
def test_kill_dash_nine(stream, tmp_path):
    _, url = stream
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
    last = json.loads(out.splitlines()[-1])
    assert (last["events"], last["refused"]) == (200, 3)
    assert "refused: events, entry 9999999999999-1: no 'item'" in err


def test_a_server_that_is_not_there_is_told_in_a_line(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = runner(capsys)("stream", "m", "--from", "redis://127.0.0.1:1/0/s", *WANTED)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("scaledsgd: redis://127.0.0.1:1/0/s: ")
