"""An X whose rows lie in blocks on the machines of a cluster: here are only the handles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np


@dataclass
class Block:
    """A block that nobody changes: whoever runs on it makes a new one. A change of basis is kept
    here until then."""

    ref: Any
    rows: int
    rotation: np.ndarray | None = None
    gram: Any = None
    sketch: Any = None  # about the same, from some of the rows
    file: str | None = None  # where else it is
    place: slice | None = None  # of its rows in the array; else they follow those before

    def turned(self, T: np.ndarray) -> None:
        self.rotation = T if self.rotation is None else self.rotation @ T
        for name in ("gram", "sketch"):
            G = getattr(self, name)
            if G is not None:
                setattr(self, name, T.T @ G @ T)
        self.file = None

    def present(self, rows: np.ndarray) -> np.ndarray:
        """Rows of the block in the basis of now."""
        return rows if self.rotation is None else rows @ self.rotation.astype(rows.dtype)

    def changed(self, call: Any, *arguments) -> None:
        """Become what a worker makes of it: a new block in the basis of now."""
        ref = call.remote(self.ref, self.rotation, *arguments)
        self.becomes(Block(ref, self.rows, place=self.place))

    def becomes(self, other: Block) -> None:
        self.__dict__.update(other.__dict__)


class DistributedArray:
    """As much of an array as training needs. Slices of it that begin and end with a block share its
    handles, as those of an array share its memory."""

    ndim = 2

    def __init__(self, blocks: list[Block], rank: int, dtype):
        self.blocks, self.rank, self.dtype = blocks, rank, np.dtype(dtype)

    def __len__(self) -> int:
        return sum(block.rows for block in self.blocks)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self.rank

    @property
    def starts(self) -> np.ndarray:
        """The first row of every block, and the end."""
        return np.cumsum([0, *(block.rows for block in self.blocks)])

    def __getitem__(self, rows: slice) -> DistributedArray:
        first, last, _ = rows.indices(len(self))
        starts = self.starts
        inside = [
            block
            for block, (start, stop) in zip(self.blocks, pairwise(starts), strict=True)
            if first <= start and stop <= last
        ]
        return DistributedArray(inside, self.rank, self.dtype)

    def __setitem__(self, rows: slice, other: DistributedArray) -> None:
        for block, new in zip(self[rows].blocks, other.blocks, strict=True):
            block.becomes(replace(new))

    def __imul__(self, factors: np.ndarray) -> DistributedArray:
        for block in self.blocks:
            block.turned(np.diag(factors.astype(np.float64)))
        return self

    def copy(self) -> DistributedArray:
        """The same blocks under handles of their own."""
        return DistributedArray([replace(block) for block in self.blocks], self.rank, self.dtype)

    def named(self, index: np.ndarray) -> Iterator[tuple[Block, np.ndarray, np.ndarray]]:
        """The blocks that a list of rows names, each with which entries of the list and which of
        its own rows these are."""
        starts = self.starts
        block = np.searchsorted(starts, index, side="right") - 1
        for number in np.unique(block):
            at = np.flatnonzero(block == number)
            yield self.blocks[number], at, index[at] - starts[number]

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        """All of it, brought here."""
        import ray

        X = np.empty(self.shape, self.dtype)
        for block, (start, stop) in zip(self.blocks, pairwise(self.starts), strict=True):
            X[block.place or slice(start, stop)] = block.present(ray.get(block.ref))
        return X if dtype is None else X.astype(dtype)
