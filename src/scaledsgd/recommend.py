"""The best matches of a vector among many, by blocks of matrix products."""

from __future__ import annotations

import numpy as np

_BLOCK = 1 << 24  # scores held at a time: 64 MB in float32


def top_k(
    queries: np.ndarray, table: np.ndarray, k: int, exclude: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of the table with the largest products with each query, best first, and the products.

    `exclude` names one row of the table a query that must not be its own answer.

    >>> top_k(np.array([[1.0, 0.0]]), np.array([[0.5, 1.0], [2.0, 0.0], [1.0, 1.0]]), k=2)
    (array([[1, 2]]), array([[2., 1.]]))
    """
    k = min(k, len(table) - (exclude is not None))
    rows = np.empty((len(queries), k), dtype=np.int64)
    scores = np.empty((len(queries), k), dtype=table.dtype)
    step = max(1, _BLOCK // len(table))
    for start in range(0, len(queries), step):
        part = slice(start, start + step)
        products = queries[part] @ table.T
        if exclude is not None:
            products[np.arange(len(products)), exclude[part]] = -np.inf
        best = np.argpartition(-products, k - 1, axis=1)[:, :k]
        found = np.take_along_axis(products, best, axis=1)
        # Equal scores come in the order of their rows, whatever the partition did.
        order = np.lexsort((best, -found), axis=1)
        rows[part] = np.take_along_axis(best, order, axis=1)
        scores[part] = np.take_along_axis(found, order, axis=1)
    return rows, scores
