"""How similar items are to each other, by who rated them: a row of the matrix at a time.

M_ij is the cosine between the ratings of items i and j (unrated is zero), or what else the table
`SIMILARITIES` says. One kernel adds up the products of all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from ..core.compiled import njit

# Similarities closer than this are equal. Rounding leaves equal ones some 1e-16 apart; different
# ones of half-star ratings are hardly ever this near.
TIE = 1e-12


class _Lists(NamedTuple):
    """A sparse matrix as lists, for the kernels."""

    start: np.ndarray
    index: np.ndarray  # pyright: ignore[reportIncompatibleMethodOverride]
    value: np.ndarray


class Items(NamedTuple):
    by_item: _Lists  # who rated an item, and how
    by_user: _Lists  # what a user rated, and how
    weight: np.ndarray  # 1 / |column|, or 1
    raters: np.ndarray  # of each item
    shrinkage: float
    union: bool
    signed: bool


class Similarity(NamedTuple):
    """What of the ratings counts, and what becomes of their products."""

    values: Callable[[sp.csr_array], np.ndarray]
    unit: bool = True  # divide by the lengths of both columns
    shrinkage: float = 0.0  # times n / (n + shrinkage), n being how many rated both
    union: bool = False  # divide by how many rated either


def _as_given(table: sp.csr_array) -> np.ndarray:
    return table.data


def _less_mean(table: sp.csr_array) -> np.ndarray:
    """Ratings minus the mean of their user's, in float64 and without what rounding leaves."""
    counts = np.diff(table.indptr)
    user = np.repeat(np.arange(len(counts)), counts)
    means = np.bincount(user, table.data, len(counts)) / np.maximum(counts, 1)
    rest = table.data - means[user]
    noise = np.finfo(np.float32).eps * np.abs(means[user])  # ratings come in float32
    return np.where(np.abs(rest) > noise, rest, 0.0)


def _ones(table: sp.csr_array) -> np.ndarray:
    return np.ones_like(table.data)


# Of two items with a rater or two in common the cosine is mostly luck. Half of it is believed when
# there are ten, which is about where the luck of half-star ratings averages out.
_SHRINKAGE = 10.0

SIMILARITIES = {
    "cosine": Similarity(_as_given),
    "adjusted": Similarity(_less_mean),
    "jaccard": Similarity(_ones, unit=False, union=True),
    "shrunk": Similarity(_as_given, shrinkage=_SHRINKAGE),
}


def prepared(table: sp.csr_array, similarity: str = "cosine") -> Items:
    """Both directions of the ratings, and what makes similarities of their products."""
    if similarity not in SIMILARITIES:
        raise ValueError(f"similarity {similarity!r} is not one of {', '.join(SIMILARITIES)}")
    kind = SIMILARITIES[similarity]
    values = kind.values(table)
    by_user = _Lists(table.indptr, table.indices, values)
    turned = sp.csr_array((values, table.indices, table.indptr), shape=table.shape).tocsc()
    by_item = _Lists(turned.indptr, turned.indices, turned.data)
    raters = np.diff(turned.indptr).astype(np.float64)
    weight = np.ones(len(raters))
    if kind.unit:
        squares = np.bincount(table.indices, values.astype(np.float64) ** 2)
        # An item that all of its raters found average is like no other.
        weight = np.where(squares > 0, 1.0 / np.sqrt(np.where(squares > 0, squares, 1.0)), 0.0)
    signed = bool((values < 0).any())
    return Items(by_item, by_user, weight, raters, kind.shrinkage, kind.union, signed)


def similarities(items: Items, i: int) -> np.ndarray:
    """Row i of M.

    >>> G = sp.csr_array([[3.0, 3.0], [0.0, 4.0]])
    >>> similarities(prepared(G), 0), similarities(prepared(G, "jaccard"), 0)
    (array([1. , 0.6]), array([1. , 0.5]))
    """
    row, common = np.empty((2, len(items.weight)))
    similar_row(items, i, row, common)
    return row * items.weight[i]


@njit(nogil=True, cache=True)
def similar_row(items, i, row, common):
    """Row i of M but for the length of column i, which no comparison in the row depends on.
    `common` is room for the number of those who rated both."""
    rated, histories = items.by_item, items.by_user
    row[:] = 0.0  # float64: sums of half-star products are exact
    for p in range(rated.start[i], rated.start[i + 1]):
        user, stars = rated.index[p], np.float64(rated.value[p])
        for s in range(histories.start[user], histories.start[user + 1]):
            row[histories.index[s]] += stars * histories.value[s]
    row *= items.weight
    if items.union:  # the products of ones are how many rated both
        row /= items.raters[i] + items.raters - row
    if items.shrinkage > 0.0:
        common[:] = 0.0
        for p in range(rated.start[i], rated.start[i + 1]):
            user = rated.index[p]
            for s in range(histories.start[user], histories.start[user + 1]):
                common[histories.index[s]] += 1.0
        row *= common / (common + items.shrinkage)
    if items.signed:  # what cancels leaves rounding behind, which would pass for a difference
        for j in range(len(row)):
            if abs(row[j]) * items.weight[i] <= TIE:
                row[j] = 0.0
