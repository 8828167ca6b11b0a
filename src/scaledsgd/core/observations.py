"""What was observed: which rows each sample names, and its target. All input is checked here."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp

from .compiled import njit
from .losses import LOSSES, Loss, weight
from .validation import bad_target, finite, real, refuse, whole

_BLOCK = 1 << 16  # samples checked at a time: temporaries stay at a megabyte or two
_ROOM = 16  # places for each entry that is looked for


@dataclass(frozen=True)
class Chunk:
    """Samples in the order in which they are to be run: rows (n, arity), and targets (n,), complex
    where they have weights (`losses.weight`).

    >>> some = Chunk(np.array([[0, 1], [2, 0]]), np.array([5.0, 3.0]))[1:]
    >>> len(some), some.index, some.targets
    (1, array([[2, 0]]), array([3.]))
    """

    index: np.ndarray
    targets: Any

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, part: slice) -> Chunk:
        return Chunk(self.index[part], self.targets[part])

    def __iter__(self) -> Iterator[np.ndarray]:
        """For unpacking: the index, then the targets."""
        return iter((self.index, self.targets))


class Observations:
    """Samples of one loss: an index array in the order of the loss's table, and targets.

    Build them with `pairs`, `triplets` or `matrix`. Naming an entry twice is allowed: each
    mention is an observation.

    >>> seen = Observations.pairs([0, 1], [2, 0], [5.0, 3.0])
    >>> len(seen), seen.shape
    (2, (2, 3))
    """

    def __init__(self, index, targets, shape, loss: str = "squared", symmetric: bool = False):
        self.loss: Loss = _loss(loss)
        self.index: np.ndarray = index
        self.targets: Any = targets
        self.symmetric = symmetric
        self.shape: tuple[int, int] = shape
        self.disposable = False  # whether training may reorder the arrays instead of copies
        self._check()

    @classmethod
    def pairs(
        cls, rows, columns, targets, *, shape=None, loss="squared", symmetric=False
    ) -> Observations:
        """Entries (row, column) and what was seen of them."""
        symmetric = symmetric or loss == "distance"
        i, j = whole(rows, "row"), whole(columns, "column")
        y = real(targets)
        if not len(i) == len(j) == len(y):
            raise ValueError(f"{len(i)} rows, {len(j)} columns and {len(y)} targets do not pair up")
        if len(y) == 0:
            raise ValueError("no observations: the input is empty")
        shape = _shape(shape, int(i.max()) + 1, int(j.max()) + 1, symmetric)
        return cls._copied([i, j], y, shape, loss, symmetric)

    @classmethod
    def triplets(cls, i, j, k, targets=None, *, shape=None, symmetric=True) -> Observations:
        """Comparisons: target 1 (the default) where row i is nearer to j than to k, else 0.

        >>> Observations.triplets([0], [1], [2]).index  # rows j, k, i as in the table of losses
        array([[1, 2, 0]], dtype=int32)
        """
        i, j, k = whole(i, "i"), whole(j, "j"), whole(k, "k")
        y = np.ones(len(i)) if targets is None else real(targets)
        if not len(i) == len(j) == len(k) == len(y):
            raise ValueError(
                f"triplets of {len(i)} i, {len(j)} j, {len(k)} k and {len(y)} targets do not match"
            )
        if len(y) == 0:
            raise ValueError("no observations: the input is empty")
        columns = int(max(j.max(), k.max())) + 1
        shape = _shape(shape, int(i.max()) + 1, columns, symmetric)
        return cls._copied([j, k, i], y, shape, "bpr", symmetric)

    @classmethod
    def matrix(cls, S: Any, *, loss="squared", symmetric=False) -> Observations:
        """The stored entries of a sparse matrix (a stored zero is an observation), or the entries
        of an array that are not NaN.

        >>> Observations.matrix(np.array([[1.0, np.nan], [np.nan, 4.0]])).index
        array([[0, 0],
               [1, 1]], dtype=int32)
        """
        symmetric = symmetric or loss == "distance"
        if not sp.issparse(S):
            S = np.asarray(S)
            if S.ndim != 2:
                raise ValueError(f"a matrix was expected, not an array of shape {S.shape}")
            S = S if S.dtype.kind == "f" else real(S.ravel()).reshape(S.shape)
        shape = _shape(S.shape, 0, 0, symmetric)
        if sp.issparse(S):
            S = S.tocoo()
            columns, y = list(S.coords), real(S.data)
            del S  # its row numbers may be ours alone, and are let go once they are copied
        else:
            columns = list(np.nonzero(~np.isnan(S)))
            y = S[tuple(columns)]
        if len(y) == 0:
            raise ValueError(f"no observations: nothing is known of the {shape} matrix")
        return cls._copied(columns, y, shape, loss, symmetric)

    @classmethod
    def _copied(cls, columns: list, y, shape, loss, symmetric) -> Observations:
        """Observations with arrays of their own. The list of columns is used up on the way."""
        largest = max(int(column.max()) for column in columns)
        index = np.empty((len(y), len(columns)), _index_type((*shape, largest)))
        while columns:
            c = len(columns) - 1
            index[:, c] = columns.pop()
        return cls(index, np.array(y), shape, loss, symmetric)

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def nbytes(self) -> int:
        return self.index.nbytes + self.targets.nbytes

    @property
    def size(self) -> float:
        """Root mean square of the targets."""
        largest = self.largest  # whose square may not be a number
        if not largest:
            return 0.0
        parts = (weight(y) * np.square(np.real(y) / largest) for *_, y in self.blocks())
        squares = sum(float(part.sum()) for part in parts)
        return largest * float(np.sqrt(squares / len(self)))

    @property
    def largest(self) -> float:
        """Of the targets, whatever its sign."""
        return max(float(self.targets.real.max()), -float(self.targets.real.min()))

    def sides(self) -> dict[int, list[int]]:
        """The columns of the index that name rows of each side."""
        of = (0,) * self.loss.arity if self.symmetric else self.loss.sides
        return {side: [c for c in range(len(of)) if of[c] == side] for side in set(of)}

    def well_seen(self, positions: np.ndarray) -> np.ndarray:
        """Those of the positions whose sample names only rows that are seen as often as the median
        row, or more."""
        for side, columns in self.sides().items():
            seen = np.zeros(self.shape[side], dtype=np.int64)
            for _, index, _ in self.blocks():
                for column in columns:
                    _tally(index[:, column], seen)
            known = seen >= np.median(seen)
            positions = positions[known[self.index.take(positions, axis=0)[:, columns]].all(axis=1)]
        return positions

    def mentions(self, positions: np.ndarray) -> np.ndarray:
        """The positions of all samples that name the same entries as those at the positions, in
        either order where the matrix is symmetric.

        >>> seen = Observations.pairs([0, 1, 2, 0], [1, 0, 0, 1], np.ones(4), symmetric=True)
        >>> seen.mentions(np.array([0]))
        array([0, 1, 3])
        """
        if self.loss.arity > 2:
            return positions
        wanted = np.unique(self._keys(self.index.take(positions, axis=0)))
        # Most samples name none of them, which a table of their last bits shows at once.
        last = (1 << max(len(wanted) * _ROOM - 1, 1).bit_length()) - 1
        named = np.zeros(last + 1, bool)
        named[wanted & last] = True
        found = []
        for start, index, _ in self.blocks():
            some = _named(index, self.shape[1], self.symmetric, named)
            keys = self._keys(index[some])
            at = np.minimum(np.searchsorted(wanted, keys), len(wanted) - 1)
            found.append(np.int64(start) + some[wanted[at] == keys])
        return np.concatenate(found)

    def distinct(self, index: np.ndarray) -> np.ndarray:
        """An index (n, 2) without those that name an entry once more."""
        return index[np.unique(self._keys(index), return_index=True)[1]]

    def _keys(self, index: np.ndarray) -> np.ndarray:
        """One number for each entry."""
        i, j = index.T.astype(np.int64)
        if self.symmetric:
            i, j = np.minimum(i, j), np.maximum(i, j)
        return i * self.shape[1] + j

    def __getitem__(self, part) -> Observations:
        """Some of the samples, by slice, mask or positions."""
        return Observations(
            self.index[part], self.targets[part], self.shape, self.loss.name, self.symmetric
        )

    def weighed(self, weights, *, normalised: bool = True, rows: bool = False) -> Observations:
        """The same with weights of the samples (n,), or of the `rows` of the matrix, or a sparse
        matrix of them: what is `normalised` has a mean of 1, what has a weight of 0 is left out.

        >>> seen = Observations.pairs([0, 1, 1], [2, 0, 1], [5.0, 3.0, 4.0]).weighed([1, 3, 0])
        >>> seen.targets
        array([5.+0.5j, 3.+1.5j])
        """
        if sp.issparse(weights):
            if weights.shape != self.shape:
                raise ValueError(f"weights of shape {weights.shape} for a matrix of {self.shape}")
            weights, rows = np.asarray(weights.tocsr()[tuple(self.index.T)]).ravel(), False
        w = finite(real(weights, "weight"), "weight").astype(np.float64)
        wanted, what = (self.shape[0], "rows") if rows else (len(self), "entries")
        if len(w) != wanted:
            raise ValueError(f"{len(w)} weights for {wanted} {what}")
        w = w[self.index[:, 0]] if rows else w
        refuse(w < 0, w, "weight {} is negative")
        some = w > 0
        if not some.any():
            raise ValueError("all weights are zero: there is nothing to learn from")
        if normalised:
            w = w / w[some].max()
            w /= w[some].mean()
        if (w == 1).all():
            return self
        return self.of(Chunk(self.index[some], self.targets[some] + 1j * w[some]))

    def of(self, samples: Chunk) -> Observations:
        """Other samples of the same kind."""
        other = copy(self)
        other.index, other.targets, other.disposable = *samples, True
        return other

    def complete(self) -> bool:
        """Whether every entry is known: there is nothing to predict, only to approximate.

        >>> ones = [1.0, 1.0]
        >>> Observations.pairs([0, 1], [1, 0], ones, symmetric=True).complete()
        True
        >>> Observations.pairs([0, 1], [1, 0], ones).complete()
        False
        """
        rows, columns = self.shape
        entries = rows * (rows - 1) // 2 if self.symmetric else rows * columns
        if self.loss.arity > 2 or len(self) < entries:
            return False
        index = self.index
        if self.symmetric:  # the diagonal need not be known
            index = index[index[:, 0] != index[:, 1]]
        return len(np.unique(self._keys(index))) == entries

    def hold_out(self, positions: np.ndarray) -> tuple[Observations, Chunk]:
        """The samples without those at the positions, and those, in memory of their own."""
        rest = self
        if not self.disposable:
            rest = copy(self)
            rest.index, rest.targets = self.index.copy(), self.targets.copy()
            rest.disposable = True
        index, targets, count = rest.index, rest.targets, len(positions)
        # Whoever is in front changes places with a chosen one from further back.
        front = np.setdiff1d(np.arange(count), positions)
        back = np.setdiff1d(positions, np.arange(count))
        for column in (index, targets):
            kept, column[front] = column[front], column[back]
            column[back] = kept
        held = Chunk(index[:count].copy(), targets[:count].copy())
        rest.index, rest.targets = index[count:], targets[count:]
        return rest, held

    def take(self, dtype) -> tuple[np.ndarray, np.ndarray]:
        """Arrays that the caller may reorder."""
        copy, y = not self.disposable, self.targets
        dtype = np.result_type(dtype, np.complex64) if np.iscomplexobj(y) else dtype
        return self.index.copy() if copy else self.index, y.astype(dtype, copy=copy)

    def blocks(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        for start in range(0, len(self), _BLOCK):
            stop = start + _BLOCK
            yield start, self.index[start:stop], self.targets[start:stop]

    def _check(self) -> None:
        limits = [self.shape[side] for side in self.loss.sides]
        for start, index, y in self.blocks():
            if bad := bad_target(y, self.loss):
                raise ValueError(f"observation {start + bad[0]}: target {bad[1]}")
            for column, limit in zip(index.T, limits, strict=True):
                refuse(column < 0, column, "index {} is negative", start)
                refuse(column >= limit, column, f"index {{}} is past the end, {limit}", start)
            if self.loss.arity == 3:
                same = index[:, 0] == index[:, 1]
                refuse(same, index[:, 0], "a triplet compares item {} with itself", start)
        if self.symmetric and self.loss.arity == 2:
            self._check_symmetry()

    def _check_symmetry(self) -> None:
        """(i, j) and (j, i) are the same entry of a symmetric matrix, and must agree."""
        # By ranges of the lower index, so that what is sorted stays a small part of the whole.
        parts = min(16, 1 + len(self) // _BLOCK)
        d = self.shape[0]
        rounding = 1e-9 * float(np.abs(self.targets).max())  # of a matrix computed as a product
        cuts = [d * p // parts for p in range(parts + 1)]
        for low, high in pairwise(cuts):
            above, below = [], []
            for _, index, y in self.blocks():
                lower, upper = index.min(axis=1), index.max(axis=1)
                inside = (lower >= low) & (lower < high) & (lower < upper)
                key = lower[inside].astype(np.int64) * d + upper[inside]
                first = index[inside, 0] < index[inside, 1]
                above.append((key[first], y[inside][first]))
                below.append((key[~first], y[inside][~first]))
            (key, y), (mirrored, w) = map(_joined, (above, below))
            order = np.argsort(key, kind="stable")
            key, y = key[order], y[order]
            at = np.searchsorted(key, mirrored)
            met = np.flatnonzero(at < len(key))
            met = met[key[at[met]] == mirrored[met]]
            wrong = met[np.abs(y[at[met]] - w[met]) > 1e-6 * np.abs(w[met]) + rounding]
            if len(wrong):
                i, j = divmod(int(mirrored[wrong[0]]), d)
                seen, other = y[at[wrong[0]]], w[wrong[0]]
                raise ValueError(
                    f"not symmetric: entry ({i}, {j}) is {seen} and entry ({j}, {i}) is {other}"
                )


@njit(cache=True)
def _tally(column, counts):
    """Adds how often each row is named."""
    for t in range(len(column)):
        counts[column[t]] += 1


@njit(cache=True)
def _named(index, columns, symmetric, named):
    """Which samples have entries whose numbers' last bits are in a table."""
    found, count, last = np.empty(len(index), np.int32), 0, len(named) - 1
    for t in range(len(index)):
        i, j = np.int64(index[t, 0]), np.int64(index[t, 1])
        if symmetric and i > j:
            i, j = j, i
        found[count] = t
        count += named[(i * columns + j) & last]
    return found[:count]


def _joined(parts):
    return tuple(np.concatenate(column) for column in zip(*parts, strict=True))


def _loss(name: str) -> Loss:
    if name not in LOSSES:
        raise ValueError(f"unknown loss {name!r}: choose from {', '.join(LOSSES)}")
    return LOSSES[name]


def _index_type(shape) -> type:
    # The rows of both sides are stacked, so their sum must fit.
    return np.int32 if sum(shape) < 2**31 else np.int64


def _shape(shape, rows: int, columns: int, symmetric: bool) -> tuple[int, int]:
    if shape is None:
        size = max(rows, columns)
        return (size, size) if symmetric else (rows, columns)
    shape = (int(shape[0]), int(shape[1]))
    if symmetric and shape[0] != shape[1]:
        raise ValueError(f"a symmetric matrix is square, this one is {shape[0]} x {shape[1]}")
    return shape
