"""How well a model ranks what users chose later: splits that do not leak, and measures over all
items.

Ranked is every item that the user had not chosen in training. Equal scores count as what a random
order among them would give on average.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from ..core.compiled import njit
from ..core.validation import finite, real, refuse, whole

_BLOCK = 1 << 22  # scores held at a time: 32 MB in float64


class Split(NamedTuple):
    """Positions of events: what to train on, and what to find."""

    train: np.ndarray
    test: np.ndarray


def leave_last_out(users, items, times, seed: int = 0) -> Split:
    """Of every user the last item that was new to her is to be found, and what came before it is
    to be learned from.

    Events of one user at the same time are put in order by lot, since the order in a file is often
    that of the items. Users of a single item are trained on, and later repeats belong to nothing.

    >>> leave_last_out([0, 0, 0, 1], [7, 8, 9, 7], [30, 10, 20, 5])
    Split(train=array([1, 2, 3]), test=array([0]))
    """
    users, items, times = _checked(users, items, times)
    order = np.lexsort((np.random.default_rng(seed).permutation(len(users)), times, users))
    first = order[_first_mentions(users[order], items[order])]
    last = np.append(users[first[1:]] != users[first[:-1]], True)
    alone = np.append(True, users[first[1:]] != users[first[:-1]]) & last
    test = first[last & ~alone]
    place = np.empty(len(users), np.int64)
    place[order] = np.arange(len(users))
    end = np.full(int(users.max()) + 1, len(users))
    end[users[test]] = place[test]
    return _sound(Split(np.flatnonzero(place < end[users]), np.sort(test)), users, items, times)


def time_split(users, items, times, share: float = 0.1) -> Split:
    """The latest events, a share of all of them, are to be found from those before.

    Events of one time stay together, on the side of training if they lie across the cut. What a
    user had chosen before is not there to be found, and is in neither part.

    >>> time_split([0, 0, 1, 1], [7, 8, 7, 8], [1, 4, 2, 3], share=0.5)
    Split(train=array([0, 2]), test=array([1, 3]))
    """
    users, items, times = _checked(users, items, times)
    if not 0 < share < 1:
        raise ValueError(f"share={share!r} is not between 0 and 1")
    cut = np.sort(times)[max(0, len(times) - 1 - int(share * len(times)))]
    order = np.argsort(times, kind="stable")
    new = np.zeros(len(users), bool)
    new[order[_first_mentions(users[order], items[order])]] = True
    split = Split(np.flatnonzero(times <= cut), np.flatnonzero(new & (times > cut)))
    if not len(split.test):
        raise ValueError(f"nothing new was chosen after {cut}, where the last {share:g} begin")
    return _sound(split, users, items, times)


def _checked(users, items, times):
    users, items, times = whole(users, "user"), whole(items, "item"), real(times, "time")
    if not len(users) == len(items) == len(times):
        raise ValueError(f"{len(users)} users, {len(items)} items, {len(times)} times do not match")
    if len(users) == 0:
        raise ValueError("no events: the input is empty")
    for rows, what in ((users, "user"), (items, "item")):
        refuse(rows < 0, rows, what + " {} is negative", unit="event")
    finite(times, "time", "event")
    return users, items, times


def _pairs(users, items) -> np.ndarray:
    return users.astype(np.int64) * (int(items.max()) + 1) + items


def _first_mentions(users, items) -> np.ndarray:
    """Positions at which a user and an item meet for the first time."""
    return np.sort(np.unique(_pairs(users, items), return_index=True)[1])


def _sound(split: Split, users, items, times) -> Split:
    """Nothing to be found is known, nor is anything that the same user did after it."""
    train, test = split
    pairs = _pairs(users, items)
    assert not np.isin(pairs[test], pairs[train]).any(), "a test item is among the user's own"
    latest = np.full(int(users.max()) + 1, -np.inf)
    np.maximum.at(latest, users[train], times[train])
    assert (latest[users[test]] <= times[test]).all(), "training knows what came later"
    return split


def evaluate(
    scores: Callable[[np.ndarray], np.ndarray], seen, test, k: int = 10
) -> dict[str, float]:
    """Measures over all items, means over the users who have something to be found.

    scores : takes row numbers of users, returns their scores of all items (users x items).
    seen, test : sparse matrices users x items of what was trained on and what is to be found.

    Ranked are all items that are not among the user's `seen`. `ndcg@k` has a gain of 1 for each
    test item; `recall@k` is the share of the user's test items among the first k; `mrr` is 1 over
    the place of the first test item; `auc` is the chance that a test item is above another that
    is not.

    >>> likes = np.array([[0.9, 0.5, 0.1], [0.3, 0.2, 0.8]])
    >>> seen = sp.csr_array([[1, 0, 0], [1, 0, 0]])
    >>> test = sp.csr_array([[0, 1, 0], [0, 1, 0]])
    >>> evaluate(lambda users: likes[users], seen, test, k=1)
    {'users': 2, 'ndcg@1': 0.5, 'recall@1': 0.5, 'mrr': 0.75, 'auc': 0.5}
    """
    seen, test = pattern(seen), pattern(test)
    _check(seen, test, k)
    asked = np.flatnonzero(np.diff(test.indptr))
    step, measured = max(1, _BLOCK // test.shape[1]), []
    for start in range(0, len(asked), step):
        rows = asked[start : start + step]
        S = _scored(scores, rows, test.shape[1])
        known, wanted = seen[rows], test[rows]
        S[np.repeat(np.arange(len(rows)), np.diff(known.indptr)), known.indices] = -np.inf
        above, equal = _places(S, wanted.indptr, wanted.indices)
        candidates = test.shape[1] - np.diff(known.indptr)
        measured.append(_measures(above, equal, wanted.indptr, candidates, k))
    return _means(measured, k)


def top_measures(found: np.ndarray, test) -> tuple[np.ndarray, np.ndarray]:
    """NDCG and recall of each user from her first k items, best first.

    found : (users, k) items, -1 where there are no more.
    test : users x items, sparse, of which each row names what is to be found.

    >>> top_measures(np.array([[2, 0], [1, -1]]), sp.csr_array([[1, 1, 0], [0, 1, 0]]))
    (array([0.38685281, 1.        ]), array([0.5, 1. ]))
    """
    test, (users, k) = pattern(test), found.shape
    wanted, places = np.diff(test.indptr), np.arange(2, k + 2)
    row = np.repeat(np.arange(users), wanted)
    keys = np.arange(users)[:, None] * (test.shape[1] + 1) + found + 1
    hits = np.isin(keys, row * (test.shape[1] + 1) + test.indices + 1)
    ideal = np.cumsum(1 / np.log2(places))[np.clip(wanted, 1, k) - 1]
    return (hits / np.log2(places)).sum(axis=1) / ideal, hits.sum(axis=1) / np.maximum(wanted, 1)


def pattern(S) -> Any:
    """Which entries are stored, each once, in order, as ones."""
    S = sp.csr_array(S, copy=True)
    S.sum_duplicates()
    S.data = np.ones(len(S.data), np.int8)
    return S


def _check(seen, test, k: int) -> None:
    if seen.shape != test.shape:
        raise ValueError(f"seen is {seen.shape} and test is {test.shape}: users x items of one set")
    if k < 1:
        raise ValueError(f"{k} is not a number of items")
    if not test.nnz:
        raise ValueError("the test holds no event")
    both = seen.multiply(test).tocoo()
    if both.nnz:
        user, item = both.row[0], both.col[0]
        raise ValueError(f"leakage: item {item} of user {user} is in training and in the test")


def _scored(scores: Callable, users: np.ndarray, items: int) -> np.ndarray:
    """Scores in an array of our own."""
    S = np.array(scores(users))
    if S.shape != (len(users), items):
        raise ValueError(f"scores of {len(users)} users and {items} items came as {S.shape}")
    if not np.isfinite(S).all():
        raise ValueError("a score is not a finite number")
    return S


@njit(nogil=True, cache=True)
def _places(S, starts, items):
    """Of each named item: how many others score higher, and how many the same, itself included."""
    above, equal = np.zeros(len(items), np.int64), np.zeros(len(items), np.int64)
    for row in range(len(starts) - 1):
        for at in range(starts[row], starts[row + 1]):
            score, more, same = S[row, items[at]], 0, 0
            for other in S[row]:
                more += other > score
                same += other == score
            above[at], equal[at] = more, same
    return above, equal


def _measures(above, equal, starts, candidates, k: int) -> np.ndarray:
    """NDCG, recall, reciprocal rank and AUC, a row a user."""
    wanted = np.diff(starts)
    user = np.repeat(np.arange(len(wanted)), wanted)
    places = np.arange(1, k + 1)
    gains = np.append(0.0, np.cumsum(1 / np.log2(places + 1)))
    # The places above .. above + equal are equally likely.
    from_, to = np.minimum(above, k), np.minimum(above + equal, k)
    dcg = np.bincount(user, (gains[to] - gains[from_]) / equal, len(wanted))
    hits = np.bincount(user, (to - from_) / equal, len(wanted))
    best = np.minimum.reduceat(above, starts[:-1])
    top = above == best[user]
    tied = np.maximum.reduceat(np.where(top, equal, 0), starts[:-1])
    many = np.bincount(user, top, len(wanted)).astype(np.int64)
    first = [_reciprocal(*group) for group in zip(best, tied, many, strict=True)]
    # Pairs of two test items are half right together, whatever their order.
    others = candidates - wanted
    right = np.bincount(user, candidates[user] - above - (equal + 1) / 2, len(wanted))
    right -= wanted * (wanted - 1) / 2
    with np.errstate(invalid="ignore"):  # where nothing is left to compare with, NaN
        auc = right / (wanted * others)
    return np.column_stack([dcg / gains[np.minimum(wanted, k)], hits / wanted, first, auc])


def _reciprocal(above: int, tied: int, many: int) -> float:
    """Mean of 1 / place of the first of `many` test items in a group of equals."""
    ahead = np.arange(tied - many)
    # The chance that the first t of the group are others, for t = 0, 1, ...
    none = np.append(1.0, np.cumprod((tied - many - ahead) / (tied - ahead)))
    return float((-np.diff(np.append(none, 0.0)) / (above + 1 + np.arange(len(none)))).sum())


def _means(measured: list[np.ndarray], k: int) -> dict[str, float]:
    rows = np.concatenate(measured)
    means = [np.mean(column[~np.isnan(column)]) for column in rows.T[:3]]
    auc = rows[~np.isnan(rows[:, 3]), 3]
    means.append(np.mean(auc) if len(auc) else np.nan)
    names = (f"ndcg@{k}", f"recall@{k}", "mrr", "auc")
    return {"users": len(rows)} | dict(zip(names, map(float, means), strict=True))
