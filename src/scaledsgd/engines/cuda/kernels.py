"""CUDA sources, compiled at run time for the very loss, rank and number types that are asked for.

The sources lie beside this file. What a loss's row of the table says is defined ahead of them, so
that the compiler folds its zeros and ones away, as it does on the CPU.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ...core.losses import LOSSES

# CuPy is an extra: everything here can be imported without it, and `unavailable` says what lacks.
cupy: Any = import_module("cupy") if find_spec("cupy") else None

SMALL = 16  # up to this rank a change of basis travels with the launch, in 2 KB of its 4
RANKS = 256  # a thread holds its part of three rows in registers, which ends about here

_REAL = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}
# Targets that have weights, as whoever moves them about sees them.
_REAL |= {np.dtype(np.complex64): "float2", np.dtype(np.complex128): "double2"}
_ROW = {np.dtype(np.int32): "int", np.dtype(np.int64): "long long"}


def unavailable() -> str:
    """Why there is no GPU to compute on; empty if there is one."""
    if cupy is None:
        return "CuPy is not installed (pip install 'scaledsgd[gpu]')"
    try:
        found = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as why:
        return f"CuPy finds no GPU ({str(why).splitlines()[0]})"
    return "" if found else "CuPy finds no GPU"


def stride(rank: int, dtype) -> int:
    """Numbers from one row to the next: rows begin at 16 bytes, the widest access there is."""
    wide = 16 // np.dtype(dtype).itemsize
    return -(-rank // wide) * wide


def lanes(rank: int, dtype) -> int:
    """Threads a sample: one for each 16 bytes of a row, up to a warp.

    >>> lanes(3, "float32"), lanes(32, "float32"), lanes(256, "float32")
    (1, 8, 32)
    """
    pieces = stride(rank, dtype) * np.dtype(dtype).itemsize // 16
    return min(32, 1 << (pieces - 1).bit_length())


@cache
def step(
    name: str, loss: str, rank: int, dtype, row, capped: bool = False, weighted: bool = False
) -> Any:
    """`run`, `scores` or `slopes` of a loss."""
    how = np.dtype(dtype), np.dtype(row), capped, weighted
    return _step(loss, rank, *how).get_function(name)


@cache
def _step(
    name: str, rank: int, dtype: np.dtype, row: np.dtype, capped: bool, weighted: bool
) -> Any:
    loss = LOSSES[name]
    constants = {
        "ARITY": loss.arity,
        "LD": stride(rank, dtype),
        "LANES": lanes(rank, dtype),
        "COEF_A": _braces(loss.a),
        "COEF_B": _braces(loss.b),
        "CAPPED": int(capped),
        "WEIGHTED": int(weighted),
    }
    slope = f"__device__ real slope(real z, real y) {{ return {loss.cuda}; }}"
    return _compiled("step.cu", constants, dtype, row, slope)


@cache
def refresh(name: str, rank: int, width: int, dtype: np.dtype) -> Any:
    """`gram`, or `turn` where the rank is small, for rows that many numbers apart."""
    constants = {"LD": width, "RANK": rank, "TILE": tile(rank), "SMALL": SMALL}
    return _compiled("refresh.cu", constants, dtype, np.dtype(np.int32)).get_function(name)


def tile(rank: int) -> int:
    """The narrowest square that covers G; wider than 64 its sums no longer fit the registers."""
    return next(tile for tile in (16, 32, 64) if tile >= min(rank, 64))


@cache
def deal(name: str, arity: int, group: int, dtype: np.dtype, row: np.dtype) -> Any:
    """`shuffle`, `count` or `deal`."""
    constants = {"ARITY": arity, "GROUP": group}
    return _compiled("deal.cu", constants, dtype, row).get_function(name)


@cache
def choices(name: str, rank: int, width: int, cosine: bool = False) -> Any:
    """A kernel of choices.cu, in float32, for rows that many numbers apart."""
    return _choices(rank, width, cosine).get_function(name)


@cache
def _choices(rank: int, width: int, cosine: bool) -> Any:
    constants = {"RANK": rank, "LD": width, "COSINE": int(cosine)}
    return _compiled("choices.cu", constants, np.dtype(np.float32), np.dtype(np.int32))


def _braces(numbers: tuple[int, ...]) -> str:
    return "{" + ", ".join(map(str, numbers)) + "}"


def source(file: str, constants: dict, dtype: np.dtype, row: np.dtype, ahead: str = "") -> str:
    """A file with what it needs defined ahead of it."""
    defined = [f"#define {name} {value}" for name, value in constants.items()]
    types = [f"typedef {_REAL[dtype]} real;", f"typedef {_ROW[row]} row_t;"]
    body = Path(__file__).with_name(file).read_text()
    return "\n".join([*defined, *types, ahead, body])


def _compiled(file: str, constants: dict, dtype: np.dtype, row: np.dtype, ahead: str = "") -> Any:
    # CuPy keeps compiled modules on disk, by their source.
    code = source(file, constants, dtype, row, ahead)
    return cupy.RawModule(code=code, options=("-std=c++17",))
