"""MovieLens: fetched from GroupLens or from a copy on disk, checked, unpacked, read."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import re
import shutil
import stat
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from ..core.compiled import njit
from ..io.atomic import put_in_place, whole_folder
from ..io.progress_bar import progress_bar

BASE = "https://files.grouplens.org/datasets/movielens"
NAMES = {"small": "ml-latest-small", "25m": "ml-25m", "latest": "ml-latest", "1m": "ml-1m"}


class _Format(NamedTuple):
    separator: bytes
    header: bytes  # how the first line of the ratings begins
    encoding: str


_FORMATS = {
    ".csv": _Format(b",", b"userId,movieId,rating", "utf-8"),
    ".dat": _Format(b"::", b"", "latin-1"),
}
_NEWLINE, _RETURN, _POINT = b"\n\r."

_WANTED = ("ratings.csv", "ratings.dat", "movies.csv", "movies.dat")
_NOTES = "readme"  # the licence is in it, so it stays with the data
_PIECE = 1 << 20  # bytes read at a time
_PATIENCE = 30.0  # seconds without a byte
_ATTEMPTS = 5  # connections that may break before it is left for another time


class DatasetError(ValueError):
    """The data is not there or not what it should be; the message says what to do."""


class _OutOfReach(DatasetError):
    """No answer, or none with the file."""


class Ratings(NamedTuple):
    """`table[u, i]`: the stars that user `users[u]` gave to movie `items[i]`."""

    table: sp.csr_array
    users: np.ndarray
    items: np.ndarray


def fetch(name: str, folder, source=None, *, base: str = BASE, progress: bool = False) -> Path:
    """The folder with the files of a data set: small, 25m, latest or 1m.

    If `folder` does not have it yet, it comes from `source`, a zip file or a folder, from a zip
    file put into `folder`, or from GroupLens; a download that broke off is taken up again.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as home:
    ...     _ = Path(home, "ratings.csv").write_text("userId,movieId,rating,timestamp\\n7,3,4.5,0")
    ...     load(fetch("small", f"{home}/data", source=home)).table.toarray()
    array([[4.5]], dtype=float32)
    """
    name = name.removeprefix("movielens-")
    if name not in NAMES:
        raise DatasetError(f"unknown data set {name!r}: choose from {', '.join(NAMES)}")
    final = Path(folder, NAMES[name])
    packed = final.with_name(f"{final.name}.zip")
    if _present(final):
        return final
    wanted = source is None and not packed.exists()
    if wanted:
        try:
            _download(f"{base}/{packed.name}", packed, progress=progress)
        except _OutOfReach as why:
            raise DatasetError(
                f"movielens-{name} is neither in {folder} nor within reach ({why}): put "
                f"{packed.name} there, or name a copy of it, zip file or folder, as the source"
            ) from None
    _unpacked(Path(source or packed), final)
    if wanted:
        packed.unlink()
    return final


def _present(folder: Path) -> bool:
    return any((folder / name).is_file() for name in _WANTED[:2])


# --- Downloads: taken up where they broke off, and checked against a published MD5. Ours, and not
# pooch: that begins a file anew when a connection breaks, and ML-25M has 250 MB.


def _download(url: str, target: Path, *, progress: bool = False) -> None:
    """Put the file at target once it is complete and has the MD5 that url.md5 says.

    Until then it is in target.part, where the next call goes on.
    """
    part = target.with_name(f"{target.name}.part")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with urllib.request.urlopen(f"{url}.md5", timeout=_PATIENCE) as answer:
            # "digest  name" or "MD5 (name) = digest"
            published = re.search(rb"\b[0-9a-f]{32}\b", answer.read(_PIECE).lower())
        complete = any(_continued(url, part, progress) for _ in range(_ATTEMPTS))
    except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as why:
        raise _OutOfReach(str(why)) from None
    if not complete:
        raise DatasetError(f"{url}: the connection broke {_ATTEMPTS} times; run again to go on")
    with open(part, "rb") as file:
        digest = hashlib.file_digest(file, "md5").hexdigest()
    if published is None or digest != published.group().decode():
        part.unlink()
        raise DatasetError(f"{url}: differs from its published checksum and was thrown away")
    put_in_place(part, target)


def _continued(url: str, part: Path, progress: bool) -> bool:
    """Add to the part what it lacks, and say whether that was all of it."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=_PATIENCE)
    except urllib.error.HTTPError as why:
        if why.code != 416:
            raise
        return True  # there are no bytes beyond those here; the checksum will tell
    if answer.status != 206:  # a server that cannot resume sends all of it
        have = 0
    total = have + int(answer.headers.get("Content-Length", 0))
    with (
        answer,
        open(part, "ab" if have else "wb") as file,
        progress_bar(f"downloading {part.stem}", total, progress) as advance,
    ):
        advance(have)
        for piece in _pieces(answer):
            have += file.write(piece)
            advance(len(piece))
    return have >= total


def _pieces(answer) -> Iterator[bytes]:
    """What arrives, until the end or until the connection breaks."""
    with contextlib.suppress(OSError, HTTPException):
        while piece := answer.read(_PIECE):
            yield piece


# --- Archives -------------------------------------------------------------------------------------


def _unpacked(source: Path, final: Path) -> None:
    copy = _copied if source.is_dir() else _extracted
    with whole_folder(final) as part:
        copy(source, part, final.name)
        if not _present(part):
            raise DatasetError(f"{source}: neither ratings.csv nor ratings.dat is in it")
    if not _present(final):
        raise DatasetError(f"{final}: is there without ratings; move it out of the way")


def _kept(name: str) -> bool:
    return name in _WANTED or name.lower().startswith(_NOTES)


def _copied(source: Path, target: Path, name: str) -> None:
    holder = source if _present(source) else source / name
    for path in holder.glob("*"):
        if _kept(path.name) and path.is_file():
            shutil.copyfile(path, target / path.name)


def _extracted(source: Path, target: Path, name: str) -> None:
    if not source.is_file():
        raise DatasetError(f"{source}: no such file or folder")
    try:
        with zipfile.ZipFile(source) as archive:
            for member in archive.infolist():
                _refuse_escape(source, member)
            for member in archive.infolist():
                path = target / PurePosixPath(member.filename).name
                if _kept(path.name) and not member.is_dir():
                    with archive.open(member) as packed, open(path, "xb") as file:
                        shutil.copyfileobj(packed, file, _PIECE)
    except FileExistsError as why:
        raise DatasetError(f"{source}: holds two files {Path(why.filename).name}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as why:
        raise DatasetError(f"{source}: damaged or not a zip file ({why})") from None


def _refuse_escape(source: Path, member: zipfile.ZipInfo) -> None:
    """An archive with such a member was made to do harm: nothing of it is used."""
    path = PurePosixPath(member.filename)
    outside = path.is_absolute() or ".." in path.parts or re.search(r"[\\:]", member.filename)
    if outside or stat.S_ISLNK(member.external_attr >> 16):
        raise DatasetError(f"{source}: refused, {member.filename!r} points out of the folder")


# --- Ratings and titles ---------------------------------------------------------------------------


def load(path) -> Ratings:
    """Ratings from a folder with ratings.csv or ratings.dat, or from such a file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as home:
    ...     _ = Path(home, "ratings.dat").write_text("9::5::4::0\\n2::5::3::0\\n2::8::1::0\\n")
    ...     seen = load(home)
    >>> seen.table.toarray().tolist(), seen.users.tolist(), seen.items.tolist()
    ([[3.0, 1.0], [4.0, 0.0]], [2, 9], [5, 8])
    """
    file = _file(Path(path), "ratings")
    separator, header, _ = _FORMATS[file.suffix]
    if not file.stat().st_size:
        raise DatasetError(f"{file}: is empty")
    text = np.memmap(file, np.uint8, "r")
    found = text[: len(header)].tobytes()
    if found != header:
        raise DatasetError(f"{file}, line 1: {found!r} where {header!r} was expected")
    begin = int(np.argmax(text[:_PIECE] == _NEWLINE)) + 1 if header else 0
    users, items, stars, at = _parsed(text[begin:], ord(separator[:1]), len(separator))
    if at < len(text) - begin:
        line = text[begin + at :][:80].tobytes().split(b"\n")[0]
        number = len(stars) + 1 + (begin > 0)
        raise DatasetError(f"{file}, line {number}: {line!r} is not user, movie, rating")
    if not len(stars):
        raise DatasetError(f"{file}: holds no ratings")
    table, users, items = _table(users, items, stars)
    if table.nnz < len(stars):
        again = len(stars) - table.nnz
        raise DatasetError(f"{file}: {again} ratings are of a movie that the user had rated before")
    return Ratings(table, users, items)


def titles(path) -> dict[int, str]:
    """Movie titles by id, from a folder with movies.csv or movies.dat, or from such a file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as home:
    ...     _ = Path(home, "movies.dat").write_text("5::Heat (1995)::Crime\\n")
    ...     titles(home)
    {5: 'Heat (1995)'}
    """
    file = _file(Path(path), "movies")
    form = _FORMATS[file.suffix]
    with open(file, encoding=form.encoding, newline="") as text:
        if form.header:
            rows = csv.reader(text)
            next(rows, None)
        else:
            rows = (line.split(form.separator.decode()) for line in text)
        try:
            return {int(row[0]): row[1] for row in rows if row}
        except (ValueError, IndexError, csv.Error) as why:
            raise DatasetError(f"{file}: not a list of movies and titles ({why})") from None


def _file(path: Path, what: str) -> Path:
    choices = [path] if path.suffix in _FORMATS else [path / f"{what}{end}" for end in _FORMATS]
    for file in choices:
        if file.is_file():
            return file
    raise DatasetError(f"{path}: put {what}.csv or {what}.dat of MovieLens there")


def _table(users, items, stars) -> tuple[sp.csr_array, np.ndarray, np.ndarray]:
    """Ids numbered in their order, as rows and columns."""
    known = np.unique(users), np.unique(items)
    places = [
        np.searchsorted(ids, column).astype(np.int32)
        for ids, column in zip(known, (users, items), strict=True)
    ]
    table = sp.csr_array((stars, tuple(places)), shape=tuple(map(len, known)))
    return table, *known


@njit(nogil=True, cache=True)
def _digits(text, at):
    """The number that begins here and where it ends: -1, if there is none that fits 31 bits."""
    value, begin = 0, at
    while 0 <= at < len(text) and 48 <= text[at] <= 57 and value < 2**31:
        value = 10 * value + (text[at] - 48)
        at += 1
    return value, at if at > begin and value < 2**31 else -1


@njit(nogil=True, cache=True)
def _id(text, at, separator, width):
    """An id and the separator behind it."""
    value, at = _digits(text, at)
    for _ in range(width):
        at = at + 1 if 0 <= at < len(text) and text[at] == separator else -1
    return value, at


@njit(nogil=True, cache=True)
def _stars(text, at):
    value, at = _digits(text, at)
    if not (0 <= at < len(text) and text[at] == _POINT):
        return float(value), at
    share, end = _digits(text, at + 1)
    return value + share / 10.0 ** (end - at - 1), end


@njit(nogil=True, cache=True)
def _parsed(text, separator, width):
    """Users, items and stars of all lines, and where that ended: at the beginning of the first
    line that does not parse, if there is one."""
    room = 1
    for at in range(len(text)):
        room += text[at] == _NEWLINE
    users, items = np.empty(room, np.int32), np.empty(room, np.int32)
    stars = np.empty(room, np.float32)
    begin = n = 0
    while begin < len(text):
        users[n], at = _id(text, begin, separator, width)
        items[n], at = _id(text, at, separator, width)
        stars[n], at = _stars(text, at)
        if at < 0 or (at < len(text) and text[at] not in (separator, _NEWLINE, _RETURN)):
            break
        while at < len(text) and text[at] != _NEWLINE:  # the time of the rating is not read
            at += 1
        begin = at + 1
        n += 1
    return users[:n], items[:n], stars[:n], begin
