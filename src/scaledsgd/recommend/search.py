"""The best matches of vectors among many: exactly by blocks of matrix products, or by an index."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numba
import numpy as np

_BLOCK = 1 << 22  # scores held at a time: 16 MB in float32
_GLANCE = 64  # scores looked at together: four to sixteen machine words, compared at once
_FEW = 64  # queries that one thread answers sooner than several do
_EVEN = 0.7  # of the longest row: where no row is shorter, the order of their lengths is no help
_PART = 8192  # rows of the table that a few queries meet at a time: what comes of it stays in cache
# The best k are kept in order by insertion, which costs k a newcomer. Beyond this it is sorted.
_SORTED_FROM = 1024

# Below, an exact search of one query takes some ten milliseconds and needs no index.
INDEXED_FROM = 1_000_000
# An index takes half a minute to make. It is worth that to somebody who asks much.
_ASKED = 1000
# An index has a cell for each square root of the items, found with so many of them a cell; to look
# for the cell costs then what to look through it does.
_LEARNED_FROM = 64
# As many cells are searched as let so many rows of the table find this share of their best: above
# the 0.95 that is promised, because other queries may be harder.
_TRIED, _BEST, _RECALL = 256, 20, 0.97
_WORTHWHILE = 0.25  # share of the cells: to look through more of them takes longer than all at once

Lists = tuple[np.ndarray, np.ndarray]  # where each list begins and the last one ends; all of them


def top_k(
    queries: np.ndarray, table: np.ndarray, k: int, exclude: Lists | None = None,
    cut: _Parts | None = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Rows of the table with the largest products with each query, best first, and the products.

    `exclude` lists rows that must not be answers to a query; `cut` is the table in parts, where
    somebody has cut it. Equal products come in the order of
    their rows. Where fewer than k rows are left, the rest is -1 with a product of -inf.

    >>> table = np.array([[0.5, 1.0], [2.0, 0.0], [1.0, 1.0]])
    >>> top_k(np.array([[1.0, 0.0]]), table, k=2)
    (array([[1, 2]]), array([[2., 1.]]))
    >>> top_k(np.array([[1.0, 0.0]]), table, k=2, exclude=(np.array([0, 2]), np.array([1, 2])))
    (array([[ 0, -1]]), array([[ 0.5, -inf]]))
    """
    k = min(k, len(table))
    rows = np.empty((len(queries), k), dtype=np.int64)
    scores = np.empty((len(queries), k), dtype=table.dtype)
    if exclude is None:
        exclude = np.zeros(len(queries) + 1, np.int64), np.zeros(0, np.int64)
    start, excluded = exclude
    if len(queries) <= _FEW and k < _SORTED_FROM:
        cut = _Parts(table, ordered=False) if cut is None else cut
        return cut.top_k(queries, start, excluded, rows, scores)
    select = _selected if k < _SORTED_FROM else _sorted
    threads = os.cpu_count() or 1
    step = min(len(queries), max(threads, _BLOCK // max(1, len(table))))
    room = np.empty((step, len(table)), table.dtype)  # once: fresh pages cost more than products
    with ThreadPoolExecutor(threads) as pool:
        for begin in range(0, len(queries), max(1, step)):
            block = queries[begin : begin + step].astype(table.dtype, copy=False)
            products = np.matmul(block, table.T, out=room[: len(block)])

            def work(part, begin=begin, products=products):
                at = slice(begin + part[0], begin + part[-1] + 1)
                lists = start[at.start : at.stop + 1], excluded
                select(products[part[0] : part[-1] + 1], *lists, rows[at], scores[at])

            parts = np.array_split(np.arange(len(products)), threads)
            list(pool.map(work, [part for part in parts if len(part)]))
    return rows, scores


class _Parts:
    """A table cut into parts, its longest rows first, so that a search can end where what is left
    is too short to matter: of items that few chose, vectors are short."""

    def __init__(self, table: np.ndarray, ordered: bool):
        lengths = np.sqrt(np.einsum("ij,ij->i", table, table)) if ordered else np.zeros(0)
        ordered = ordered and float(lengths.min()) < _EVEN * float(lengths.max())
        self.order = np.argsort(-lengths, kind="stable") if ordered else np.arange(len(table))
        self.places = np.argsort(self.order) if ordered else self.order
        self.table = table[self.order] if ordered else table
        self.lengths = lengths[self.order] if ordered else None

    def top_k(self, queries, start, excluded, rows, scores):
        """Fill rows and scores for a few queries, part after part, an item a row: products are
        looked at while they are in the cache, and no other thread is asked for."""
        block = np.ascontiguousarray(queries.astype(self.table.dtype, copy=False).T)
        room = np.empty((min(_PART, len(self.table)), block.shape[1]), self.table.dtype)
        # Products are rounded: by less than that of the lengths' product.
        lengths = (1 + 1e-5) * np.sqrt((block**2).sum(axis=0))
        rows[:], scores[:] = -1, -np.inf
        excluded = self.places[excluded]
        for first in range(0, len(self.table), _PART):
            if self.lengths is not None and (lengths * self.lengths[first] < scores[:, -1]).all():
                break
            part = self.table[first : first + _PART]
            products = np.matmul(part, block, out=room[: len(part)])
            _selected_across(products, first, self.order, start, excluded, rows, scores)
        return rows, scores


@numba.njit(nogil=True, cache=True)
def _selected_across(products, first, order, start, excluded, rows, scores):
    """Improve rows and scores by the products of the parts' rows from `first` on with all queries,
    a column for each. `order` tells which rows of the table they are."""
    last, k = first + len(products), rows.shape[1]
    for q in range(len(rows)):
        for p in range(start[q], start[q + 1]):
            if first <= excluded[p] < last:
                products[excluded[p] - first, q] = -np.inf
    floor = scores[:, k - 1].copy()
    for n in range(len(products)):
        row, above = products[n], 0
        for q in range(len(row)):
            above += row[q] >= floor[q]
        if above == 0:
            continue
        own = order[first + n]
        for q in range(len(row)):
            best, found, p = scores[q], rows[q], k
            while p > 0 and (
                best[p - 1] < row[q]
                or (best[p - 1] == row[q] and own < found[p - 1] and row[q] > -np.inf)
            ):
                p -= 1
                if p + 1 < k:
                    best[p + 1], found[p + 1] = best[p], found[p]
                best[p], found[p] = row[q], own
            floor[q] = best[k - 1]


@numba.njit(nogil=True, cache=True)
def _selected(products, start, excluded, rows, scores):
    """Fill rows and scores with the best of each row of products."""
    k = rows.shape[1]
    for q in range(len(products)):
        found, best, row = rows[q], scores[q], products[q]
        for p in range(start[q], start[q + 1]):
            row[excluded[p]] = -np.inf
        found[:], best[:] = -1, -np.inf
        floor = best[k - 1]
        for begin in range(0, len(row), _GLANCE):
            part = row[begin : begin + _GLANCE]
            above = 0
            for c in range(len(part)):
                above += part[c] > floor
            if above == 0:
                continue
            for c in range(len(part)):
                if part[c] > floor:
                    p = k - 1
                    while p > 0 and best[p - 1] < part[c]:
                        best[p], found[p] = best[p - 1], found[p - 1]
                        p -= 1
                    best[p], found[p] = part[c], begin + c
                    floor = best[k - 1]


def _sorted(products, start, excluded, rows, scores):
    """The same for many answers."""
    for q, row in enumerate(products):
        row[excluded[start[q] : start[q + 1]]] = -np.inf
        order = np.argsort(-row, kind="stable")[: rows.shape[1]]
        rows[q], scores[q] = np.where(np.isinf(row[order]), -1, order), row[order]


class Search:
    """Best matches among the rows of a table that does not change.

    In a table of a million rows or more, and for many queries, by an index of faiss (the extra
    `faiss`) that finds nearly all of them; otherwise, or without faiss, exactly.

    >>> Search(np.eye(3)).top_k(np.array([[0.0, 2.0, 1.0]]), 2)
    (array([[1, 2]]), array([[2., 1.]]))
    """

    def __init__(self, table: np.ndarray, *, indexed_from: int | None = None):
        self.table = table
        self.indexed_from = INDEXED_FROM if indexed_from is None else indexed_from
        self._index: Any = None
        self._parts: _Parts | None = None  # from the second time on that a few ask
        self._asked = False

    def top_k(self, queries: np.ndarray, k: int, exclude: Lists | None = None):
        """As the function `top_k`."""
        if self._index is None and len(self.table) >= self.indexed_from and len(queries) >= _ASKED:
            self._index = _index(self.table)
        if not self._index:
            if self._asked and self._parts is None and len(self.table) > _PART:
                self._parts = _Parts(self.table, ordered=True)
            self._asked = True
            return top_k(queries, self.table, k, exclude, self._parts)
        excluded = 0 if exclude is None else int(np.diff(exclude[0]).max(initial=0))
        wanted = min(k + excluded, len(self.table))
        scores, rows = self._index.search(np.ascontiguousarray(queries, np.float32), wanted)
        if exclude is not None:
            scores[_listed(rows, exclude)] = -np.inf
            order = np.argsort(-scores, axis=1, kind="stable")
            rows, scores = (np.take_along_axis(part, order, axis=1) for part in (rows, scores))
        rows, scores = rows[:, :k], scores[:, :k].astype(self.table.dtype)
        rows[scores == -np.inf] = -1
        scores[rows < 0] = -np.inf  # faiss has another word for nothing
        return rows, scores


def _listed(rows: np.ndarray, lists: Lists) -> np.ndarray:
    """Which of the rows found for a query are on its list."""
    start, excluded = lists
    query = np.repeat(np.arange(len(rows)), np.diff(start))
    width = int(max(rows.max(initial=0), excluded.max(initial=0))) + 1
    keys = np.arange(len(rows))[:, None] * width + rows
    return np.isin(keys, query * width + excluded)


def _index(table: np.ndarray):
    """An index of inner products, or False: without faiss, or where vectors are spread so evenly
    that none helps."""
    try:
        import faiss
    except ImportError:
        return False
    table = np.ascontiguousarray(table, np.float32)
    cells = max(1, int(np.sqrt(len(table))))
    flat = faiss.IndexFlatIP(table.shape[1])
    index = faiss.IndexIVFFlat(flat, table.shape[1], cells, faiss.METRIC_INNER_PRODUCT)
    index.cp.max_points_per_centroid = _LEARNED_FROM
    index.train(table)
    index.add(table)
    tried = table[:: -(-len(table) // _TRIED)]
    exact, _ = top_k(tried, table, _BEST)
    lists = np.arange(0, exact.size + 1, exact.shape[1]), exact.ravel()
    while index.nprobe <= _WORTHWHILE * cells:
        _, found = index.search(tried, exact.shape[1])
        if _listed(found, lists).mean() >= _RECALL:
            break
        index.nprobe = min(2 * index.nprobe, cells)
    return index if index.nprobe <= _WORTHWHILE * cells else False
