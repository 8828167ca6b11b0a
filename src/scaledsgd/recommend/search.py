"""The best matches of vectors among many: exactly by blocks of matrix products, or by an index."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from ..core.compiled import njit
from ..core.linalg import lengths
from ..engines.cpu.intrinsics import BYTES, exceed

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
_NEVER = 2**31 - 1  # a product of bytes that no row has
_WORTHWHILE = 0.25  # share of the cells: to look through more of them takes longer than all at once

Lists = tuple[np.ndarray, np.ndarray]  # where each list begins and the last one ends; all of them


def top_k(
    queries: np.ndarray, table: np.ndarray, k: int, exclude: Lists | None = None,
    cut: _Parts | None = None, *, copied: bool = True,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Rows of the table with the largest products with each query, best first, and the products.

    `exclude` lists rows that must not be answers to a query; `cut` is the table in parts, where
    somebody has cut it. Equal products come in the order of their rows. Where fewer than k rows are
    left, the rest is -1 with a product of -inf. Of many queries a copy of the table is made, which
    is searched sooner; not if `copied` is False, where memory is dear.

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
    if k >= _SORTED_FROM:
        for n, query in enumerate(queries):
            gone = excluded[start[n] : start[n + 1]]
            rows[n], scores[n] = _sorted(table @ query.astype(table.dtype), gone, k)
        return rows, scores
    cut = _Parts(table, ordered=copied and len(queries) > _FEW) if cut is None else cut
    excluded = cut.places[excluded]

    def work(part: slice) -> None:
        lists = start[part.start : part.stop + 1], excluded
        cut.top_k(queries[part], *lists, rows[part], scores[part])

    parts = [slice(n, min(n + _FEW, len(queries))) for n in range(0, len(queries), _FEW)]
    if len(parts) <= 1:
        list(map(work, parts))
    else:
        with threadpool_limits(1, "blas"), ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(work, parts))
    return rows, scores


class _Parts:
    """A table cut into parts, its longest rows first, so that a search can end where what is left
    is too short to matter: of items that few chose, vectors are short. Where the machine multiplies
    bytes, those tell which rows can be among the best at all: they are a quarter of the numbers."""

    def __init__(self, table: np.ndarray, ordered: bool):
        kept = ordered and BYTES and table.dtype == np.float32 and len(table) > _PART
        long = lengths(table) if ordered else np.zeros(0)
        ordered = ordered and float(long.min()) < _EVEN * float(long.max())
        self.order = np.argsort(-long, kind="stable") if ordered else np.arange(len(table))
        self.places = np.argsort(self.order) if ordered else self.order
        self.table = np.ascontiguousarray(table[self.order] if ordered else table)
        self.longest = long[self.order][::_PART] if ordered else np.zeros(0)
        self.bytes = _in_bytes(self.table, _PART) if kept else None

    def top_k(self, queries, start, excluded, rows, scores):
        """Fill rows and scores for a few queries, part after part, an item a row: products are
        looked at while they are in the cache. `excluded` are places in the table as it is here."""
        queries = np.ascontiguousarray(queries, self.table.dtype)
        # Products are rounded: by less than that of the lengths' product.
        lengths = (1 + 1e-5) * np.sqrt((queries.astype(np.float64) ** 2).sum(axis=1))
        rows[:], scores[:] = -1, -np.inf
        asked = queries, lengths, start, excluded, rows, scores
        if self.bytes is None:
            _scanned(self.table, self.order, self.longest, _PART, *asked)
        else:
            _glanced(self.table, self.order, self.longest, _PART, *self.bytes, *asked)
        return rows, scores


@njit(nogil=True, cache=True)
def _scanned(table, order, longest, size, queries, lengths, start, excluded, rows, scores):
    """Rows and scores of the best for all queries, by one call: a server's other threads, who take
    turns with it in Python, are met once. `longest` has the length of the longest row of each part
    of so many rows, where the table is in their order."""
    block = np.ascontiguousarray(queries.T)
    room = np.empty((min(size, len(table)), len(queries)), table.dtype)
    for part in range(-(-len(table) // size)):
        if len(longest) and (lengths * longest[part] < scores[:, -1]).all():
            return
        rest = table[part * size : (part + 1) * size]
        products = room[: len(rest)]
        np.dot(rest, block, products)
        _selected_across(products, part * size, order, start, excluded, rows, scores)


@njit(nogil=True, cache=True)
def _selected_across(products, first, order, start, excluded, rows, scores):
    """Improve rows and scores by the products of the parts' rows from `first` on with all queries,
    a column for each. `order` tells which rows of the table they are."""
    last = first + len(products)
    for q in range(len(rows)):
        for p in range(start[q], start[q + 1]):
            if first <= excluded[p] < last:
                products[excluded[p] - first, q] = -np.inf
    floor = scores[:, -1].copy()
    for n in range(len(products)):
        row, above = products[n], 0
        for q in range(len(row)):
            above += row[q] >= floor[q]
        if above:
            for q in range(len(row)):
                floor[q] = insert(row[q], order[first + n], scores[q], rows[q])


@njit(nogil=True, cache=True)
def insert(score, row, best, found):
    """Put a row where it belongs among the best, if it does. Returns the least of them."""
    p, k = len(best), len(best)
    while p > 0 and (
        best[p - 1] < score or (best[p - 1] == score and row < found[p - 1] and score > -np.inf)
    ):
        p -= 1
        if p + 1 < k:
            best[p + 1], found[p + 1] = best[p], found[p]
        best[p], found[p] = score, row
    return best[k - 1]


@njit(nogil=True, cache=True)
def _in_bytes(table, size):
    """A table in signed bytes, four to a word, and what `exceed` adds to a row's products with
    unsigned ones, which are 128 too large. For each part of so many rows: what a byte's 1 is worth,
    the length of the longest row in bytes, and that of the longest error, which bytes leave."""
    rows, r = table.shape
    words = np.zeros((4 * (-(-rows // 4)), -(-r // 4)), np.int32)
    offsets = np.zeros(len(words), np.int32)
    parts = np.zeros((-(-rows // size), 3))
    for part in range(len(parts)):
        own = table[part * size : (part + 1) * size]
        unit = max(np.abs(own).max() / 127, 1e-30)
        longest = furthest = 0.0
        for n in range(len(own)):
            length = error = 0.0
            for c in range(r):
                byte = np.int32(np.rint(own[n, c] / unit))
                words[part * size + n, c // 4] |= (byte & 255) << 8 * (c % 4)
                offsets[part * size + n] -= 128 * byte
                length += (unit * byte) ** 2
                error += (own[n, c] - unit * byte) ** 2
            longest, furthest = max(longest, length), max(furthest, error)
        parts[part] = unit, np.sqrt(longest), np.sqrt(furthest)
    return words, offsets, parts


@njit(nogil=True, cache=True)
def _glanced(
    table, order, longest, size, words, offsets, parts, queries, lengths, start, excluded, rows,
    scores,
):  # fmt: skip
    """As `_scanned`, sixteen queries at a time. With x = a + e and q = b + d, where a and b are in
    bytes, x.q <= a.b + |e| |q| + |a| |d|: rows for which that is below the least of the best are
    passed over, and products with the others are taken."""
    r, count = queries.shape[1], words.shape[1]
    for q in range(len(queries)):
        excluded[start[q] : start[q + 1]].sort()
    for first in range(0, len(queries), 16):
        some = min(16, len(queries) - first)
        block, units, errors = np.zeros((count, 16), np.int32), np.ones(16), np.zeros(16)
        for q in range(some):
            query = queries[first + q]
            units[q] = max(np.abs(query).max() / 127, 1e-30)
            for c in range(r):
                byte = np.int32(np.rint(query[c] / units[q]))
                block[c // 4, q] |= (byte + 128) << 8 * (c % 4)
                errors[q] += (query[c] - units[q] * byte) ** 2
        least = np.full(16, _NEVER, np.int32)
        for part in range(len(parts)):
            unit, length, error = parts[part]
            slack, left = np.zeros(16), False
            for q in range(some):
                floor, own = scores[first + q, -1], lengths[first + q]
                slack[q] = 1e-5 * own * length + error * own + 1.00001 * length * np.sqrt(errors[q])
                over = len(longest) > 0 and own * longest[part] < floor
                left |= not over
                least[q] = _NEVER if over else _least(floor, slack[q], unit * units[q])
            if not left:
                break
            last = min(len(table), (part + 1) * size)
            for n in range(part * size, last, 4):
                above = exceed(words, n, offsets, block, least)
                if above == 0:
                    continue
                for row in range(n, min(n + 4, last)):
                    own = above >> np.uint64(16 * (row - n)) & np.uint64(0xFFFF)
                    if own == 0:
                        continue
                    for q in range(some):
                        if own >> np.uint64(q) & np.uint64(1):
                            u = first + q
                            gone = excluded[start[u] : start[u + 1]]
                            at = np.searchsorted(gone, row)
                            if at < len(gone) and gone[at] == row:
                                continue
                            score = product(table[row], queries[u])
                            floor = insert(score, order[row], scores[u], rows[u])
                            least[q] = _least(floor, slack[q], unit * units[q])


@njit(nogil=True, cache=True)
def _least(floor, slack, unit):
    """The least sum of products of bytes with which a score may be at the floor."""
    return np.int32(min(max(np.floor((floor - slack) / unit), -(2.0**31)), 2.0**31 - 2))


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def product(a, b):
    total = a.dtype.type(0)
    for c in range(len(a)):
        total += a[c] * b[c]
    return total


def _sorted(products: np.ndarray, excluded: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The same for one query and many answers."""
    products[excluded] = -np.inf
    order = np.argsort(-products, kind="stable")[:k]
    return np.where(np.isinf(products[order]), -1, order), products[order]


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
