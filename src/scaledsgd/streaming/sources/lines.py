"""Lines of text: JSON objects, or values below a header."""

from __future__ import annotations

import csv
import json
import os
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


class LineFeed(Feed):
    """JSON lines, or values below a header, from a file or a pipe."""

    def __init__(self, path: str, idle: float = np.inf, text: TextFormat = USUAL):
        self.live = path == "-"
        if self.live and os.name == "nt":  # where only sockets can be waited for
            raise InputError("-: a pipe cannot be followed on Windows: give a file")
        self.again = not self.live
        super().__init__("-" if self.live else str(Path(path).resolve()))
        self._name, self._idle, self._text = "stdin" if self.live else path, idle, text
        if "\n".encode(text.encoding) != b"\n":
            raise InputError(f"--encoding {text.encoding}: the lines of a stream end otherwise")
        try:
            self._handle = sys.stdin.fileno() if self.live else os.open(path, os.O_RDONLY)
            if os.path.isdir(self._handle):
                raise InputError(f"{path}: a folder, not a file: give FOLDER/*.parquet")
        except OSError as why:
            raise InputError(f"{path}: cannot be read ({why.strerror})") from None
        self._byte, self._line, self._ended = 0, 0, False
        self._rest, self._dropped = b"", 0
        self._ready: deque[bytes | int] = deque()  # of a line that is too long, only the length
        while not self._ready and not self._ended:
            self._fill()
        first = self._ready[0] if self._ready else b""
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

    def go_to(self, position: dict) -> None:
        if self.live:
            while self._line < position["line"] and not (self._ended and not self._ready):
                if not self._take(position["line"] - self._line):
                    self._fill()
            return
        if os.fstat(self._handle).st_size < position["byte"]:
            raise InputError(
                f"{self._name}: shorter than what was learned from it before: another file? "
                "--restart reads it from its beginning"
            )
        self._byte, self._line = position["byte"], position["line"]
        self._ready.clear()
        self._rest, self._dropped, self._ended = b"", 0, False
        os.lseek(self._handle, self._byte, os.SEEK_SET)

    def read(self, count: int, stopped: Stopped = never) -> Batch:
        waited = time.monotonic()
        while len(self._ready) < count and not self._ended and not stopped():
            if self._fill():
                waited = time.monotonic()
            elif time.monotonic() - waited > self._idle:
                break
        first, lines = self._line + 1, self._take(count)
        places = [self.names.index(name) for name in self.wanted] if self.names else []
        texts = self._decoded(lines)
        full = [(n, text) for n, text in enumerate(texts) if text and not text.isspace()]
        columns, at, refused = self._split(full, lambda text: self._cells(text, places))
        after = {"line": self._line} | ({} if self.live else {"byte": self._byte})
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
        if self._ended and (rest or self._dropped):
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
