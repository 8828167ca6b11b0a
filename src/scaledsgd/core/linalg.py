"""Gram products and changes of basis, whoever computes them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from scipy.linalg import get_blas_funcs

# Eigenvalues below this share of the largest are rounding, not signal: the Gram counts as singular
# there and P is held at the inverse of this floor.
_FLOOR = 1e-15
_WELL = 1e-4  # singular values above this share of the largest can be had from their squares
_TINY = 1e-250  # squares below it may be rounded to nothing

_trsm: Any = get_blas_funcs("trsm", dtype=np.float64)

LINE = 64  # bytes that a processor loads at a time

STRIDE = 8  # of the rows, one in so many makes a sketch


class Algebra(Protocol):
    """What a refresh asks of the machine that holds X."""

    def gram(self, X, exact: bool = True) -> np.ndarray:
        """X^T X. Args: exact, in float64; otherwise sums of few rows may have the precision of X,
        an entry's error being small beside the lengths of its two columns."""
        ...

    def transform(self, X, T: np.ndarray) -> None: ...

    def sketch(self, X) -> np.ndarray:
        """About X^T X, from some of the rows."""
        return STRIDE * self.gram(X[::STRIDE].copy())

    def basis(self, grams: list[np.ndarray]) -> tuple[list[np.ndarray], np.ndarray]:
        """What brings each side to the basis in which P is diagonal, and the spectrum there."""
        if len(grams) == 1:
            Q, values = eigenbasis(grams[0])
            return [Q], values
        *transforms, sigma = balance(*grams)
        return transforms, sigma


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

    def gram(self, X: np.ndarray, exact: bool = True) -> np.ndarray:
        """X^T X, in float64 in any case."""
        d, r = X.shape
        k = max(1, self.width // r)
        whole = d - d % k
        G = np.zeros((k * r, k * r))
        with np.errstate(over="ignore", invalid="ignore"):  # whoever asks checks that G is finite
            for part in self._blocks(X[:whole], k):
                wide = np.ascontiguousarray(part, np.float64).reshape(-1, k * r)
                G += wide.T @ wide
            rest = X[whole:].astype(np.float64)
            return np.einsum("kakb->ab", G.reshape(k, r, k, r)) + rest.T @ rest

    def transform(self, X: np.ndarray, T: np.ndarray, out: np.ndarray | None = None) -> None:
        """out = X T, or in place."""
        T, out = T.astype(X.dtype), X if out is None else out
        for part, place in zip(self._blocks(X), self._blocks(out), strict=True):
            place[...] = part @ T

    def _blocks(self, X: np.ndarray, k: int = 1) -> Iterator[np.ndarray]:
        """A few rows at a time, always a multiple of k."""
        rows = k * max(1, self.block // (k * X.shape[1]))
        return (X[start : start + rows] for start in range(0, len(X), rows))


def aligned(rows: int, rank: int, dtype) -> np.ndarray:
    """Zeros laid out so that no row lies across more lines of the cache than it must: the first
    begins a line, and short ones are padded to a power of two, long ones to whole lines.

    >>> X = aligned(3, 10, np.float32)
    >>> X.ctypes.data % LINE, X.strides[0]
    (0, 64)
    """
    wide = pitch(rank, dtype)
    raw = np.zeros(rows * wide + LINE, np.uint8)
    start = -raw.ctypes.data % LINE
    table = raw[start : start + rows * wide].reshape(rows, wide)
    return table.view(dtype)[:, :rank]


def pitch(rank: int, dtype) -> int:
    """Bytes from one row to the next.

    >>> [pitch(rank, np.float32) for rank in (3, 4, 9, 17)]
    [16, 16, 64, 128]
    """
    size = max(1, rank) * np.dtype(dtype).itemsize
    return -(-size // LINE) * LINE if size > LINE else 1 << (size - 1).bit_length()


def eigenbasis(G: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Q and Lambda of G = Q Lambda Q^T, largest first.

    >>> eigenbasis(np.diag([1.0, 4.0]))[1]
    array([4., 1.])
    """
    values, Q = np.linalg.eigh(G)
    return Q[:, ::-1], np.maximum(values[::-1], 0.0)


def balance(GL: np.ndarray, GR: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """T, T^-T and Sigma such that L T and R T^-T have the same Gram, diag(Sigma).

    L R^T is unchanged and Sigma holds its singular values. This is the square-root balancing of
    model reduction; eigenvectors stand in for Cholesky factors, which a singular Gram lacks.

    >>> T, U, sigma = balance(np.diag([4.0, 1.0]), np.diag([1.0, 1.0]))
    >>> np.allclose(T.T @ np.diag([4.0, 1.0]) @ T, np.diag(sigma)), np.allclose(T @ U.T, np.eye(2))
    (True, True)
    """
    if (quick := _balance_well(GL, GR)) is not None:
        return quick
    roots = []
    for G in (GL, GR):
        Q, values = eigenbasis(G)
        roots.append(Q * np.sqrt(floored(values)))
    A, B = roots
    U, sigma, Vt = np.linalg.svd(A.T @ B)
    root = np.sqrt(floored(sigma))
    return B @ Vt.T / root, A @ U / root, sigma


def _balance_well(
    GL: np.ndarray, GR: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """The same in a third of the time, where squares of singular values are still above rounding:
    the eigenvalues of A^T GR A, of GL = A A^T, are these squares."""
    try:
        with np.errstate(over="ignore", invalid="ignore"):
            A = np.linalg.cholesky(GL)
            B = A.T @ GR @ A
            # Eigenvalues are at least as far apart as the diagonal: mostly that shows it.
            pivots, own = np.diag(A), np.diag(B)
            if pivots.min() < _WELL * pivots.max() or not own.min() > _WELL**2 * own.max():
                return None
            U, squares = eigenbasis(B)
    except np.linalg.LinAlgError:
        return None
    if not squares[-1] > _WELL**2 * squares[0] + _TINY:
        return None
    root = squares**0.25
    return _trsm(1.0, A, U * root, lower=1, trans_a=1), A @ U / root, root * root


def floored(values: np.ndarray) -> np.ndarray:
    """Eigenvalues held above rounding, so that their inverse is finite."""
    return np.maximum(values, max(_FLOOR * values.max(), np.finfo(np.float64).tiny * 1e16))


def lengths(X: np.ndarray) -> np.ndarray:
    """Of every row, without a table of squares."""
    return np.sqrt(np.einsum("nq,nq->n", X, X))


def unit(X: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """The rows, each divided by its length; rows of zeros stay."""
    length = lengths(X)[:, None]
    return np.divide(X, np.where(length > 0, length, 1), out=out)
