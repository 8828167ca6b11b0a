"""The learned factor, its spectrum, and the change of basis that makes P diagonal."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from scipy.special import ndtri

from .linalg import STRIDE, Algebra, NumpyAlgebra, aligned, floored, pitch
from .memory import allow

# P may be wrong by a tenth before it matters. A sketch shows that, where it has enough rows: a Gram
# of n rows is good to 1.4 / sqrt(n).
CALM = 0.1
_ENOUGH = 2048

# A side that has to move grows to at least so many times its rows: all moves together then copy
# less than three rows for each one added.
_ROOM = 1.5
_DRAWN = 1 << 16  # numbers drawn at a time: in float64 they stay in the second-level cache

_COPIES = 3  # of X that training holds: itself, a snapshot, and rows in the making


def gaussian_rows(seed: int, side: int, start: int, stop: int, rank: int) -> np.ndarray:
    """Rows start..stop of the endless Gaussian matrix that (seed, side) names.

    One draw an entry, so a factor that grows gets the rows it would have started with.

    >>> whole = gaussian_rows(1, 0, 0, 6, 2)
    >>> np.array_equal(whole[4:], gaussian_rows(1, 0, 4, 6, 2))
    True
    """
    stream = np.random.PCG64(np.random.SeedSequence([seed, side]))
    stream.advance(start * rank)
    uniform = np.random.Generator(stream).random((stop - start, rank))
    # random() may return 0 exactly, where the normal quantile is -inf.
    return ndtri(np.maximum(uniform, 2.0**-54))


@dataclass
class Factors:
    """X (d x r) of X X^T, or the stacked [L; R] of L R^T when `rows` says how many are L's.

    >>> F = Factors.start((4, 3), rank=2, seed=0)
    >>> before = F.left @ F.right.T
    >>> _ = F.refresh()
    >>> np.allclose(F.left @ F.right.T, before)
    True
    """

    X: np.ndarray
    rows: int | None = None
    seed: int = 0
    scale: tuple[float, float] = (1.0, 1.0)  # of the entries it started with, for rows it may grow
    offset: float = 0.0  # added to the first column of those
    spectrum: np.ndarray = field(default_factory=lambda: np.zeros(0))
    gap: int = 0  # rows of zeros between L and R, for L to grow into
    room: np.ndarray | None = field(default=None, repr=False, compare=False)  # X, and what follows

    @classmethod
    def start(
        cls, shape, rank: int, *, seed: int, scale=(1.0, 1.0), offset=0.0, dtype="float64",
        symmetric=False,
    ) -> Factors:  # fmt: skip
        """Gaussian factors for a matrix of that shape."""
        X = np.empty((0, rank), dtype=dtype)
        empty = cls(X, None if symmetric else 0, seed, scale, offset, np.zeros(rank))
        return empty.grow(shape)

    @property
    def shape(self) -> tuple[int, int]:
        return (self.d, self.d) if self.rows is None else (self.rows, self.d - self.rows)

    @property
    def d(self) -> int:
        """Rows of X, those of L and R together."""
        return len(self.X) - self.gap

    @property
    def begin(self) -> int:
        """Where in X the right side begins."""
        return 0 if self.rows is None else self.rows + self.gap

    @property
    def rank(self) -> int:
        return self.X.shape[1]

    @property
    def left(self) -> np.ndarray:
        return self.X if self.rows is None else self.X[: self.rows]

    @property
    def right(self) -> np.ndarray:
        return self.X[self.begin :]

    @property
    def sides(self) -> list[np.ndarray]:
        return [self.X] if self.rows is None else [self.left, self.right]

    @property
    def condition_number(self) -> float:
        """lambda_1 / lambda_r as of the last refresh."""
        return float(self.spectrum[0] / floored(self.spectrum)[-1])

    def numbers(self, r: int) -> float:
        """That r directions of a matrix of this shape have to be told by.

        >>> Factors.start((4, 3), rank=2, seed=0).numbers(1)
        6
        """
        m, n = self.shape
        return r * (m + n - r) if self.rows is not None else r * (m - (r - 1) / 2)

    def depth(self, columns: int) -> float:
        """How much smaller an error must be for the smallest of so many directions to be known as
        well as the others; 1 unless it is below 1e-4 of the largest."""
        if columns < 1 or not self.spectrum[:1].any():
            return 1.0
        return float(np.clip(1e4 * self.spectrum[columns - 1] / self.spectrum[0], 1e-7, 1.0))

    @property
    def singular(self) -> bool:
        """Whether the last refresh found a Gram that has no inverse."""
        return bool((floored(self.spectrum) > self.spectrum).any())

    def grow(self, shape) -> Factors:
        """The same factors with rows for at least that shape: O(r) a row, over many calls."""
        held = [len(side) for side in self.sides]
        wanted = [max(had, new) for had, new in zip(held, shape, strict=False)]
        grown = self._moved_to(wanted)
        for side, (rows, had) in enumerate(zip(grown.sides, held, strict=True)):
            step = max(1, _DRAWN // self.rank)
            for begin in range(had, len(rows), step):
                end = min(begin + step, len(rows))
                rows[begin:end] = self.fresh(side, begin, end)
        return grown

    def fresh(self, side: int, start: int, stop: int) -> np.ndarray:
        """Rows of one side as they are before anything is learned."""
        rows = gaussian_rows(self.seed, side, start, stop, self.rank) * self.scale[side]
        rows[:, 0] += self.offset
        return rows.astype(self.X.dtype)

    def _moved_to(self, wanted: list[int]) -> Factors:
        """Factors with so many rows a side, the new ones still to be filled in."""
        room = self.X
        if self.room is not None and np.may_share_memory(self.X, self.room):
            room = self.room
        ends = [len(room)] if self.rows is None else [self.begin, len(room)]
        space = [end - start for start, end in zip([0, *ends], ends, strict=False)]
        if any(new > has for new, has in zip(wanted, space, strict=True)):
            space = [
                has if new <= has else max(new, int(_ROOM * len(side)))
                for new, has, side in zip(wanted, space, self.sides, strict=True)
            ]
            shape = " x ".join(map(str, wanted if self.rows is not None else wanted * 2))
            size = _COPIES * sum(space) * pitch(self.rank, self.X.dtype)
            allow(size, f"a model of {shape} at rank {self.rank}")
            room = aligned(sum(space), self.rank, self.X.dtype)
            for start, side in zip((0, space[0]), self.sides, strict=False):
                room[start : start + len(side)] = side
        begin = sum(space[:-1])
        rows = None if self.rows is None else wanted[0]
        X = room[: begin + wanted[-1]]
        return replace(self, X=X, rows=rows, gap=begin - (rows or 0), room=room)

    def compact(self) -> np.ndarray:
        """X without the gap."""
        return np.concatenate(self.sides) if self.gap else self.X

    def refresh(
        self, algebra: Algebra | None = None, *, rotate=True, frozen=None, glance=False, exact=True
    ) -> float:
        """Change to the basis in which P is diagonal; X X^T (or L R^T) stays what it is. Without
        `rotate`, only take the spectrum. With `glance`, do nothing if a sample of the rows shows
        that there is nothing to do. `exact` Grams are those of float64.

        Returns how far the Gram G has moved from the spectrum S of last time, as seen by the P
        that was frozen since then: |P^1/2 (G - S) P^1/2|.
        """
        algebra = algebra or NumpyAlgebra()
        if glance and min(map(len, self.sides)) >= STRIDE * _ENOUGH:
            moved = self._moved([algebra.sketch(side) for side in self.sides], frozen)
            if moved < CALM:
                return moved
        grams = [algebra.gram(side, exact) for side in self.sides]
        if not all(np.isfinite(G).all() for G in grams):
            raise FloatingPointError("non-finite factors")
        moved = self._moved(grams, frozen)
        transforms, self.spectrum = algebra.basis(grams)
        for side, T in zip(self.sides, transforms, strict=True):
            if rotate:
                algebra.transform(side, T)
        return moved

    def singular_values(self) -> np.ndarray:
        """Singular values of X X^T or L R^T as it is now, largest first."""
        units = [float(np.abs(side).max(initial=0.0)) or 1.0 for side in self.sides]
        algebra = NumpyAlgebra()
        grams = [algebra.gram(side / unit) for side, unit in zip(self.sides, units, strict=True)]
        return algebra.basis(grams)[1] * units[0] * units[-1]

    def _moved(self, grams: list[np.ndarray], frozen: np.ndarray | None) -> float:
        if not self.spectrum.any():
            return np.inf
        root = np.sqrt(1.0 / floored(self.spectrum) if frozen is None else frozen)
        return max(
            float(np.abs((G - np.diag(self.spectrum)) * np.outer(root, root)).max()) for G in grams
        )

    def coherence(self) -> float:
        """mu = (d / r) max_i x_i^T (X^T X)^-1 x_i, from 1 (spread out) to d / r (one row).

        >>> Factors(np.eye(4, 2)).coherence()
        2.0
        """
        worst = 0.0
        for side in self.sides:
            values, Q = np.linalg.eigh(side.T.astype(np.float64) @ side)
            leverage = ((side @ (Q / np.sqrt(floored(values)))) ** 2).sum(axis=1)
            worst = max(worst, len(side) / self.rank * float(leverage.max()))
        return worst
