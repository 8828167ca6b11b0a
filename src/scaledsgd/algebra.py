"""Gram products and changes of basis, whoever computes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

STRIDE = 8  # of the rows, one in so many makes a sketch


class Algebra(Protocol):
    """What a refresh asks of the machine that holds X."""

    def gram(self, X) -> np.ndarray: ...
    def transform(self, X, T: np.ndarray) -> None: ...

    def sketch(self, X) -> np.ndarray:
        """About X^T X, from some of the rows."""
        return STRIDE * self.gram(X[::STRIDE].copy())


class NumpyAlgebra(Algebra):
    """Gram products and changes of basis with NumPy's BLAS, in blocks of rows.

    The Gram of a tall matrix of three columns is a poor job for BLAS. Rows are therefore read
    several at a time: (d, r) as (d / k, k r), where the k diagonal blocks of the wide Gram add up
    to ours.

    >>> NumpyAlgebra().gram(np.ones((5, 2), np.float32))
    array([[5., 5.],
           [5., 5.]])
    """

    width = 24  # columns that BLAS sees at least: fastest of 0, 16, 24, 48, 96 at r = 3
    block = 1 << 16  # numbers in a block: in float64 it stays in the second-level cache

    def gram(self, X: np.ndarray) -> np.ndarray:
        """X^T X, in float64 whatever X is."""
        d, r = X.shape
        k = max(1, self.width // r)
        whole = d - d % k
        G = np.zeros((r, r))
        with np.errstate(over="ignore", invalid="ignore"):  # whoever asks checks that G is finite
            for part in self._blocks(X[:whole], k):
                wide = np.ascontiguousarray(part, np.float64).reshape(-1, k * r)
                G += np.einsum("kakb->ab", (wide.T @ wide).reshape(k, r, k, r))
            rest = X[whole:].astype(np.float64)
            return G + rest.T @ rest

    def transform(self, X: np.ndarray, T: np.ndarray, out: np.ndarray | None = None) -> None:
        """out = X T, or in place."""
        T, out = T.astype(X.dtype), X if out is None else out
        for part, place in zip(self._blocks(X), self._blocks(out), strict=True):
            place[...] = part @ T

    def _blocks(self, X: np.ndarray, k: int = 1) -> Iterator[np.ndarray]:
        """A few rows at a time, always a multiple of k."""
        rows = k * max(1, self.block // (k * X.shape[1]))
        return (X[start : start + rows] for start in range(0, len(X), rows))
