"""Redis Streams, read from where the model says that it was left."""

from __future__ import annotations

import time
from collections import deque
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from ...io.tables import InputError
from ..sources import PATIENCE, Batch, Feed, Stopped, never

_AT_ONCE = 10_000  # entries asked for in one call: some megabytes
_RETRIES = 20  # of a call whose connection broke: a quarter of a minute, for a server to come back
_SILENT = 10.0  # seconds after which a server that says nothing is asked again

_GONE = "entries after the last that was learned are gone: --skip-lost goes on without them"
_ANEW = "not the stream that was learned from before, it was begun anew: --restart reads all of it"


class RedisFeed(Feed):
    """`redis://host:port/db/STREAM`; an entry's fields are its cells.

    What was read is nobody's business but the model's: nothing is written to the server, and any
    number of models follow the same stream. With every answer the server tells how many entries
    were ever added, and how many it holds. More are gone than were read: some were lost unread.
    """

    live = True

    def __init__(self, url: str, idle: float = np.inf, skip_lost: bool = False):
        try:
            import redis
            from redis.backoff import ExponentialBackoff
            from redis.retry import Retry
        except ImportError:
            raise InputError("a Redis stream needs redis: pip install 'scaledsgd[redis]'") from None
        parts = urlsplit(url)
        database, _, stream = parts.path.strip("/").partition("/")
        if not database.isdecimal() or not stream or parts.query:
            raise InputError(f"{parts.path}: a stream is redis://host:port/db/STREAM")
        self._stream, self._idle, self._skip_lost = stream, idle, skip_lost
        # No password in it: it is written into the model.
        super().__init__(f"redis://{parts.hostname}:{parts.port or 6379}/{database}/{stream}")
        self._refusal = redis.RedisError
        address = f"{parts.scheme}://{parts.netloc}/{database}"
        self._ask(redis.Redis.from_url(address, socket_timeout=_SILENT).ping)
        self._redis = redis.Redis.from_url(
            address, socket_timeout=_SILENT, retry=Retry(ExponentialBackoff(1, 0.05), _RETRIES),
            retry_on_error=[redis.ConnectionError, redis.TimeoutError],
        )  # fmt: skip
        self._asked = self._last = "0-0"  # the last entry that was asked for; and handed out
        # How many entries were ever added up to the one asked for last, and the latest that was
        # known to be deleted before it was asked for.
        self._read: int | None = None
        self._deleted = "0-0"
        self._ready: deque[tuple[str, dict]] = deque()

    def go_to(self, position: dict) -> None:
        for entry in (position["id"], position["deleted"]):
            _order(entry)  # or it is none
        self._asked = self._last = position["id"]
        self._read, self._deleted = int(position["read"]), position["deleted"]

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
        self._last = entries[-1][0] if entries else self._last
        read = (self._read or 0) - len(self._ready)
        return Batch(
            len(entries), columns, at, refused,
            {"id": self._last, "read": read, "deleted": self._deleted},
            lambda n: f"{self._stream}, entry {entries[n][0]}",
        )  # fmt: skip

    def _fill(self, count: int) -> bool:
        """Ask for a few more. False if there were none."""
        both = self._redis.pipeline(transaction=True)
        both.xinfo_stream(self._stream)
        both.xrange(self._stream, min=f"({self._asked}", count=count)
        info, found = self._ask(both.execute, raise_on_error=False)
        if isinstance(info, Exception):
            if "no such key" not in str(info):
                raise InputError(f"{self.key}: {info}")
            info = {"length": 0, "last-generated-id": b"0-0", "entries-added": 0}
        self._check(info)
        if not found:
            milliseconds = int(1000 * PATIENCE)
            self._ask(self._redis.xread, {self._stream: self._asked}, 1, milliseconds)
            return False
        self._ready.extend((entry.decode(), fields) for entry, fields in found)
        self._asked, self._read = found[-1][0].decode(), (self._read or 0) + len(found)
        return True

    def _check(self, info: dict) -> None:
        """Whether it is still the stream that was read before, with all that was not."""
        added = info.get("entries-added")  # Redis before 7.0 does not tell
        gone = 0 if added is None else added - info["length"]
        deleted = _text(info.get("max-deleted-entry-id", b"0-0"))
        if self._read is None:  # nothing was read before: it begins with what there is
            self._read, self._deleted = gone, deleted
            return
        first = info.get("first-entry")
        anew = _order(_text(info["last-generated-id"])) < _order(self._asked) or (
            # What was read and not removed must be there.
            added is not None
            and (added < self._read or (gone < self._read and first and _after(first, self._asked)))
        )
        if anew:
            raise InputError(f"{self.key}: {_ANEW}")
        latest = max(_order(self._asked), _order(self._deleted))
        if gone > self._read or _order(deleted) > latest:
            if not self._skip_lost:
                raise InputError(f"{self.key}: {_GONE}")
            self._read, self._deleted = max(gone, self._read), deleted

    def _cells(self, fields: dict) -> list[str]:
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
            raise InputError(f"{self.key}: {why}") from None


def _text(entry: bytes | str) -> str:
    return entry.decode() if isinstance(entry, bytes) else entry


def _after(entry, last: str) -> bool:
    return _order(_text(entry[0])) > _order(last)


def _order(entry: str) -> tuple[int, int]:
    """Entries are numbered by milliseconds and a count within.

    >>> _order("5-10") > _order("5-9")
    True
    """
    first, _, second = entry.partition("-")
    return int(first), int(second)
