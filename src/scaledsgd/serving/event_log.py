"""Events on disk before anybody is told that they arrived: an append-only log in a folder.

A segment of the log is a file of JSON lines, an event a line, which `scaledsgd stream` reads as
well. The last event of a request carries a mark: whoever is killed while writing leaves a request
without one, which is cut off when the log is opened again. A request is therefore in the log as a
whole, or not at all.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple
from uuid import uuid4

from ..io.atomic import alone, on_disk, replace_file
from ..streaming.sources import PATIENCE, Batch, Feed, Stopped, never

_SEGMENT = 1 << 24  # bytes after which a new file begins
_BLOCK = 1 << 22  # bytes read at a time
_PARSED = 500  # lines parsed at a time: half a millisecond
_KEYS = 100_000  # requests that are remembered, so that one which is sent again is not taken twice
_encoded = json.JSONEncoder().encode
_MARK = "_end"  # member of a request's last event: the key of the request, or nothing


class Appended(NamedTuple):
    """A request that waits for the disk."""

    lines: bytes
    events: int
    key: str
    done: Callable[[Exception | None], object]  # told once it is on the disk, or why it is not


class EventLog:
    """The log of one folder, written by one process.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, EventLog(folder) as log:
    ...     log.append_now([{"user": "ann", "item": "tea"}], key="a")
    ...     log.append_now([{"user": "bob", "item": "rye"}], key="a")
    ...     feed = LogFeed(log)
    ...     _ = feed.choose({"user": None, "item": None}, 2)
    ...     feed.read(10).columns
    [['ann'], ['tea']]
    """

    def __init__(self, folder: str | os.PathLike, segment: int = _SEGMENT):
        self.folder, self._size_of_segment = Path(folder), segment
        self.folder.mkdir(parents=True, exist_ok=True)
        self._held = ExitStack()
        self._held.enter_context(alone(self.folder / "log"))
        self.name = self._named()
        self._keys: OrderedDict[str, None] = OrderedDict()
        self._queue: SimpleQueue[Appended | None] = SimpleQueue()
        self._grown = threading.Condition()
        self.accepted = self.requests = self.syncs = 0  # events, requests and fsyncs of this run
        self._offered = self._settled = 0  # events, each counted by one thread alone
        segments = self.segments() or [0]
        for number in segments[-2:-1]:
            self._recover(self.path(number))
        self._number = segments[-1]
        self._open()
        self._writer = threading.Thread(target=self._write, name="log", daemon=True)
        self._writer.start()

    def _named(self) -> str:
        """The name of the log, by which a model remembers how far it has read: the folder may be
        moved."""
        path = self.folder / "name"
        if not path.exists():
            replace_file(path, uuid4().hex.encode())
        return path.read_text().strip()

    def segments(self) -> list[int]:
        """Numbers of the files, in order."""
        return sorted(int(path.stem) for path in self.folder.glob("????????.jsonl"))

    def path(self, number: int) -> Path:
        return self.folder / f"{number:08d}.jsonl"

    def _open(self) -> None:
        """The last segment, cut after the last request that is there as a whole."""
        path = self.path(self._number)
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        end = self._recover(path)
        os.ftruncate(self._file, end)
        os.fsync(self._file)
        on_disk(self.folder)
        self.end = self._number, end  # what is on the disk ends here: segment, byte

    def _recover(self, path: Path) -> int:
        """Where the last whole request ends; their keys are known from now on."""
        end = at = 0
        mark = f'"{_MARK}": "'.encode()
        with path.open("rb") as file:
            for line in file:
                at += len(line)
                if line.endswith(b"\n") and mark in line:
                    end = at
                    self._remember(json.loads(line)[_MARK])
        return end

    def _remember(self, key: str) -> None:
        if key:
            self._keys[key] = None
            while len(self._keys) > _KEYS:
                self._keys.popitem(last=False)

    @property
    def waiting(self) -> int:
        """Events that are not on the disk yet."""
        return self._offered - self._settled

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(self.path(number).stat().st_size for number in self.segments())

    def append(
        self, events: Sequence[dict | bytes], key: str,
        done: Callable[[Exception | None], object],
    ) -> None:  # fmt: skip
        """Put the events of a request into the log, objects or the lines that hold them; `done` is
        told when they are on the disk, or why they are not. A request whose key is known is there
        already."""
        lines = [one if isinstance(one, bytes) else _encoded(one).encode() for one in events]
        lines[-1] = lines[-1][:-1] + f', "{_MARK}": {json.dumps(key)}}}\n'.encode()
        self._offered += len(lines)
        self._queue.put(Appended(b"\n".join(lines), len(lines), key, done))

    def append_now(self, events: Sequence[dict], key: str = "") -> None:
        """The same, and wait for it."""
        told: SimpleQueue[Exception | None] = SimpleQueue()
        self.append(events, key, told.put)
        why = told.get()
        if why is not None:
            raise why

    def _write(self) -> None:
        while True:
            first = self._queue.get()
            group = [first]
            while not self._queue.empty():
                group.append(self._queue.get())
            self._commit([one for one in group if one is not None])
            if None in group:
                return

    def _commit(self, group: list[Appended]) -> None:
        """One fsync for all of them."""
        fresh, keys = [], set()
        for one in group:
            if not one.key or (one.key not in self._keys and one.key not in keys):
                fresh.append(one)
                keys.add(one.key)
        why: Exception | None = None
        if fresh:
            number, end = self.end
            text = b"".join(one.lines for one in fresh)
            try:
                if end >= self._size_of_segment:
                    number, end = self._next()
                _write_all(self._file, text)
                os.fsync(self._file)
            except OSError as error:
                why = OSError(f"the log of events cannot be written ({error.strerror or error})")
                os.ftruncate(self._file, end)  # what was written of it, nobody was promised
            else:
                self.syncs += 1
                for one in fresh:
                    self._remember(one.key)
                self.accepted += sum(one.events for one in fresh)
                with self._grown:
                    self.end = number, end + len(text)
                    self._grown.notify_all()
        self.requests += len(group)
        self._settled += sum(one.events for one in group)
        for one in group:
            one.done(why)

    def _next(self) -> tuple[int, int]:
        """A new segment."""
        number = self._number + 1
        file = os.open(self.path(number), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        on_disk(self.folder)
        os.close(self._file)
        self._file, self._number = file, number
        with self._grown:
            self.end = number, 0
        return self.end

    def wait(self, after: tuple[int, int], seconds: float) -> tuple[int, int]:
        """Where the log ends, once that is behind a position or so many seconds have passed."""
        with self._grown:
            self._grown.wait_for(lambda: self.end > after, seconds)
            return self.end

    def __enter__(self) -> EventLog:
        return self

    def __exit__(self, *_) -> None:
        self._queue.put(None)
        self._writer.join()
        os.close(self._file)
        self._held.close()


def _write_all(file: int, text: bytes) -> None:
    left = memoryview(text)
    while left:
        left = left[os.write(file, left) :]


def _parsed(lines: list[bytes]) -> Iterator[dict]:
    """Our own lines, all of them JSON, some at a time: who answers waits while they are parsed."""
    for first in range(0, len(lines), _PARSED):
        yield from json.loads(b"[" + b",".join(lines[first : first + _PARSED]) + b"]")


class LogFeed(Feed):
    """The events of a log, as they come: what is there is handed out, and then more is waited for.

    `pace` is the least time from one batch to the next, in seconds: every batch has a price
    whatever is in it.
    """

    live = follows = True

    def __init__(self, log: EventLog, pace: float = 0.0):
        super().__init__(f"log {log.name}")
        self._log, self._pace, self._last = log, pace, 0.0
        self._file, self._open = -1, None
        first = log.segments()[0]
        self._at, self._line = (first, 0), 0  # segment and byte; events before it
        self._ready: list[bytes] = []

    def go_to(self, position: dict) -> None:
        self._at, self._line = (position["segment"], position["byte"]), position["line"]

    def read(self, count: int, stopped: Stopped = never) -> Batch:
        while time.monotonic() - self._last < self._pace and not stopped():
            time.sleep(min(PATIENCE, self._pace))
        lines: list[bytes] = []
        while not lines and not stopped():
            end = self._log.wait(self._at, PATIENCE)
            while len(lines) < count and self._at < end:
                lines += self._some(count - len(lines), end)
        self._last = time.monotonic()
        first, self._line = self._line, self._line + len(lines)
        columns, at, refused = self._split(enumerate(_parsed(lines)), self._cells)
        after = {"segment": self._at[0], "byte": self._at[1], "line": self._line}
        return Batch(len(lines), columns, at, refused, after, lambda n: f"event {first + n + 1}")

    def _cells(self, event: dict) -> list:
        try:
            return [event[name] for name in self.wanted]
        except KeyError as missing:
            raise ValueError(f"no {missing}") from None

    def _some(self, count: int, end: tuple[int, int]) -> list[bytes]:
        """Some of the next lines, at most so many."""
        number, byte = self._at
        if self._open != number:
            if self._file >= 0:
                os.close(self._file)
            self._file, self._open = os.open(self._log.path(number), os.O_RDONLY), number
        limit = end[1] - byte if number == end[0] else _BLOCK
        block = os.pread(self._file, min(_BLOCK, limit), byte)
        if not block:  # of a segment that is not the last one
            self._at = number + 1, 0
            return []
        *lines, _ = block.split(b"\n", count)
        self._at = number, byte + sum(map(len, lines)) + len(lines)
        return lines

    def left(self) -> int:
        """How many events are yet to be read."""
        (number, byte), (last, _), count = self._at, self._log.end, 0
        for segment in range(number, last + 1):
            with self._log.path(segment).open("rb") as file:
                file.seek(byte if segment == number else 0)
                while block := file.read(_BLOCK):
                    count += block.count(b"\n")
        return count

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
