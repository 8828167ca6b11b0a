"""Redis Streams, read as a member of a consumer group."""

from __future__ import annotations

import time
from collections import deque
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np

from ...io.tables import InputError
from ..sources import PATIENCE, Batch, Feed, Stopped, never

_AT_ONCE = 10_000  # entries asked for or acknowledged in one call: some megabytes
_GROUP, _CONSUMER = "scaledsgd", "learner"


class RedisFeed(Feed):
    """`redis://host:port/db/STREAM?group=NAME&consumer=NAME`; an entry's fields are its cells.

    Entries stay pending with the group until a checkpoint holds them. What is delivered again after
    that, because the acknowledgement was lost, lies before the checkpoint's position and is
    acknowledged without being read.
    """

    live = True

    def __init__(self, url: str, idle: float = np.inf):
        try:
            import redis
        except ImportError:
            raise InputError("a Redis stream needs redis: pip install 'scaledsgd[redis]'") from None
        parts = urlsplit(url)
        database, _, stream = parts.path.strip("/").partition("/")
        if not database.isdecimal() or not stream:
            raise InputError(f"{parts.path}: a stream is redis://host:port/db/STREAM")
        told = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        self._group, self._consumer = told.get("group", _GROUP), told.get("consumer", _CONSUMER)
        self._stream, self._idle = stream, idle
        # No password in it: it is written into the model.
        place = f"{parts.hostname}:{parts.port or 6379}"
        super().__init__(f"redis://{place}/{database}/{stream} {self._group} {self._consumer}")
        self._refusal = redis.RedisError
        self._redis = redis.Redis.from_url(f"{parts.scheme}://{parts.netloc}/{database}")
        self._last = self._known = (0, 0)  # handed out; in the checkpoint that it began with
        self._pending: str | None = "0"  # from where to read what was delivered before
        self._ready: deque[tuple[str, dict | None]] = deque()
        self._handed: deque[str] = deque()  # in batches, but not in a checkpoint yet
        self._joined = False

    def go_to(self, position: dict) -> None:
        self._last = self._known = _order(position["id"])

    def read(self, count: int, stopped: Stopped = never) -> Batch:
        waited = time.monotonic()
        while len(self._ready) < count and not stopped():
            if self._fill(min(count - len(self._ready), _AT_ONCE)):
                waited = time.monotonic()
            elif time.monotonic() - waited > self._idle:
                break
        entries = [self._ready.popleft() for _ in range(min(count, len(self._ready)))]
        fields = [(n, fields) for n, (_, fields) in enumerate(entries)]
        columns, at, refused = self._split(fields, self._cells)
        self._handed.extend(entry for entry, _ in entries)
        last = entries[-1][0] if entries else "-".join(map(str, self._last))
        self._last = _order(last)
        return Batch(
            len(entries), columns, at, refused, {"id": last},
            lambda n: f"{self._stream}, entry {entries[n][0]}",
        )  # fmt: skip

    def learned(self, position: dict) -> None:
        done = []
        while self._handed and _order(self._handed[0]) <= _order(position["id"]):
            done.append(self._handed.popleft())
        self._acknowledge(done)

    def _acknowledge(self, entries: list[str]) -> None:
        for start in range(0, len(entries), _AT_ONCE):
            part = entries[start : start + _AT_ONCE]
            self._ask(self._redis.xack, self._stream, self._group, *part)

    def _fill(self, count: int) -> bool:
        """Ask for a few more. False if there were none."""
        if not self._joined:
            self._join()
        reply = self._ask(
            self._redis.xreadgroup, self._group, self._consumer,
            {self._stream: self._pending or ">"}, count=count,
            block=None if self._pending else int(1000 * PATIENCE),
        )  # fmt: skip
        entries = [(entry.decode(), fields) for entry, fields in (reply[0][1] if reply else [])]
        if self._pending:
            self._pending = entries[-1][0] if entries else None
        old = [entry for entry, _ in entries if _order(entry) <= self._known]
        self._acknowledge(old)
        self._ready.extend(entries[len(old) :])
        return bool(entries)

    def _join(self) -> None:
        first = "-".join(map(str, self._last))
        try:
            self._ask(self._redis.xgroup_create, self._stream, self._group, first, mkstream=True)
        except InputError as why:
            if "BUSYGROUP" not in str(why):
                raise
        self._joined = True

    def _cells(self, fields: dict | None) -> list[str]:
        if not fields:
            raise ValueError("deleted from the stream before it was read")
        try:
            cells = [fields[name.encode()].decode() for name in self.wanted]
        except KeyError as missing:
            raise ValueError(f"no {missing.args[0].decode()!r}") from None
        except UnicodeDecodeError:
            raise ValueError("not UTF-8") from None
        if any("\0" in cell for cell in cells):
            raise ValueError("a NUL byte")
        return cells

    def _ask(self, call, *arguments, **options) -> Any:
        try:
            return call(*arguments, **options)
        except self._refusal as why:
            raise InputError(f"{self.key.split()[0]}: {why}") from None


def _order(entry: str) -> tuple[int, int]:
    """Entries are numbered by milliseconds and a count within.

    >>> _order("5-10") > _order("5-9")
    True
    """
    first, _, second = entry.partition("-")
    return int(first), int(second)
