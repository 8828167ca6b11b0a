"""Files and folders that are there as a whole or not at all, and who may write them."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from filelock import FileLock, Timeout

_PART = ".part"  # how the name of a file or folder ends that is not all there yet
_ABANDONED = 86_400.0  # seconds since a partial folder was touched: no writer is that slow


def replace_file(path: str | os.PathLike, content: bytes) -> None:
    """Put content at path: all of it, or nothing at all."""
    with whole_file(path) as file:
        file.write(content)


@contextmanager
def whole_file(path: str | os.PathLike, durable: bool = True) -> Iterator[BinaryIO]:
    """Yields a file to write, which gets its name when all of it is there.

    `durable` waits until it is on the disk as well: what can be computed again need not be. Whoever
    could read the old file can read the new one, and nobody else; a link stays a link.
    """
    named, path = path, real(path)
    part = path.with_name(f".{path.name}.{uuid4().hex}{_PART}")
    try:
        try:
            with part.open("xb") as file:
                if path.exists():
                    part.chmod(stat.S_IMODE(path.stat().st_mode))
                yield file
            put_in_place(part, path) if durable else os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
    except OSError as why:
        raise OSError(f"{named}: cannot be written ({why.strerror or why})") from None


def real(path: str | os.PathLike) -> Path:
    """Where a path leads: two that lead to one file mean the same."""
    return Path(os.path.realpath(path))


def put_in_place(part: Path, final: Path) -> None:
    """Give a complete file its final name, under which it outlives a power cut."""
    on_disk(part)
    os.replace(part, final)
    on_disk(final.parent)


@contextmanager
def whole_folder(final: Path):
    """Yields a folder to fill, which gets its final name when all of it is on the disk.

    Whoever is killed before that, or loses power, leaves a folder of another name, never read.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as home:
    ...     with whole_folder(Path(home, "new")) as part:
    ...         _ = (part / "a.txt").write_text("a")
    ...         inside = os.path.exists(f"{home}/new")
    ...     inside, os.listdir(f"{home}/new")
    (False, ['a.txt'])
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    for left in final.parent.glob(f"*{_PART}"):
        if time.time() - left.stat().st_mtime > _ABANDONED:
            shutil.rmtree(left, ignore_errors=True)
    part = final.with_name(f"{final.name}.{uuid4().hex}{_PART}")
    part.mkdir()
    try:
        yield part
        for path in (*part.rglob("*"), part):
            on_disk(path)
        try:
            part.rename(final)
        except OSError:
            if not final.is_dir():  # else somebody was faster, and theirs is the same
                raise
        on_disk(final.parent)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def alone(path: str | os.PathLike) -> Iterator[None]:
    """Be the only process that writes to a path, and clear away what killed ones have left.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder, alone(f"{folder}/m"), alone(f"{folder}/m"):
    ...     pass
    Traceback (most recent call last):
    BlockingIOError: ...m: another process is writing it
    """
    named, path = path, real(path)
    # The lock's file stays: whoever opened it before it was gone would lock a file without a name,
    # and the next process a new one, both at once.
    lock = FileLock(path.with_name(f".{path.name}.lock"), timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise BlockingIOError(f"{named}: another process is writing it") from None
    except OSError as why:
        raise OSError(f"{named}: cannot be written ({why.strerror or why})") from None
    try:
        clear_parts(path)
        yield
    finally:
        lock.release()


def clear_parts(path: Path) -> None:
    """Remove what killed writers have left of a file that nobody else is writing."""
    for stale in path.parent.glob(f".{escape(path.name)}.*{_PART}"):
        stale.unlink()


def on_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, have reached the disk."""
    windows = os.name == "nt"
    if windows and path.is_dir():  # no handles of folders there
        return
    handle = os.open(path, os.O_RDWR if windows else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
