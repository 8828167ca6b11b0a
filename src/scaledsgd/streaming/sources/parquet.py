"""Parquet files."""

from __future__ import annotations

from collections import deque
from pathlib import Path

import numpy as np

from ...io.tables import InputError
from ..sources import Batch, Feed, Stopped, never


class ParquetFeed(Feed):
    """Parquet files in the order of their names; batches reach from one into the next."""

    def __init__(self, pattern: str):
        try:
            import pyarrow.parquet as parquet
        except ImportError:
            raise InputError(
                f"{pattern}: Parquet needs pyarrow: pip install 'scaledsgd[parquet]'"
            ) from None
        path = Path(pattern)
        path = path / "*.parquet" if path.is_dir() else path
        super().__init__(str(path.parent.resolve() / path.name))
        self._files = sorted(path.parent.glob(path.name))
        if not self._files:
            raise InputError(f"{pattern}: no such file")
        self._open = parquet.ParquetFile
        self._file, self._row, self._parts = 0, 0, None
        self._left: deque = deque()  # (table, file, row) that a batch has not used up
        self.names = self._opened(0).schema_arrow.names

    def _opened(self, file: int):
        try:
            return self._open(self._files[file])
        except (OSError, ValueError) as why:
            told = " ".join(str(why).split())
            raise InputError(f"{self._files[file]}: cannot be read ({told})") from None

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
            after = {"file": self._files[-1].name, "row": self._opened(-1).metadata.num_rows}
            return Batch(0, [[] for _ in self.wanted], [], [], after, str)
        table, file, row = taken[-1]
        after = {"file": self._files[file].name, "row": row + len(table)}
        whole = pa.concat_tables([table for table, *_ in taken])
        starts = np.cumsum([0] + [len(table) for table, *_ in taken])

        def place(n: int) -> str:
            part = int(np.searchsorted(starts, n, "right")) - 1
            return f"{self._files[taken[part][1]]}, row {taken[part][2] + n - starts[part] + 1}"

        columns = [whole[name].combine_chunks() for name in self.wanted]
        return Batch(len(whole), columns, range(len(whole)), [], after, place)

    def _more(self, count: int) -> bool:
        """Read on; False when all files have been read."""
        import pyarrow as pa

        if self._parts is None:
            if self._file >= len(self._files):
                return False
            self._parts = self._rest_of_file(count)
        try:
            part = next(self._parts, None)
        except (OSError, ValueError) as why:
            told = " ".join(str(why).split())
            raise InputError(f"{self._files[self._file]}: cannot be read ({told})") from None
        if part is None:
            self._parts, self._row, self._file = None, 0, self._file + 1
            return True
        self._left.append((pa.Table.from_batches([part]), self._file, self._row))
        self._row += len(part)
        return True

    def _rest_of_file(self, count: int):
        """Record batches from the present row on; row groups before it are not read."""
        opened = self._opened(self._file)
        for name in self.wanted:
            if name not in opened.schema_arrow.names:
                raise InputError(f"{self._files[self._file]}: no column {name!r}")
        groups, before = list(range(opened.num_row_groups)), self._row
        while groups and before >= (rows := opened.metadata.row_group(groups[0]).num_rows):
            before -= rows
            groups.pop(0)
        for part in opened.iter_batches(count, row_groups=groups, columns=self.wanted):
            if before < len(part):
                yield part.slice(before)
            before = max(0, before - len(part))
