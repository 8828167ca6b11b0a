"""Lines of text: JSON objects, or values below a header."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import select
import sys
import time
from collections import deque
from pathlib import Path

import numpy as np

from ...io.tables import InputError
from ...io.text_format import ENDINGS, USUAL, TextFormat, find_separator, names_in, rows_of
from ..sources import PATIENCE, Batch, Feed, Stopped, never

_BLOCK = 1 << 20  # bytes read at a time
_LONGEST = 1 << 20  # bytes of a line: what is longer is no event, and must not fill the memory

# Half as long as json.loads takes, which looks for an encoding and for white space first.
_DECODE = json.JSONDecoder().raw_decode

# Endings of JSON. Input of an ending that tells nothing shows by its first line what it is.
_JSON = (".jsonl", ".ndjson", ".json")


# What a rotated file is called besides: events.jsonl.1, events-20261116.jsonl.
_ROTATED = r"([.\-_]\d[\d.\-_T:]*)"

_BLOCK_OF_PRINT = 4096  # bytes


class LineFeed(Feed):
    """JSON lines, or values below a header, from a file or a pipe.

    A line counts when its end is there: before that its writer may be in the middle of it. With
    `final`, nobody writes any more, and the last line may lack its end.

    Of a file that was rotated since it was read, what is left is read first, then those that came
    after it.
    """

    def __init__(
        self, path: str, idle: float = np.inf, text: TextFormat = USUAL, final: bool = False
    ):
        self.live = path == "-"
        if self.live and os.name == "nt":  # where only sockets can be waited for
            raise InputError("-: a pipe cannot be followed on Windows: give a file")
        self.again = not self.live
        super().__init__("-" if self.live else str(Path(path).resolve()))
        self._name, self._idle, self._text = "stdin" if self.live else path, idle, text
        self._final, self._later = final, deque[Path]()  # files to go on with
        if "\n".encode(text.encoding) != b"\n":
            raise InputError(f"--encoding {text.encoding}: the lines of a stream end otherwise")
        try:
            self._handle = sys.stdin.fileno() if self.live else os.open(path, os.O_RDONLY)
            if os.path.isdir(self._handle):
                raise InputError(f"{path}: a folder, not a file: give FOLDER/*.parquet")
        except OSError as why:
            raise InputError(f"{path}: cannot be read ({why.strerror})") from None
        self._line = 0
        self._ready: deque[bytes | int] = deque()  # of a line that is too long, only the length
        self._begin(0)
        first = self._header = self._first()
        ending = Path(path).suffix.lower()
        told = isinstance(first, int) or not first or first.lstrip().startswith(b"{")
        if ending not in _JSON and not (told and ENDINGS.get(ending) is None):
            self._read_header(first, ending)

    def _read_header(self, line: bytes | int, ending: str) -> None:
        try:
            if isinstance(line, int) or not line.strip() or b"\0" in line:
                raise ValueError("the names of the columns are missing")
            text = line.decode(self._text.skips_mark).rstrip("\r")
            # A stream goes on where it was left: it must not depend on how much has arrived.
            self._mark = self._text.separator or find_separator([text], ENDINGS.get(ending))
            self.names, header = names_in(self._fields(text), ending, self._text.header)
            self._take(header)
        except (ValueError, csv.Error) as why:
            raise InputError(f"{self._name}, line 1: not a header ({why})") from None

    @property
    def unfinished(self) -> str:
        """What is to be said of a last line that has no end yet, if there is one."""
        if not (self._ended and (self._rest or self._dropped)):
            return ""
        return f"{self._name}: the last line has no end and was left (--final, if it is complete)"

    def _begin(self, byte: int) -> None:
        """Read on from there."""
        self._byte, self._ended = byte, False
        self._ready.clear()
        self._rest, self._dropped = b"", 0
        if not self.live:
            os.lseek(self._handle, byte, os.SEEK_SET)

    def _first(self) -> bytes | int:
        """The line that comes next, or nothing."""
        while not self._ready and not self._ended:
            self._fill()
        return self._ready[0] if self._ready else b""

    def go_to(self, position: dict) -> None:
        if self.live:
            while self._line < position["line"] and not (self._ended and not self._ready):
                if not self._take(position["line"] - self._line):
                    self._fill()
            return
        if not self._fits(self._handle, position):
            self._find_rotated(position)
        self._line = position["line"]
        self._begin(position["byte"])

    def _fits(self, handle: int, position: dict) -> bool:
        """Whether a file is the one that was read before up to there."""
        return self._print(handle, position["byte"]) == position["print"]

    def _print(self, handle: int, byte: int) -> str:
        """What a file is known by: its first block, and the one before the byte."""
        found, before = hashlib.sha256(), os.lseek(handle, 0, os.SEEK_CUR)
        for start in (0, max(0, byte - _BLOCK_OF_PRINT)):
            os.lseek(handle, start, os.SEEK_SET)
            found.update(os.read(handle, min(byte - start, _BLOCK_OF_PRINT)))
        os.lseek(handle, before, os.SEEK_SET)
        return found.hexdigest()[:32]

    def _find_rotated(self, position: dict) -> None:
        """Go on in the file that was read before, under the name that it has now."""
        path = Path(self.key)
        ending = "".join(path.suffixes)
        stem = path.name.removesuffix(ending)
        names = (path.name + "{}", stem + "{}" + ending)
        rotated = "|".join(re.escape(name).replace(r"\{\}", _ROTATED) for name in names)
        found = ((re.fullmatch(rotated, other.name), other) for other in path.parent.iterdir())
        beside = [other for _, other in sorted((_age(m), other) for m, other in found if m)]
        for n, other in enumerate(beside):
            handle = os.open(other, os.O_RDONLY)
            if self._fits(handle, position):
                os.close(self._handle)
                self._handle, self._later = handle, deque([*beside[n + 1 :], path])
                return
            os.close(handle)
        raise InputError(
            f"{self._name}: not the file that was learned from before, nor is a rotated one beside "
            "it: --restart reads it from its beginning"
        )

    def _go_on(self) -> bool:
        """With the file after this one, if that is read and there is one."""
        if self._ready or not self._ended or not self._later:
            return False
        os.close(self._handle)
        self._handle = os.open(self._later.popleft(), os.O_RDONLY)
        self._begin(0)
        if self.names is not None and self._first() == self._header:
            self._take(1)
            self._line -= 1
        return True

    def read(self, count: int, stopped: Stopped = never) -> Batch:
        waited, first, lines = time.monotonic(), self._line + 1, []
        while len(self._ready) < count - len(lines) and not stopped():
            if self._ended:
                lines += self._take(count - len(lines))
                if not self._go_on():
                    break
            elif self._fill():
                waited = time.monotonic()
            elif time.monotonic() - waited > self._idle:
                break
        lines += self._take(count - len(lines))
        places = [self.names.index(name) for name in self.wanted] if self.names else []
        texts = self._decoded(lines)
        full = [(n, text) for n, text in enumerate(texts) if text and not text.isspace()]
        columns, at, refused = self._split(full, lambda text: self._cells(text, places))
        after: dict = {"line": self._line}
        if not self.live:
            after |= {"byte": self._byte, "print": self._print(self._handle, self._byte)}
        return Batch(
            len(lines), columns, at, refused, after, lambda n: f"{self._name}, line {first + n}"
        )

    def _fill(self) -> bool:
        """Read a little more. False if there was nothing to be had."""
        if self.live and not select.select([self._handle], [], [], PATIENCE)[0]:
            return False
        block = os.read(self._handle, _BLOCK)
        self._ended = not block
        *lines, rest = (self._rest + block).split(b"\n")
        if self._ended and (self._final or self._later) and (rest or self._dropped):
            lines, rest = [rest], b""
        if lines and self._dropped:
            self._ready.append(self._dropped + len(lines.pop(0)))
            self._dropped = 0
        if self._dropped or len(rest) > _LONGEST:
            self._dropped, rest = self._dropped + len(rest), b""
        self._ready.extend(lines)
        self._rest = rest
        return bool(block)

    def _take(self, count: int) -> list[bytes | int]:
        lines = [self._ready.popleft() for _ in range(min(count, len(self._ready)))]
        self._line += len(lines)
        self._byte += sum(line if isinstance(line, int) else len(line) for line in lines)
        self._byte += len(lines)
        if self._ended and not self._ready and not self.live:
            # The last line may lack the byte that ends a line.
            self._byte = min(self._byte, os.fstat(self._handle).st_size)
        return lines

    def _decoded(self, lines: list[bytes | int]) -> list[str]:
        """Texts; where a line cannot be one, a text that no parser takes, which says why."""
        try:
            joined = b"\n".join(lines)  # type: ignore[arg-type]
            if b"\0" not in joined:
                return joined.decode(self._text.encoding).split("\n") if lines else []
        except (TypeError, UnicodeDecodeError):
            pass
        return [_decoded(line, self._text) for line in lines]

    def _cells(self, text: str, places: list[int]) -> list:
        if isinstance(text, _NoText):
            raise ValueError(str(text))
        if self.names is None:
            return _members(text, self.wanted)
        fields = self._fields(text.rstrip("\r"))
        if len(fields) != len(self.names):
            raise ValueError(f"{len(fields)} fields, but the header has {len(self.names)}")
        return [fields[place] for place in places]

    def _fields(self, text: str) -> list[str]:
        if '"' not in text and self._mark != " ":
            return [field.lstrip(" ") for field in text.split(self._mark)]
        return next(rows_of(iter([text]), self._mark))


def _age(found: re.Match) -> tuple[int, list]:
    """What sorts rotated files, the oldest first: those with a number count down, those with a date
    count up. Clocks may be set back, and are not asked."""
    added = next(filter(None, found.groups()))[1:]
    number = int(added) if added.isdecimal() and len(added) < 5 else 0
    return -number, re.split(r"\D+", added)


class _NoText(str):
    """Why a line is not text."""


def _decoded(line: bytes | int, text: TextFormat) -> str:
    if isinstance(line, int) or len(line) > _LONGEST:
        return _NoText(f"longer than {_LONGEST:,} bytes")
    if b"\0" in line:
        return _NoText("a NUL byte")
    try:
        return line.decode(text.encoding)
    except UnicodeDecodeError as why:
        return _NoText(text.not_text(line, why.start))


def _members(text: str, wanted: list[str]) -> list:
    text = text.strip(" \t\r")
    try:
        found, end = _DECODE(text)
    except (ValueError, RecursionError):
        raise ValueError("not JSON") from None
    if end != len(text):
        raise ValueError("more than one JSON value")
    if type(found) is not dict:
        raise ValueError("not a JSON object")
    try:
        return [found[name] for name in wanted]
    except KeyError as missing:
        raise ValueError(f"no {missing}") from None
