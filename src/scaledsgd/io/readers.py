"""Tables and matrices from files: text, Parquet, NumPy's .npz and Matrix Market.

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

import csv
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import compress, islice
from os import PathLike
from pathlib import Path
from zipfile import ZipFile, ZipInfo, is_zipfile

import numpy as np
import scipy.sparse as sp

from ..core.memory import allow
from .ids import IdColumn, typed_ids
from .parquet import ParquetFile
from .tables import Advance, InputError, NumberColumn, Source, Table, is_number, typed_numbers
from .text_format import ENDINGS, USUAL, TextFormat, find_separator, names_in, rows_of

# Rows that exist as Python strings at a time, some 20 MB of them; the rest are arrays.
_BLOCK = 1 << 17

# Rows that exist as lists of fields at a time, which stay in the processor's cache.
_BATCH = 512

_FIRST = 20  # lines that tell what separates fields
_FIRST_LINE = 1 << 16  # bytes of a header of Matrix Market, or of a comment


def open_file(path: str | PathLike, text: TextFormat = USUAL) -> Source:
    """The file, read as far as its header. Args: text, what is known of it if it is a text; a file
    of any ending is one whose separator is known."""
    path = Path(path)
    ending = path.suffix.lower()
    if ending not in _FORMATS and not text.separator:
        raise InputError(f"{path}: {path.suffix or 'no ending'!r} is not one of {_ENDINGS}")
    try:
        with path.open("rb") as file:
            if not file.read(1):
                raise InputError(f"{path}: the file is empty")
    except OSError as why:
        raise InputError(f"{path}: cannot be read ({why.strerror})") from None
    make = _FORMATS.get(ending, TextFile)
    return TextFile(path, text) if make is TextFile else make(path)


class TextFile(Source):
    """Fields between separators, mostly below a header: see `text_format`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "a.tsv")
    ...     _ = path.write_text("name\\tsize\\nash\\t2\\nelm\\t3\\n")
    ...     dict(TextFile(path).table(["name"], ["size"]))
    {'name': array(['ash', 'elm'], dtype=object), 'size': array([2., 3.])}
    """

    def __init__(self, path: Path, text: TextFormat = USUAL):
        super().__init__(path)
        self._text, ending = text, path.suffix.lower()
        self._mark = text.separator or find_separator(self._beginning(), ENDINGS.get(ending))
        found = (fields for batch in self._batches(1) for _, fields in batch if fields)
        self.names, self._header = names_in(next(found, []), ending, text.header)
        if not self.names:
            raise InputError(f"{path}: the file is empty")

    def choose(self, given, count: int) -> dict[str, str]:
        by_order = [self._header and not name for name in given.values()][:count]
        for name in filter(is_number, compress(self.names, by_order)):
            told = f"{name!r} is a number: the header is missing (--no-header, if there is none)"
            raise InputError(f"{self.path}, line 1: {told}")
        return super().choose(given, count)

    def table(self, ids, numbers, advance: Advance = lambda _: None, times=()) -> Table:
        wanted: dict[str, IdColumn | NumberColumn] = {name: IdColumn() for name in ids}
        wanted |= {name: NumberColumn(name in times) for name in numbers}
        row, lines = 0, [(0, 1 + self._header)]
        table = Table(self.path, {}, "line", lines)
        for at, *texts in self._blocks([self.find(name) for name in wanted], advance):
            offsets = np.array(at) - np.arange(row, row + len(at))
            jumps = np.flatnonzero(np.diff(offsets, prepend=lines[-1][1]))
            lines += [(row + int(jump), int(offsets[jump])) for jump in jumps]
            for (name, column), block in zip(wanted.items(), texts, strict=True):
                column.add(block, table, name, row)
            row += len(at)
        table.columns |= {name: column.joined(table, name) for name, column in wanted.items()}
        return table

    def _blocks(self, places: list[int], advance: Advance) -> Iterator[list[list]]:
        """Some rows at a time: the numbers of their lines, and the texts at these places."""
        block: list[list] = [[] for _ in range(len(places) + 1)]
        width, header = len(self.names), self._header
        for batch in self._batches(_BATCH, advance):
            if {len(fields) for _, fields in batch} != {width}:
                batch = self._even(batch)
            batch, header = batch[header:], header and not batch
            block[0] += [line for line, _ in batch]
            for texts, place in zip(block[1:], places, strict=True):
                texts += [fields[place] for _, fields in batch]
            if len(block[0]) >= _BLOCK:
                yield block
                block = [[] for _ in block]
        if block[0]:
            yield block

    def _even(self, batch: list[tuple[int, list[str]]]) -> list[tuple[int, list[str]]]:
        """The lines that are not blank, all as long as the header."""
        batch = [(line, fields) for line, fields in batch if fields]
        for line, fields in batch:
            if len(fields) != len(self.names):
                where = "header" if self._header else "first line"
                why = f"{len(fields)} fields, but the {where} has {len(self.names)}"
                raise InputError(f"{self.path}, line {line}: {why}")
        return batch

    def _batches(
        self, size: int, advance: Advance = lambda _: None
    ) -> Iterator[list[tuple[int, list[str]]]]:
        """Lines with their numbers, some at a time."""
        with self._opened() as file:
            reader = rows_of(self._lines(file, advance), self._mark)
            while batch := [(reader.line_num, fields) for fields in islice(reader, size)]:
                yield batch

    def _beginning(self) -> list[str]:
        """The first lines that are not blank."""
        with self._opened() as file:
            lines = (line.rstrip("\r\n") for line in self._lines(file, lambda _: None))
            return list(islice(filter(str.strip, lines), _FIRST))

    @contextmanager
    def _opened(self):
        """The file as text. What goes wrong in it is told with its place."""
        try:
            with self.path.open(encoding=self._text.skips_mark, newline="") as file:
                yield file
        except csv.Error as why:
            raise self._malformed(why) from None
        except UnicodeError:
            raise self._undecodable() from None
        except OSError as why:
            raise self.broken(why.strerror) from None

    def _lines(self, file, advance: Advance) -> Iterator[str]:
        done = 0
        for number, line in enumerate(file, 1):
            if "\0" in line:
                raise InputError(f"{self.path}, line {number}: a NUL byte: not a text file")
            if number % _BLOCK == 0:
                advance(file.buffer.tell() - done)
                done = file.buffer.tell()
            yield line
        advance(file.buffer.tell() - done)

    # Lines are read and decoded many at a time: only a second look finds the one at fault.

    def _malformed(self, why: csv.Error) -> InputError:
        last = 0
        with self.path.open(encoding=self._text.skips_mark, newline="") as file:
            reader = rows_of(iter(file), self._mark)
            try:
                for _ in reader:
                    last = reader.line_num
            except csv.Error:
                pass
        return InputError(f"{self.path}, line {last + 1}: not a table ({why})")

    def _undecodable(self) -> InputError:
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                try:
                    line.decode(self._text.encoding)
                except UnicodeDecodeError as why:
                    told = self._text.not_text(line, why.start)
                    return InputError(f"{self.path}, line {number}: {told}")
        return self.broken(f"not {self._text.encoding}")


class ArrayFile(Source):
    """.npz: a sparse matrix of scipy's, columns of one length, or full matrices by name. Only what
    is asked for is unpacked."""

    def __init__(self, path: Path):
        super().__init__(path)
        if not is_zipfile(path):
            raise self.broken("not an archive of arrays")
        with self.reading(), ZipFile(path) as archive:
            self._size = {
                info.filename.removesuffix(".npy"): info.file_size for info in archive.infolist()
            }
            self._sparse = "format" in self._size
            if self._sparse:
                return
            shapes = [_shape_of(archive, info) for info in archive.infolist()]
        if shapes and all(len(shape) == 1 for shape in shapes):
            self.names = list(self._size)

    def _array(self, name: str) -> np.ndarray:
        allow(2 * self._size[name], f"{self.path}: {name}")
        with self.reading(), np.load(self.path, allow_pickle=False) as arrays:
            return arrays[name]

    def table(self, ids, numbers, advance: Advance = lambda _: None, times=()) -> Table:
        if not self.names:
            return super().table(ids, numbers)
        table = Table(self.path, {})
        for name in (*ids, *numbers):
            self.find(name)
            clean = typed_ids if name in ids else partial(typed_numbers, times=name in times)
            table.columns[name] = clean(self._array(name), table, name)
        lengths = {name: len(values) for name, values in table.items()}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise InputError(f"{self.path}: columns of different lengths: {told}")
        return table

    def matrix(self, name: str | None = None):
        if self.names:
            return super().matrix()
        if self._sparse:
            allow(2 * sum(self._size.values()), str(self.path))
            with self.reading():
                found = sp.load_npz(self.path)
                if hasattr(found, "check_format"):  # wrong pointers crash SciPy's conversions
                    found.check_format(full_check=True)
                return self._numeric(found.tocoo() if found.format == "dia" else found)
        if name is None and len(self._size) == 1:
            name = next(iter(self._size))
        if name not in self._size:
            what = "name one of its arrays" if name is None else f"no array {name!r}"
            raise InputError(f"{self.path}: {what}: it has {', '.join(self._size) or 'none'}")
        return self._numeric(self._array(name))

    def _numeric(self, matrix):
        if matrix.dtype.kind not in "biuf" or matrix.ndim != 2:
            raise self.broken(
                f"{matrix.ndim} dimensions of {matrix.dtype}, not a matrix of numbers"
            )
        return matrix


def _shape_of(archive: ZipFile, info: ZipInfo) -> tuple[int, ...]:
    """The shape of an array in an archive, by its header alone."""
    with archive.open(info) as file:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): "read_array_header_1_0", (2, 0): "read_array_header_2_0"}.get(version)
        if read is None:
            raise ValueError(f"{info.filename}: arrays of version {version}")
        shape, _, dtype = getattr(np.lib.format, read)(file)
    if (
        dtype.hasobject
        or dtype.names
        or np.prod(shape, dtype=float) * dtype.itemsize > info.file_size
    ):
        raise ValueError(f"{info.filename}: {dtype} of shape {shape} in {info.file_size} bytes")
    return shape


class MarketFile(Source):
    """Matrix Market, by a reader of ours: SciPy's ends the process on some that are cut off."""

    def matrix(self, name: str | None = None):
        with self.reading(), self.path.open("rb") as file:
            return self._read(file)

    def _read(self, file):
        banner = file.readline(_FIRST_LINE).decode("ascii").lower().split()
        if banner[:2] != ["%%matrixmarket", "matrix"] or len(banner) != 5:
            raise self.broken("not a header of Matrix Market")
        form, field, symmetry = banner[2:]
        if field == "complex":
            raise InputError(f"{self.path}: the entries are complex numbers")
        mirrored = {"general": 0.0, "symmetric": 1.0, "skew-symmetric": -1.0}[symmetry]
        line = b"%"
        while line.startswith(b"%") or line.isspace():
            line = file.readline(_FIRST_LINE)
        sizes = [int(size) for size in line.split()]
        rows, columns = sizes[:2]
        if min(sizes) < 0 or len(sizes) != (3 if form == "coordinate" else 2):
            raise self.broken(f"the sizes {line.decode().strip()!r}")
        if form == "array":
            wanted, fields = rows * columns, 1
            if mirrored:
                wanted = rows * (rows + (1 if mirrored > 0 else -1)) // 2
        else:
            wanted, fields = sizes[2], 2 if field == "pattern" else 3
        left = self.path.stat().st_size - file.tell()
        if 2 * fields * wanted > left + 1:  # a digit and what ends it
            raise self.broken(f"{left} bytes cannot hold {wanted} entries")
        allow(3 * 8 * fields * wanted, str(self.path))
        if form == "array":
            allow(8 * rows * columns, str(self.path))
        kinds = ["f8"] if form == "array" else ["i8", "i8", "f8"][:fields]
        found = self._numbers(file, kinds, wanted)
        if form == "array":
            return _filled(found["f0"], (rows, columns), mirrored)
        i, j = found["f0"] - 1, found["f1"] - 1
        v = found["f2"] if fields == 3 else np.ones(wanted)
        if mirrored:
            off = i != j
            i, j, v = (
                np.append(i, j[off]), np.append(j, i[off]), np.append(v, mirrored * v[off])
            )  # fmt: skip
        return sp.coo_array((v, (i, j)), shape=(rows, columns))

    def _numbers(self, file, kinds: list[str], wanted: int) -> np.ndarray:
        """So many lines of numbers, and no more."""
        dtype = np.dtype([(f"f{n}", kind) for n, kind in enumerate(kinds)])
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", UserWarning
            )  # there is nothing, where nothing is wanted
            found = np.loadtxt(file, dtype, comments="%", ndmin=1, max_rows=wanted + 1)
        if len(found) != wanted:
            raise self.broken(f"{len(found)} entries or more, of {wanted}")
        return found


def _filled(values: np.ndarray, shape: tuple[int, int], mirrored: float) -> np.ndarray:
    """A full matrix from its columns or, if it is mirrored, from what lies below its diagonal."""
    if not mirrored:
        return values.reshape(shape[::-1]).T.copy()
    M = np.zeros(shape)
    j, i = np.triu_indices(shape[0], 0 if mirrored > 0 else 1)
    M[j, i] = mirrored * values
    M[i, j] = values
    return M


_FORMATS: dict[str, type[Source]] = {
    **dict.fromkeys(ENDINGS, TextFile),
    ".parquet": ParquetFile,
    ".npz": ArrayFile,
    ".mtx": MarketFile,
}
_ENDINGS = ", ".join(_FORMATS)
