"""Tables and matrices from files: CSV, TSV, Parquet, NumPy's .npz and Matrix Market.

>>> import pathlib, tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     path = pathlib.Path(folder, "ratings.csv")
...     _ = path.write_text("user,film,stars\\nann,7,4.5\\nbob,9,3\\n")
...     source = open_file(path)
...     table = source.table(ids=["user", "film"], numbers=["stars"])
>>> source.names, table["user"].tolist(), table["film"], table["stars"]
(['user', 'film', 'stars'], ['ann', 'bob'], array([7, 9]), array([4.5, 3. ]))
"""

from __future__ import annotations

import zlib
from os import PathLike
from pathlib import Path
from zipfile import BadZipFile, is_zipfile

import numpy as np
import scipy.io
import scipy.sparse as sp

from .tables import Advance, InputError, Source, Table, typed_ids, typed_numbers
from .text_files import TextFile

# What NumPy and SciPy raise, between them, on archives that something has happened to.
_UNSOUND = (OSError, ValueError, LookupError, TypeError, AttributeError, BadZipFile, zlib.error)


def open_file(path: str | PathLike) -> Source:
    """The file, read as far as its header."""
    path = Path(path)
    if path.suffix.lower() not in _FORMATS:
        raise InputError(f"{path}: {path.suffix or 'no ending'!r} is not one of {_ENDINGS}")
    try:
        with path.open("rb") as file:
            if not file.read(1):
                raise InputError(f"{path}: the file is empty")
    except OSError as why:
        raise InputError(f"{path}: cannot be read ({why.strerror})") from None
    return _FORMATS[path.suffix.lower()](path)


class ParquetFile(Source):
    """Parquet, by the extra `parquet`."""

    def __init__(self, path: Path):
        super().__init__(path)
        try:
            import pyarrow.parquet as parquet
        except ImportError:
            raise InputError(
                f"{path}: Parquet needs pyarrow: pip install 'scaledsgd[parquet]'"
            ) from None
        try:
            self._file = parquet.ParquetFile(path)
        except (OSError, ValueError) as why:
            raise self.broken(why) from None
        self.names = self._file.schema_arrow.names

    def table(self, ids, numbers, advance: Advance = lambda _: None) -> Table:
        for name in (*ids, *numbers):
            self.find(name)
        try:
            columns = self._file.read(columns=[*ids, *numbers])
        except (OSError, ValueError) as why:
            raise self.broken(why) from None
        table = Table(self.path, {})
        for name in (*ids, *numbers):
            column = columns[name].combine_chunks()
            if column.null_count:
                row = int(np.argmax(column.is_null().to_numpy(zero_copy_only=False)))
                raise table.refused(row, name, "nothing there")
            if str(column.type) in ("string", "large_string", "string_view"):
                # One string object an id, not one a row.
                column = column.dictionary_encode()
            if hasattr(column, "dictionary"):
                words = np.array(column.dictionary.to_pylist(), dtype=object)
                values = words[column.indices.to_numpy(zero_copy_only=False)]
            else:
                values = column.to_numpy(zero_copy_only=False)
            clean = typed_ids if name in ids else typed_numbers
            table.columns[name] = clean(values, table, name)
        return table


class ArrayFile(Source):
    """.npz: a sparse matrix of scipy's, columns of one length, or full matrices by name."""

    def __init__(self, path: Path):
        super().__init__(path)
        if not is_zipfile(path):
            raise self.broken("not an archive of arrays")
        try:
            self._arrays = np.load(path, allow_pickle=False)
            self._sparse = "format" in self._arrays
            self._held = {} if self._sparse else {name: self._arrays[name] for name in self._arrays}
        except _UNSOUND as why:
            raise self.broken(why) from None
        if self._held and all(array.ndim == 1 for array in self._held.values()):
            self.names = list(self._held)

    def table(self, ids, numbers, advance: Advance = lambda _: None) -> Table:
        if not self.names:
            return super().table(ids, numbers)
        table = Table(self.path, {})
        for name in (*ids, *numbers):
            self.find(name)
            clean = typed_ids if name in ids else typed_numbers
            table.columns[name] = clean(self._held[name], table, name)
        lengths = {name: len(values) for name, values in table.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise InputError(f"{self.path}: columns of different lengths: {told}")
        return table

    def matrix(self, name: str | None = None):
        if self.names:
            return super().matrix()
        if self._sparse:
            try:
                found = sp.load_npz(self.path)
                if hasattr(found, "check_format"):  # wrong pointers crash SciPy's conversions
                    found.check_format(full_check=True)
                return found
            except _UNSOUND as why:
                raise self.broken(why) from None
        if name is None and len(self._held) == 1:
            name = next(iter(self._held))
        if name not in self._held:
            what = "name one of its arrays" if name is None else f"no array {name!r}"
            raise InputError(f"{self.path}: {what}: it has {', '.join(self._held) or 'none'}")
        return self._held[name]


class MarketFile(Source):
    """Matrix Market."""

    def matrix(self, name: str | None = None):
        try:
            found = scipy.io.mmread(self.path)
        except (OSError, ValueError, OverflowError, StopIteration) as why:
            raise self.broken(why) from None
        if np.iscomplexobj(found):
            raise InputError(f"{self.path}: the entries are complex numbers")
        return found


_FORMATS: dict[str, type[Source]] = {
    ".csv": TextFile,
    ".tsv": TextFile,
    ".parquet": ParquetFile,
    ".npz": ArrayFile,
    ".mtx": MarketFile,
}
_ENDINGS = ", ".join(_FORMATS)
