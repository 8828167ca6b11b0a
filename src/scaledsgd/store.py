"""One-file models: named arrays and a line of JSON in a safetensors file, written atomically.

No pickle is ever read, and a file is either the old one or the new one, never half of each.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

FORMAT = "scaledsgd/1"

_PART = ".part"  # how the name of a file ends that is not all there yet


class ModelFileError(ValueError):
    """The file is not a model that this version can read."""


def write(path: str | os.PathLike, arrays: dict[str, np.ndarray], facts: dict) -> None:
    """Write arrays (numbers, or strings) and JSON-able facts to one file.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write(f"{folder}/m", {"X": np.eye(2), "names": np.array(["a", "é"])}, {"rank": 2})
    ...     arrays, facts = read(f"{folder}/m")
    >>> facts, arrays["names"].tolist()
    ({'rank': 2}, ['a', 'é'])
    """
    packed = {name: _pack(array) for name, array in arrays.items()}
    texts = [name for name, array in arrays.items() if array.dtype.kind not in "biuf"]
    header = {"format": FORMAT, "facts": json.dumps(facts), "texts": json.dumps(texts)}
    header["sha256"] = _digest(packed, header)
    replace_file(path, save(packed, metadata=header))


def read(path: str | os.PathLike) -> tuple[dict[str, np.ndarray], dict]:
    """The arrays and facts of a file that `write` wrote."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path}: no such model file")
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                found = header.get("format", "another program's")
                raise ModelFileError(f"{path}: the format is {found}, not {FORMAT}")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            if header.pop("sha256") != _digest(arrays, header):
                raise ModelFileError(f"{path}: damaged, its checksum does not match")
            for name in json.loads(header["texts"]):
                arrays[name] = np.array(json.loads(arrays[name].tobytes()), dtype=object)
            return arrays, json.loads(header["facts"])
    except (SafetensorError, KeyError, ValueError, OSError) as why:
        if isinstance(why, ModelFileError):
            raise
        raise ModelFileError(f"{path}: damaged or not a model file ({why})") from None


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


def _digest(arrays: dict[str, np.ndarray], header: dict[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).view(np.uint8).data)
    return digest.hexdigest()


def _pack(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind in "biuf":
        return np.ascontiguousarray(array)
    text = json.dumps(array.tolist(), ensure_ascii=False).encode()
    return np.frombuffer(text, dtype=np.uint8)
