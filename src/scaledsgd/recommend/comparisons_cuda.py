"""The comparisons of ratings.py, drawn on a GPU: the same streams of random numbers, row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..core.observations import Chunk
from ..engines.cuda import samples as cuda_data
from ..engines.cuda.kernels import cupy
from .similarity import TIE, Items

_THREADS = 512
_BLOCKS = 2  # on a multiprocessor: while one draws, which is one thread's work, the other adds up
_ROOM = 1 << 30  # bytes for the pairs of the rows that are worked on at a time


def passed(items: Items, rows: np.ndarray, states: np.ndarray, chance: float) -> list:
    """Of every triplet (i, j, k) with i among the rows, taken with that chance, the comparable: in
    parts, on the GPU."""
    d = len(items.weight)
    with np.errstate(divide="ignore"):
        gap = 1.0 / np.log1p(-chance)  # -0 for a chance of 1: every pair
    lists = [
        cupy.asarray(array)
        for part in (items.by_item, items.by_user)
        for array in (part.start.astype(np.int64), part.index.astype(np.int32), part.value)
    ]
    held = [cupy.asarray(part) for part in (items.weight, items.raters)]
    rows, states = cupy.asarray(rows, np.int32), cupy.asarray(states)
    code = Path(__file__).with_name("comparisons_cuda.cu").read_text()
    real = {4: "float", 8: "double"}[items.by_user.value.itemsize]
    kinds = {"SHRUNK": items.shrinkage > 0, "UNION": items.union, "SIGNED": items.signed}
    ahead = f"typedef {real} value_t;\n"
    ahead += "".join(f"#define {name} {int(value)}\n" for name, value in kinds.items())
    kernel = cupy.RawModule(code=ahead + code, options=("-std=c++17",)).get_function("compare")
    processors = cupy.cuda.Device().attributes["MultiProcessorCount"]
    # Ten standard deviations above the mean; a row with more is seen and done again.
    room = int(min(chance * d * d + 10 * np.sqrt(chance * d * d) + 64, d * d))
    parts, first = [], 0
    while first < len(rows):
        count = max(1, min(len(rows) - first, _ROOM // (13 * room)))
        blocks = min(count, _BLOCKS * processors)
        buffers = cupy.empty((blocks, (1 + (items.shrinkage > 0)) * d))
        index = cupy.empty((count * room, 3), np.int32)
        y, drawn = cupy.full(count * room, 2, np.uint8), cupy.empty(count, np.int32)
        part = slice(first, first + count)
        kernel(
            (blocks,), (_THREADS,),
            (*lists, *held, np.float64(items.shrinkage), np.float64(TIE), np.float64(gap),
             np.int64(d), rows[part], states[part], np.int32(count), np.int32(room), buffers,
             index, y, drawn),
        )  # fmt: skip
        most = int(drawn.max())
        if most > room:
            room = most
            continue
        kept = y < 2
        parts.append((index[kept], y[kept]))
        first += count
    return parts


def gathered(parts: list, key: np.uint64) -> tuple[np.ndarray, np.ndarray]:
    """All parts in the random order that the key names, on the host."""
    index: Any = cupy.concatenate([index for index, _ in parts])
    # The kernel that shuffles knows targets as floats.
    y: Any = cupy.concatenate([y for _, y in parts]).astype(np.float32)
    parts.clear()
    given = Chunk(index, y)
    order: Any = cuda_data.shuffled(given, key, cuda_data.empty(len(y), given))
    return order.index.get(), order.targets.astype(np.uint8).get()
