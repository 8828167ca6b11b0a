"""Files and folders that are there as a whole or not at all, and who may write them."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from uuid import uuid4

_PART = ".part"  # how the name of a file or folder ends that is not all there yet
_ABANDONED = 86_400.0  # seconds since a partial folder was touched: no writer is that slow


def replace_file(path: str | os.PathLike, content: bytes) -> None:
    """Put content at path: all of it, or nothing at all."""
    path = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(_PART, f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o666 & ~_umask())  # mkstemp's can only be read by their owner
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        on_disk(path.parent)  # the new name, too, has to outlive a power cut
    except OSError as why:
        raise OSError(f"{path}: cannot be written ({why.strerror})") from None


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

    >>> with tempfile.TemporaryDirectory() as folder, alone(f"{folder}/m"), alone(f"{folder}/m"):
    ...     pass
    Traceback (most recent call last):
    BlockingIOError: ...m: another process is writing it
    """
    import fcntl  # which not every system has, and only streams need

    path = Path(path)
    lock = path.with_name(f".{path.name}.lock")
    try:
        file = lock.open("w")
    except OSError as why:
        raise OSError(f"{path}: cannot be written ({why.strerror})") from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BlockingIOError(f"{path}: another process is writing it") from None
        for stale in path.parent.glob(f".{escape(path.name)}.*{_PART}"):
            stale.unlink()
        try:
            yield
        finally:
            lock.unlink()


def on_disk(path: Path) -> None:
    """Wait until a file, or the names in a folder, have reached the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
