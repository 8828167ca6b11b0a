"""Parquet, by the extra `parquet`: how a file is opened, and what its columns become."""

from __future__ import annotations

import re
from functools import partial
from glob import glob
from os import PathLike
from pathlib import Path

import numpy as np

from ..core.memory import allow
from .ids import typed_ids
from .tables import Advance, InputError, Source, Table, typed_numbers

_TEXTS = ("string", "large_string", "string_view")
_CELL = 24  # bytes that a cell takes: as pyarrow's, as NumPy's, and as ours


def parquet_files(patterns: str | PathLike | list | tuple) -> list[str]:
    """The files that are meant by one or more names with wildcards, each name's in order, in which
    part-2 comes before part-10."""
    patterns = patterns if isinstance(patterns, list | tuple) else [patterns]
    paths = [path for name in patterns for path in sorted(glob(str(name)), key=_by_number)]
    if not paths:
        raise InputError(f"{patterns[0]}: no such file")
    return paths


def _by_number(path: str) -> list:
    """Numbers in names count as numbers. At even places there are none."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", path)]


class ParquetFile(Source):
    """A Parquet file; `arrow` is what pyarrow makes of it."""

    def __init__(self, path: Path):
        super().__init__(path)
        try:
            import pyarrow.parquet as parquet
        except ImportError:
            why = "Parquet needs pyarrow: pip install 'scaledsgd[parquet]'"
            raise InputError(f"{path}: {why}") from None
        with self.reading():
            self.arrow = parquet.ParquetFile(path)
        self.names = self.arrow.schema_arrow.names

    def groups(self) -> list[int]:
        """How many rows each row group has."""
        held = self.arrow.metadata
        return [held.row_group(group).num_rows for group in range(held.num_row_groups)]

    def table(
        self, ids, numbers, advance: Advance = lambda _: None, times=(), group: int | None = None
    ) -> Table:
        """The columns of the file, or of one of its row groups."""
        wanted = [*ids, *numbers]
        for name in wanted:
            self.find(name)
        with self.reading():
            file, held = self.arrow, self.arrow.metadata
            groups = range(held.num_row_groups) if group is None else [group]
            packed = sum(held.row_group(g).total_byte_size for g in groups)
            cells = len(wanted) * sum(held.row_group(g).num_rows for g in groups)
            allow(packed + _CELL * cells, str(self.path))
            columns = file.read(wanted) if group is None else file.read_row_group(group, wanted)
        table = Table(self.path, {}, "row" if group is None else f"row group {group}, row")
        for name in wanted:
            what, clean = "an id", typed_ids
            if name not in ids:
                what, clean = "a number", partial(typed_numbers, times=name in times)
            column = columns[name].combine_chunks()
            if column.null_count:
                row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
                raise table.refused(row, name, f"nothing where {what} belongs")
            table.columns[name] = clean(_values(column), table, name)
        return table


def cells(column) -> list | np.ndarray:
    """An Arrow array as values of Python's own, None where there is nothing; numbers without gaps
    as an array."""
    kind = str(column.type)
    if kind in _TEXTS or hasattr(column, "dictionary"):
        return _values(column).tolist()
    number = kind in ("float", "double") or kind.startswith(("int", "uint"))
    return _values(column) if number and not column.null_count else column.to_pylist()


def _values(column) -> np.ndarray:
    """An Arrow array as NumPy's; of words, one object a word and not one a row."""
    if str(column.type) in _TEXTS:
        column = column.dictionary_encode()
    if not hasattr(column, "dictionary"):
        return column.to_numpy(zero_copy_only=False)
    words = np.array([*column.dictionary.to_pylist(), None], dtype=object)
    return words[column.indices.cast("int64").fill_null(len(words) - 1).to_numpy()]
