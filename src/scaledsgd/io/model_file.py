"""One-file models: named arrays and a line of JSON in a safetensors file, written atomically.

No pickle is ever read, and a file is either the old one or the new one, never half of each.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from safetensors import SafetensorError, safe_open

from .atomic import whole_file
from .tables import InputError

FORMAT = "scaledsgd/1"

# What safetensors, NumPy and JSON raise, between them, on files that something has happened to.
_UNSOUND = (
    SafetensorError, LookupError, ValueError, TypeError, AttributeError, OSError, OverflowError,
    RecursionError,
)  # fmt: skip


class ModelFileError(ValueError):
    """The file is not a model that this version can read.

    >>> import tempfile
    >>> from scaledsgd import ModelFileError, load
    >>> with tempfile.NamedTemporaryFile() as file:
    ...     try:
    ...         load(file.name)
    ...     except ModelFileError as why:
    ...         print("refused")
    refused
    """


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
    with whole_file(path) as file:
        _stream(file, packed, header)


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
            facts = json.loads(header["facts"])
            if not isinstance(facts, dict):
                raise ModelFileError(f"{path}: its facts are not an object")
            return arrays, facts
    except _UNSOUND as why:
        if isinstance(why, ModelFileError):
            raise
        told = " ".join(str(why).split())
        raise ModelFileError(f"{path}: damaged or not a model file ({told:.200})") from None


def check_place(path: Path, inputs: Iterable[str | os.PathLike] = (), force: bool = False) -> None:
    """Refuse a place where a model cannot be written, before anything is computed for it: no
    folder, one of the inputs or, without `force`, a file that is no model."""
    if path.is_dir() or not path.parent.is_dir():
        raise InputError(f"{path}: cannot be written (not a file in a folder that exists)")
    for name in inputs:
        if path.exists() and os.path.exists(name) and os.path.samefile(path, name):
            raise InputError(f"{path}: is one of the inputs, which would be lost")
    if path.exists() and not force:
        try:
            with safe_open(path, framework="numpy") as file:
                found = (file.metadata() or {}).get("format", "")
        except (SafetensorError, OSError):
            found = ""
        if not found.startswith(FORMAT.partition("/")[0]):
            raise InputError(f"{path}: a file that is no model is there: --force replaces it")


def _digest(arrays: dict[str, np.ndarray], header: dict[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).view(np.uint8).data)
    return digest.hexdigest()


def _stream(file: BinaryIO, arrays: dict[str, np.ndarray], metadata: dict[str, str]) -> None:
    """A safetensors file, array by array: those that lie in files are never held in memory."""
    # The longest numbers first, so that all of them are aligned.
    order = sorted(arrays, key=lambda name: -arrays[name].itemsize)
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name in order:
        array, begin = arrays[name], end
        kind = "BOOL" if array.dtype == bool else f"{array.dtype.kind.upper()}{8 * array.itemsize}"
        end += array.nbytes
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for name in order:
        file.write(arrays[name].reshape(-1).view(np.uint8).data)


def _pack(array: np.ndarray) -> np.ndarray:
    if array.dtype.kind in "biuf":
        return np.ascontiguousarray(array)
    text = json.dumps(array.tolist(), ensure_ascii=False).encode()
    return np.frombuffer(text, dtype=np.uint8)
