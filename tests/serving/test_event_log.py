"""Requests are in the log as a whole or not at all, whatever happens to it."""

from __future__ import annotations

import errno
import json
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaledsgd.serving.event_log import EventLog, LogFeed


def read(log: EventLog, position: dict | None = None) -> list:
    feed = LogFeed(log)
    feed.choose({"n": None}, 1)
    if position:
        feed.go_to(position)
    left = feed.left()
    found: list = []
    while len(found) < left:
        found += feed.read(left - len(found)).columns[0]
    feed.close()
    return found


def events(*numbers: int) -> list[dict]:
    return [{"n": n} for n in numbers]


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8), st.data())
def test_a_log_that_was_cut_off_anywhere_holds_whole_requests(tmp_path_factory, sizes, data):
    folder, said, n = tmp_path_factory.mktemp("log"), [[]], 0
    ends = [0]
    with EventLog(folder) as log:
        for size in sizes:
            log.append_now(events(*range(n, n + size)))
            n += size
            said.append(list(range(n)))
            ends.append(log.end[1])
    (path,) = folder.glob("*.jsonl")
    cut = data.draw(st.integers(0, path.stat().st_size))
    with path.open("rb+") as file:
        file.truncate(cut)
    with EventLog(folder) as log:
        whole = max(k for k, end in enumerate(ends) if end <= cut)
        assert read(log) == said[whole]
        log.append_now(events(-1))
        assert read(log) == [*said[whole], -1]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=12), st.integers(1, 7), st.data())
def test_reading_goes_on_from_any_batch_across_segments(tmp_path_factory, sizes, count, data):
    n = 0
    with EventLog(tmp_path_factory.mktemp("log"), segment=60) as log:
        for size in sizes:
            log.append_now(events(*range(n, n + size)))
            n += size
        feed = LogFeed(log)
        feed.choose({"n": None}, 1)
        found, positions = [], [None]
        while len(found) < n:
            batch = feed.read(count)
            assert 1 <= batch.count <= count
            found += batch.columns[0]
            positions.append(batch.after)
        assert found == list(range(n))
        at = data.draw(st.sampled_from(positions))
        done = at["line"] if at else 0
        assert read(log, at) == found[done:]


def test_a_request_that_is_sent_again_counts_once_even_after_a_restart(tmp_path):
    with EventLog(tmp_path, segment=1) as log:
        log.append_now(events(1), "a")
        log.append_now(events(1), "a")
        log.append_now(events(2), "b")
    with EventLog(tmp_path) as log:
        log.append_now(events(1), "a")
        log.append_now(events(2), "b")
        log.append_now(events(3))
        assert read(log) == [1, 2, 3]


def test_one_fsync_serves_many_requests(tmp_path, monkeypatch):
    begun, go = threading.Event(), threading.Event()
    real = os.fsync

    def slow(handle):
        begun.set()
        go.wait(5)
        real(handle)

    with EventLog(tmp_path) as log:
        monkeypatch.setattr(os, "fsync", slow)
        told = []
        log.append(events(0), "", told.append)
        assert begun.wait(5)
        for n in range(1, 50):
            log.append(events(n), "", told.append)
        assert told == []  # nobody is told before it is on the disk
        go.set()
        log.append_now(events(50))
        assert told == [None] * 50 and log.syncs <= 3
        assert read(log) == list(range(51))


def test_a_full_disk_is_told_and_leaves_the_log_sound(tmp_path, monkeypatch):
    real = os.write

    def full(handle, text):
        if len(text) < 30:
            return real(handle, text)
        real(handle, text[:17])
        raise OSError(errno.ENOSPC, "No space left on device")

    with EventLog(tmp_path) as log:
        log.append_now(events(1))
        monkeypatch.setattr(os, "write", full)
        with pytest.raises(OSError, match=r"log of events cannot be written \(No space left"):
            log.append_now(events(*range(9)), "k")
        monkeypatch.undo()
        log.append_now(events(2), "k")
        assert read(log) == [1, 2] and log.accepted == 2 and log.waiting == 0


def test_a_log_has_one_writer_and_a_name_that_moves_with_it(tmp_path):
    with EventLog(tmp_path / "a") as log:
        name = log.name
        with pytest.raises(BlockingIOError, match="another process is writing it"):
            EventLog(tmp_path / "a")
    Path(tmp_path / "a").rename(tmp_path / "b")
    with EventLog(tmp_path / "b") as log:
        assert log.name == name


def test_its_lines_are_what_a_stream_reads(tmp_path):
    with EventLog(tmp_path) as log:
        log.append_now([{"user": 'a"_end": "b', "item": "é\n"}, {"user": "c", "item": "d"}], "k")
    lines = (tmp_path / "00000000.jsonl").read_text().splitlines()
    assert [json.loads(line)["user"] for line in lines] == ['a"_end": "b', "c"]
