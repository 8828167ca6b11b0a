"""Users who chose items, as comparisons: with what they did not choose, or with what came next."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp

from ..core.linalg import NumpyAlgebra, eigenbasis
from ..core.observations import Observations
from ..core.validation import finite, real, refuse, whole

if TYPE_CHECKING:
    from ..engines.cpu.negatives import Negatives

# How sure a user is expected to be, as the mean square of z over her comparisons. From 0.1 to 4 all
# rank held-out items of MovieLens equally well.
_CERTAINTY = 1.0
_FLAT = 1e-12  # of the largest variance: a direction in which items do not differ

_ROUNDING = 1e-6  # of a mean of float32 values

NEGATIVES = ("uniform", "popularity")


def observations(
    users, items, shape, *, negatives: str = "uniform", values=None, seed: int = 0, seen=None
) -> Observations:
    """Comparisons "user i prefers item j, which she chose, to item k, which she did not".

    Every event (user, item) is one comparison. Its k is drawn here once, for hold-outs and
    evaluation, and by training anew each time it comes by: any item, or by popularity the item of
    any event (which finds better first ten, while uniform draws order the rest better). It is
    never an item of the same user, be it among the events or in `seen`, a sparse matrix users x
    items of earlier choices. Users who have chosen everything prefer nothing and are left out.

    With `values` (ratings, counts) only events at or above the user's mean are choices; of the
    others it is known that they are no fair k, and no more.

    >>> chosen = observations([0, 0, 1], [2, 0, 1], shape=(2, 3))
    >>> chosen.index[:2]  # rows j, k, i: user 0 has left nothing but item 1
    array([[2, 1, 0],
           [0, 1, 0]], dtype=int32)
    """
    users, items, shape = _events(users, items, shape)
    drawn = _negatives(users, items, shape, negatives, seen)
    liked = drawn.left[users] > 0
    if values is not None:
        liked &= _liked(users, values)
    if not liked.all():
        users, items = users[liked], items[liked]
        if not len(users):
            raise ValueError("no comparison: every user has chosen every item")
    index = np.empty((len(users), 3), np.int32 if sum(shape) < 2**31 else np.int64)
    index[:, 0], index[:, 2] = items, users
    drawn.redraw(index, seed)
    found = Observations(index, np.ones(len(index), np.float32), shape, "bpr", symmetric=False)
    found.negatives = drawn
    return found


def successions(
    previous: np.ndarray, users, items, shape, *, negatives: str = "uniform", seed: int = 0
) -> Observations | None:
    """Comparisons "the item before is nearer to the one after it than to another", among items.

    Events are in the order of time. `previous` holds the row of the last item of each user, -1
    where there was none, and is brought up to date in place; refused events leave it as it is. An
    item that is chosen twice in a row says nothing. Uniform negatives are any other item; those by
    popularity are items of the same events. None if no comparison came of it.

    >>> last = np.array([-1, 4], np.int32)
    >>> after = successions(last, [0, 1, 0], [2, 3, 1], shape=(5, 5))
    >>> after.index[:, [2, 0]], last  # from 4 to 3, and from 2 to 1
    (array([[4, 3],
           [2, 1]], dtype=int32), array([1, 3], dtype=int32))
    """
    from ..engines.cpu import negatives as kernels

    count = int(shape[1])
    _check_kind(negatives)
    users, items, _ = _events(users, items, (len(previous), count))
    out = np.empty((len(users), 3), np.int32 if 2 * count < 2**31 else np.int64)
    if count < 3:  # there is no third item to compare with
        previous[users] = items
        return None
    popular = negatives == "popularity"
    found = kernels.successions(previous, users, items, count, popular, seed, out)
    if not found:
        return None
    ones = np.ones(found, np.float32)
    return Observations(out[:found], ones, (count, count), "bpr", symmetric=True)


def fold_in(right: np.ndarray, starts, items, values=None) -> np.ndarray:
    """Vectors of new users who chose items, from the vectors of the items: nothing is trained.

    User u chose `items[starts[u] : starts[u + 1]]`; `values` mean what they mean in `observations`.
    It is one Newton step of the BPR loss from zero, with every item as a negative and the variance
    of directions among items as the prior of theirs among users, solved direction by direction:
    the mean of the chosen vectors less that of all, and each direction divided by its variance as
    far as so many choices can tell it from noise. Its length has no meaning, its order of items
    has.

    >>> kinds = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
    >>> new = fold_in(kinds, [0, 1, 2], [0, 3])  # the first chose item 0, the second item 3
    >>> np.argsort(-new @ kinds.T)[:, :2]
    array([[0, 1],
           [2, 3]])
    """
    starts = np.asarray(starts)
    users, items = np.repeat(np.arange(len(starts) - 1), np.diff(starts)), whole(items, "item")
    if values is not None:
        liked = _liked(users, values)
        users, items = users[liked], items[liked]
    ones, shape = np.ones(len(items), right.dtype), (len(starts) - 1, len(right))
    chosen = sp.csr_array((ones, (users, items)), shape=shape)
    count = np.bincount(users, minlength=shape[0])[:, None]
    centre = right.mean(axis=0, dtype=np.float64)
    Q, variance = eigenbasis(NumpyAlgebra().gram(right) / len(right) - np.outer(centre, centre))
    variance = np.maximum(variance, _FLAT * variance.max() + np.finfo(np.float64).tiny)
    # z = x.(x_j - x_k) of a user drawn from a prior of covariance s V has mean square 2 s |V|^2.
    prior = _CERTAINTY * variance / (2 * (variance**2).sum())
    step = (chosen @ right - count * centre) @ Q / (count * variance + 2 / prior)
    return (step @ Q.T).astype(right.dtype)


def _events(users, items, shape) -> tuple[np.ndarray, np.ndarray, tuple[int, int]]:
    users, items = whole(users, "user"), whole(items, "item")
    if len(users) != len(items):
        raise ValueError(f"{len(users)} users and {len(items)} items do not pair up")
    if len(users) == 0:
        raise ValueError("no events: the input is empty")
    shape = int(shape[0]), int(shape[1])
    for rows, limit, what in ((users, shape[0], "user"), (items, shape[1], "item")):
        wrong = (rows < 0) | (rows >= limit)
        refuse(wrong, rows, f"{what} {{}} is not one of {limit}", unit="event")
    return users, items, shape


def _liked(users: np.ndarray, values) -> np.ndarray:
    """Whether each value is at least its user's mean."""
    values = real(values, "value")
    if len(values) != len(users):
        raise ValueError(f"{len(users)} users and {len(values)} values do not pair up")
    finite(values, "value", "event")
    mean = np.bincount(users, values) / np.maximum(np.bincount(users), 1)
    # Equal values are all at their mean, whatever it was rounded to.
    return values >= mean[users] - _ROUNDING * np.abs(mean[users])


def _check_kind(negatives: str) -> None:
    if negatives not in NEGATIVES:
        raise ValueError(f"negatives={negatives!r} is not 'uniform' or 'popularity'")


def _negatives(users, items, shape, kind: str, seen) -> Negatives:
    """Who draws for these users."""
    from ..engines.cpu.negatives import Negatives

    _check_kind(kind)
    chosen = pattern(sp.coo_array((np.ones(len(users), np.int8), (users, items)), shape=shape))
    if seen is not None:
        seen = pattern(seen)
        seen.resize(shape)
        chosen = pattern(chosen + seen)
    return Negatives(chosen.indptr, chosen.indices, shape[1], popular=kind == "popularity")


def draw_unchosen(users: np.ndarray, chosen, seed: int = 0) -> np.ndarray:
    """For each user an item that is not among hers in a sparse matrix users x items.

    >>> draw_unchosen(np.array([0, 1]), sp.csr_array([[1, 0, 1], [1, 1, 0]]))
    array([1, 2])
    """
    from ..engines.cpu.negatives import Negatives

    chosen = pattern(chosen)
    drawn = Negatives(chosen.indptr, chosen.indices, chosen.shape[1])
    full = drawn.left[users] == 0
    if full.any():
        raise ValueError(f"user {users[np.argmax(full)]} has chosen every item")
    index = np.stack([users, users, users], axis=1)
    drawn.redraw(index, seed)
    return index[:, 1]


def pattern(S) -> Any:
    """Which entries are stored, each once, in order, as ones."""
    S = sp.csr_array(S, copy=True)
    S.sum_duplicates()
    S.data = np.ones(len(S.data), np.int8)
    return S
