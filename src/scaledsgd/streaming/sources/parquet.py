"""Parquet files."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import numpy as np

from ...io.parquet import ParquetFile, cells, parquet_files
from ...io.tables import InputError
from ..sources import Batch, Feed, Stopped, never


class ParquetFeed(Feed):
    """Parquet files in the order of their names; batches reach from one into the next."""

    def __init__(self, pattern: str):
        path = Path(pattern)
        path = path / "*.parquet" if path.is_dir() else path
        super().__init__(str(path.parent.resolve() / path.name))
        self._files = [Path(file) for file in parquet_files(path)]
        self._file, self._row, self._parts = 0, 0, None
        self._left: deque = deque()  # (table, file, row) that a batch has not used up
        self.names = list(ParquetFile(self._files[0]).names)

    def go_to(self, position: dict) -> None:
        names = [file.name for file in self._files]
        if position["file"] not in names:
            raise InputError(
                f"{self.key}: {position['file']}, read before, is gone: --restart begins anew"
            )
        self._file, self._row = names.index(position["file"]), position["row"]

    def read(self, count: int, stopped: Stopped = never) -> Batch:
        import pyarrow as pa

        while sum(len(table) for table, *_ in self._left) < count and self._more(count):
            pass
        taken, missing = [], count
        while missing and self._left:
            table, file, row = self._left.popleft()
            if len(table) > missing:
                self._left.appendleft((table.slice(missing), file, row + missing))
            taken.append((table.slice(0, missing), file, row))
            missing -= len(taken[-1][0])
        if not taken:
            rows = sum(ParquetFile(self._files[-1]).groups())
            after = {"file": self._files[-1].name, "row": rows}
            return Batch(0, [[] for _ in self.wanted], [], [], after, str)
        table, file, row = taken[-1]
        after = {"file": self._files[file].name, "row": row + len(table)}
        whole = pa.concat_tables([table for table, *_ in taken])
        starts = np.cumsum([0] + [len(table) for table, *_ in taken])

        def place(n: int) -> str:
            part = int(np.searchsorted(starts, n, "right")) - 1
            return f"{self._files[taken[part][1]]}, row {taken[part][2] + n - starts[part] + 1}"

        columns = [cells(whole[name].combine_chunks()) for name in self.wanted]
        return Batch(len(whole), columns, range(len(whole)), [], after, place)

    def _more(self, count: int) -> bool:
        """Read on; False when all files have been read."""
        import pyarrow as pa

        if self._file >= len(self._files):
            return False
        self._parts = self._parts or self._rest_of_file(count)
        part = next(self._parts, None)
        if part is None:
            self._parts, self._row, self._file = None, 0, self._file + 1
            return True
        self._left.append((pa.Table.from_batches([part]), self._file, self._row))
        self._row += len(part)
        return True

    def _rest_of_file(self, count: int):
        """Record batches from the present row on; row groups before it are not read."""
        source = ParquetFile(self._files[self._file])
        for name in self.wanted:
            source.find(name)
        ends = np.cumsum([0, *source.groups()])
        first = int(np.searchsorted(ends, self._row, "right")) - 1
        before, groups = self._row - int(ends[first]), range(first, len(ends) - 1)
        with source.reading():
            for part in source.arrow.iter_batches(count, groups, self.wanted):
                if before < len(part):
                    yield part.slice(before)
                before = max(0, before - len(part))
