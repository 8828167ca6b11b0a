"""Which items speak for which others: a sparse table of weights beside the vectors.

Vectors of few directions tell what groups of items have in common; they cannot tell that one book
is the sequel of one other. So each item i is regressed on the few items nearest to it,

    min_w  sum_u (x_ui - sum_j w_j x_uj)^2 + ridge |w|^2,    w >= 0,

which is SLIM (Ning and Karypis, 2011) without its other items, and to the score of an item is added
what a user's items say for it. Of the Gram x_j.x_k only what is large is kept: the entries of each
item with its nearest ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from ..core.choices import Choices
from ..core.compiled import njit
from ..core.memory import allow, cores
from .search import Lists, Search, insert, product

_SHRINK = 10.0  # added to sqrt(n_i n_j): of items that few chose, similarities are chance
_SWEEPS = 100  # of coordinate descent at most
_EXACT = 1e-3  # a sweep that changes no weight by more is the last
_MOST = 4e9  # pairs of choices by one user: of more, those of some users are looked at
_FEW = 64  # items or users that one thread is done with sooner than several are
_SMALL = 2**20  # pairs of an item and one near it, of which several tables may be held
_LEAST = 1e-3  # the smallest weight that is kept


@dataclass(frozen=True)
class Neighbours:
    """Item j speaks for `items[start[j] : start[j + 1]]` with `weights`, all above 0.

    >>> chosen = Choices.of([0, 0, 1, 1, 2, 2], [0, 1, 0, 1, 2, 3], shape=(3, 5))
    >>> found = Neighbours.of(chosen, count=2, ridge=1.0)
    >>> found.start, found.items, found.weights.round(2)
    (array([0, 1, 2, 3, 4, 4]), array([1, 0, 3, 2], dtype=int32), array([0.67, 0.67, 0.5 , 0.5 ],
    dtype=float32))
    """

    start: np.ndarray  # (items + 1,) int64
    items: np.ndarray  # int32
    weights: np.ndarray  # float32
    blend: float = 1.0  # what they count for

    @classmethod
    def of(cls, choices: Choices, count: int, ridge: float, seed: int = 0) -> Neighbours:
        """Of each item the regression on its `count` nearest. A choice of less than the mean weight
        counts for less, one of more for no more."""
        return cls(*_by_source(*_regressed(choices, min(count, choices.shape[1]), ridge, seed)))

    @classmethod
    def finder(cls, choices: Choices, count: int, seed: int = 0) -> Callable[[float], Neighbours]:
        """What `of` gives for each ridge. Where tables are small, what is nearest is found once,
        and nothing is regressed twice; of others none stays."""
        count = min(count, choices.shape[1])
        if count * choices.shape[1] > _SMALL:
            return lambda ridge: cls.of(choices, count, ridge, seed)
        nearby = _nearby(choices, count, seed)
        return cache(lambda ridge: cls(*_by_source(nearby[0].copy(), _weighed(nearby, ridge))))

    def times(self, blend: float) -> Neighbours:
        """The same, counting for more or less."""
        return replace(self, blend=self.blend * blend)

    def speaking_for(self, item: int, chosen: np.ndarray) -> np.ndarray:
        """What each of the chosen items says for an item."""
        out = np.zeros(len(chosen))
        for n, j in enumerate(chosen):
            if j < len(self.start) - 1:
                part = slice(self.start[j], self.start[j + 1])
                out[n] = self.weights[part][self.items[part] == item].sum()
        return self.blend * out

    def top_k(
        self, search: Search, queries: np.ndarray, k: int, had: tuple, exclude: Lists | None = None,
        places: np.ndarray | None = None,
    ) -> Lists:  # fmt: skip
        """As `search.top_k`, by the sum of the products and of what a user's items say.

        had : (start, items, values) of what each user had.
        places : where each item lies in the table that is searched, -1 if it does not.
        """
        found = search.top_k(queries, k, exclude)
        return self.improved(found, search.table, queries, had, exclude, places)

    def improved(
        self, found: Lists, table: np.ndarray, queries: np.ndarray, had: tuple,
        exclude: Lists | None = None, places: np.ndarray | None = None,
    ) -> Lists:  # fmt: skip
        """The same from the best by their products alone, which are changed.

        Nothing speaks against an item. So those for which nobody speaks are among the best only if
        they are among the best by their products, and only the others have to be looked at."""
        rows, scores = (part[None] for part in found)
        self._improve((1.0,), (rows, scores), table, queries, had, exclude, places)
        return found

    def blended(
        self, blends: Sequence[float], found: Lists, table: np.ndarray, queries: np.ndarray,
        had: tuple, exclude: Lists | None = None,
    ) -> list[Lists]:  # fmt: skip
        """The same, of `times` each of these blends, for little more than one of them costs; what
        was found stays."""
        rows, scores = (np.repeat(part[None], len(blends), axis=0) for part in found)
        self._improve(blends, (rows, scores), table, queries, had, exclude, None)
        return list(zip(rows, scores, strict=True))

    def _improve(self, blends: Sequence[float], found: Lists, table, queries, had, exclude, places):
        """Args: found, lists of each blend (blends, users, k)."""
        places = np.arange(len(table)) if places is None else places
        if exclude is None:
            exclude = np.zeros(len(queries) + 1, np.int64), np.zeros(0, np.int64)
        queries = np.ascontiguousarray(queries, table.dtype)
        start, items, values = had
        told = start, items, np.clip(values, 0, 1).astype(np.float32)
        asked = (self.start, self.items, self.weights), told, exclude, places, table, queries
        counts = (self.blend * np.asarray(blends)).astype(np.float32)
        _in_parts(lambda first, last: _improve(*asked, counts, *found, first, last), len(queries))


def _regressed(choices: Choices, count: int, ridge: float, seed: int) -> Lists:
    """Of each item the nearest (items, count), -1 where there are no more, and their weights."""
    nearby = _nearby(choices, count, seed)
    return nearby[0], _weighed(nearby, ridge)


def _weighed(nearby: tuple, ridge: float) -> np.ndarray:
    """Weights (items, count) of what `_nearby` found."""
    near, shared, least, sizes, usual = nearby
    weights = np.zeros(near.shape, np.float32)

    def regress(first: int, last: int) -> None:
        _regress(near, shared, least, sizes, usual, ridge, _SWEEPS, weights, first, last)

    _in_parts(regress, len(near))
    return weights


def _nearby(choices: Choices, count: int, seed: int) -> tuple:
    """Of each item the nearest (items, count), -1 where there are no more; x_i.x_j with them; what
    its likeness to the others is at most; and x_i.x_i and the usual e_i of `_sorted`."""
    allow(12.0 * choices.shape[1] * count, "a table of neighbours")
    by_user, by_item, sizes, usual = _sorted(choices, seed)
    near = np.full((len(sizes), count), -1, np.int32)
    shared, least = np.zeros(near.shape, np.float32), np.zeros(len(near), np.float32)

    def find(first: int, last: int) -> None:
        _nearest(by_user, by_item, sizes, near, shared, least, first, last)

    _in_parts(find, len(near))
    return near, shared, least, sizes, usual


def _sorted(choices: Choices, seed: int) -> tuple:
    """Where the choices of each user begin, their items and values; the same of each item; x_j.x_j
    (items,); and e with x_j.x_k = e_j e_k in the mean, if users chose independently, each as often
    as she did and each item as often as it was."""
    users, items = choices.shape
    order = np.lexsort((choices.items, choices.users))
    who, what, values = choices.users[order], choices.items[order], choices.weights[order]
    values, start = np.minimum(values, 1), _lists(who, users)
    often = np.diff(start).astype(np.float64)
    if (often**2).sum() > _MOST:  # those of some users tell as much
        some = np.random.default_rng([seed, 9]).permutation(users)
        values[np.isin(who, some[np.cumsum(often[some] ** 2) > _MOST])] = 0
    order = np.argsort(what, kind="stable")
    sizes, active = np.bincount(what, values**2, items), np.bincount(who, values**2, users)
    usual = sizes * np.sqrt((active**2).sum()) / max(active.sum(), 1e-12)
    by_item = _lists(what[order], items), who[order], values[order]
    return (start, what, values), by_item, sizes, usual.astype(np.float32)


def _lists(sorted_keys: np.ndarray, count: int) -> np.ndarray:
    """Where the entries of each key begin, and the last ones end."""
    return np.concatenate([[0], np.cumsum(np.bincount(sorted_keys, minlength=count))])


def _in_parts(work: Callable[[int, int], None], count: int) -> None:
    """work(first, last) for all of them, on all cores; what it does does not depend on that."""
    size = max(_FEW, count // (8 * cores()))
    firsts = range(0, count, size)
    if len(firsts) <= 1:
        work(0, count)
        return
    with ThreadPoolExecutor(cores()) as pool:
        list(pool.map(lambda first: work(first, min(first + size, count)), firsts))


@njit(nogil=True, cache=True)
def _likeness(common, a, b):
    return np.float32(common / (np.sqrt(a * b) + _SHRINK))


@njit(nogil=True, cache=True)
def _nearest(by_user, by_item, sizes, near, shared, least, first, last):
    """Of items from `first` to `last` the nearest others, by x_i.x_j / (|x_i| |x_j| + shrink),
    nearest first; x_i.x_j; and what the likeness of all the others is not above."""
    (start, items, values), (begin, users, back), count = by_user, by_item, near.shape[1]
    common = np.zeros(len(sizes), np.float32)
    touched = np.empty(len(sizes), np.int32)
    for i in range(first, last):
        many = 0
        for p in range(begin[i], begin[i + 1]):
            x = back[p]
            for q in range(start[users[p]], start[users[p] + 1]):
                j = items[q]
                if common[j] == 0:
                    touched[many] = j
                    many += 1
                common[j] += x * values[q]
                if common[j] == 0:  # a choice that is not looked at
                    many -= 1
        common[i] = 0
        best = np.full(count, np.float32(0))
        for n in range(many):
            j = touched[n]
            if common[j] > 0:
                insert(_likeness(common[j], sizes[i], sizes[j]), j, best, near[i])
        least[i] = best[count - 1]
        for n in range(count):
            if best[n] > 0:
                shared[i, n] = common[near[i, n]]
            else:
                near[i, n] = -1
        for n in range(many):
            common[touched[n]] = 0


@njit(nogil=True, cache=True, fastmath={"reassoc", "contract"})
def _regress(near, shared, least, sizes, usual, ridge, sweeps, weights, first, last):
    """Weights of the nearest by coordinate descent. Entries of the Gram that are not kept are taken
    to be the usual ones, or what they can be at most; none is below 0, so that a weight never is
    above x_i.x_j / (|x_j|^2 + ridge)."""
    count = near.shape[1]
    place = np.full(len(sizes), -1, np.int32)
    G = np.zeros((count, count), np.float32)
    low, root, e = np.zeros((3, count), np.float32)  # of the nearest, side by side
    for i in range(first, last):
        many = 0
        while many < count and near[i, many] >= 0:
            j = near[i, many]
            low[many], root[many], e[many] = least[j], np.sqrt(sizes[j]), usual[j]
            place[j] = many
            many += 1
        for a in range(many):
            for b in range(many):
                most = min(low[a], low[b]) * (root[a] * root[b] + np.float32(_SHRINK))
                G[a, b] = min(e[a] * e[b], most)
        for a in range(many):
            j = near[i, a]
            G[a, a] = 0
            for n in range(count):
                b = place[near[j, n]] if near[j, n] >= 0 else -1
                if b >= 0:
                    G[a, b] = shared[j, n]
                    G[b, a] = shared[j, n]
        for _ in range(sweeps):
            furthest = np.float32(0)
            for a in range(many):
                rest = shared[i, a]
                for b in range(many):
                    rest -= G[a, b] * weights[i, b]
                new = np.float32(max(rest, 0) / (sizes[near[i, a]] + ridge))
                furthest = max(furthest, abs(new - weights[i, a]))
                weights[i, a] = new
            if furthest < _EXACT:
                break
        for a in range(many):
            place[near[i, a]] = -1


@njit(nogil=True, cache=True)
def _by_source(near, weights):
    """Weights (items, count) of the items in `near` as lists of each item there: where they begin,
    those it speaks for, and the weights that matter.

    In place: both tables are the largest of a fit. A pair goes to the next free place of its list
    and takes along the pair that lay there, until one has come from where the way began. Of a pair
    that has arrived there is ~i for the item i that it speaks for: nothing else is below -1."""
    rows, count = near.shape
    keys, values = near.reshape(-1), weights.reshape(-1)
    start = np.zeros(rows + 2, np.int64)
    for p in range(len(keys)):
        if values[p] <= _LEAST:
            keys[p] = rows  # behind all lists
        start[keys[p] + 1] += 1
    start[1:] = np.cumsum(start[1:])
    place = start[:-1].copy()
    for first in range(len(keys)):
        if keys[first] < 0:
            continue
        key, item, value, at = keys[first], first // count, values[first], -1
        while at != first:
            at = place[key]
            place[key] += 1
            further, there = keys[at], values[at]
            keys[at], values[at] = ~item, value
            key, item, value = further, at // count, there
    many = start[-2]
    for p in range(many):
        keys[p] = ~keys[p]
    return start[:-1], keys[:many], values[:many]


@njit(nogil=True, cache=True)
def _improve(speak, had, exclude, places, table, queries, blends, rows, scores, first, last):
    """Rows and scores of the best for users from `first` to `last`, from those by their products
    alone, for each of the blends."""
    (start, items, weights), (begin, own, values), (gone_from, gone) = speak, had, exclude
    said = np.zeros(len(table), np.float32)
    named, left_out = np.zeros(len(table), np.bool_), np.zeros(len(table), np.bool_)
    order = np.empty(len(table), np.int64)
    for u in range(first, last):
        many = 0
        for p in range(begin[u], begin[u + 1]):
            if own[p] >= len(start) - 1:  # newer than the table
                continue
            for q in range(start[own[p]], start[own[p] + 1]):
                row = places[items[q]]
                if row >= 0:
                    if not named[row]:
                        named[row], order[many] = True, row
                        many += 1
                    said[row] += values[p] * weights[q]
        for p in range(gone_from[u], gone_from[u + 1]):
            left_out[gone[p]] = True
        for b in range(len(blends)):
            kept = 0
            for n in range(rows.shape[2]):  # those whose scores change are put in again
                row, score = rows[b, u, n], scores[b, u, n]
                if row >= 0 and not named[row]:
                    rows[b, u, kept], scores[b, u, kept] = row, score
                    kept += 1
            rows[b, u, kept:], scores[b, u, kept:] = -1, -np.inf
        for n in range(many):
            row = order[n]
            if not left_out[row]:
                score = product(table[row], queries[u])
                for b in range(len(blends)):
                    insert(score + blends[b] * said[row], row, scores[b, u], rows[b, u])
            named[row], said[row] = False, 0
        for p in range(gone_from[u], gone_from[u + 1]):
            left_out[gone[p]] = False
