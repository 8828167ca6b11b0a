"""Problems with a known answer: the matrices and points of the paper, completion problems, and
rating tables with the shape and the skew of MovieLens."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from ..core.compiled import njit
from ..core.randomness import seeded, streams, threaded, uniform


def _rng(seed: int, purpose: str) -> np.random.Generator:
    return np.random.default_rng(seeded(seed, purpose))


def orthonormal(d: int, rank: int, rng: np.random.Generator) -> np.ndarray:
    """Columns of a uniformly random orthogonal matrix.

    >>> U = orthonormal(5, 2, np.random.default_rng(0))
    >>> np.allclose(U.T @ U, np.eye(2))
    True
    """
    Q, R = np.linalg.qr(rng.standard_normal((d, rank)))
    return Q * np.sign(np.diag(R))  # the signs that LAPACK prefers are not random


def psd_matrix(d: int, spectrum, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """M = U diag(spectrum) U^T with a random orthonormal U, and its factor Z: M = Z Z^T.

    >>> M, Z = psd_matrix(30, [10, 0.1, 0.001], seed=0)
    >>> np.allclose(np.linalg.eigvalsh(M)[-3:], [0.001, 0.1, 10]), np.allclose(Z @ Z.T, M)
    (True, True)
    """
    spectrum = np.asarray(spectrum, dtype=np.float64)
    Z = orthonormal(d, len(spectrum), _rng(seed, "matrix")) * np.sqrt(spectrum)
    return Z @ Z.T, Z


def noisy(M: np.ndarray, snr_db: float, seed: int) -> np.ndarray:
    """M plus symmetric Gaussian noise, |M|^2 / |noise|^2 being that many decibels.

    >>> M, _ = psd_matrix(30, [10, 10, 10], seed=0)
    >>> N = noisy(M, 15.0, seed=1) - M
    >>> np.allclose(20 * np.log10(np.linalg.norm(M) / np.linalg.norm(N)), 15), np.allclose(N, N.T)
    (True, True)
    """
    noise = _rng(seed, "noise").standard_normal(M.shape)
    noise = noise + noise.T
    return M + noise * (np.linalg.norm(M) / np.linalg.norm(noise) * 10 ** (-snr_db / 20))


def cube_points(n: int, seed: int, outliers: int = 0, offset: float = 10.0) -> np.ndarray:
    """Points in a cube of side 2 around the origin, the first few of them moved along x.

    >>> near, far = cube_points(30, 0), cube_points(30, 0, outliers=5)
    >>> (far - near).sum(axis=0), bool(np.abs(near).max() < 1)
    (array([50.,  0.,  0.]), True)
    """
    points = _rng(seed, "points").uniform(-1.0, 1.0, (n, 3))
    points[:outliers, 0] += offset
    return points


class Completion(NamedTuple):
    """Entries of left @ right.T: `index` holds their rows and columns."""

    index: np.ndarray  # pyright: ignore[reportIncompatibleMethodOverride]
    targets: np.ndarray
    left: np.ndarray
    right: np.ndarray


def completion_problem(
    shape: tuple[int, int], rank: int, kappa: float, samples: int, seed: int, symmetric=False
) -> Completion:
    """Distinct entries, uniformly drawn, of a random matrix whose singular values fall
    geometrically from 1 to 1/kappa. Of a symmetric one, (i, j) and (j, i) are the same entry.

    >>> seen = completion_problem((50, 40), rank=3, kappa=100, samples=600, seed=0)
    >>> rows, columns = seen.index.T
    >>> np.allclose((seen.left @ seen.right.T)[rows, columns], seen.targets)
    True
    """
    rng = _rng(seed, "completion")
    root = np.sqrt(np.geomspace(1.0, 1.0 / kappa, rank))
    left = orthonormal(shape[0], rank, rng) * root
    right = left if symmetric else orthonormal(shape[1], rank, rng) * root
    draw = _lower_entries if symmetric else _entries
    index = np.stack(draw(shape, samples, rng), axis=1).astype(np.int32)
    targets = np.empty(samples)
    for at in range(0, samples, 1 << 20):  # so that the rows gathered stay some megabytes
        i, j = index[at : at + (1 << 20)].T
        targets[at : at + (1 << 20)] = np.einsum("sr,sr->s", left[i], right[j])
    return Completion(index, targets, left, right)


def _entries(shape, samples: int, rng: np.random.Generator):
    return np.divmod(rng.choice(shape[0] * shape[1], samples, replace=False), shape[1])


def _lower_entries(shape, samples: int, rng: np.random.Generator):
    """Entry t is the t-th when the lower triangle is read row by row."""
    t = rng.choice(shape[0] * (shape[0] + 1) // 2, samples, replace=False)
    i = ((np.sqrt(8.0 * t + 1.0) - 1.0) / 2.0).astype(np.int64)
    i -= i * (i + 1) // 2 > t  # where the root was rounded across a whole number
    i += (i + 1) * (i + 2) // 2 <= t
    return i, t - i * (i + 1) // 2


class Twin(NamedTuple):
    """A rating table: its size, how fast the popularity of items falls, which is as
    (rank + shift * items)^-exponent, and how much taste decides what a user rates."""

    users: int
    items: int
    ratings: int
    exponent: float = 1.6
    shift: float = 0.011
    picky: float = 5.0


# Sizes are MovieLens's. The rest was chosen by hand so that item counts, the AUC of NP-Maximum and
# the AUC curves of SGD and ScaledSGD come out like those of the real tables: NP-Maximum 0.79 and
# final AUC 0.83 for small (its twin: 0.78-0.80 and 0.83-0.85), 0.80 and 0.90 for 25m (0.79 and
# 0.89). A twin therefore shows that a program works at full size; it is no evidence of its own for
# how the two methods compare. "latest" takes over the shape of 25m.
TWINS = {
    "small": Twin(610, 9_724, 100_836),
    "latest": Twin(283_228, 53_889, 27_753_444, 2.6, 0.006, 2.5),
    "25m": Twin(162_541, 59_047, 25_000_095, 2.6, 0.006, 2.5),
}

_LEAST = 20  # ratings of a user: MovieLens-Small leaves out those with fewer
_TAIL = 0.4  # histories fall as rank^-0.4: spread and longest of MovieLens-Small within a third
_TASTES = 3  # dimensions of taste
_AGREED = 0.4  # agreement at which a user is of two minds about an item; its spread is 1
_STARS, _QUALITY, _MILD, _LIKING, _MOOD = 3.2, 0.5, 0.4, 0.4, 2.0  # mean 3.5, deviation 1.0
_TRIES = 1024  # draws per item of the catalogue, then a user takes what is left by popularity
_BLOCK = 1024  # users a thread takes at a time


def ratings(name_or_shape, seed: int, n_jobs: int | None = None) -> sp.csr_array:
    """A rating table like that of MovieLens, users x items, in half stars from 0.5 to 5.

    Name one of TWINS, or give (users, items, ratings). Popularity of items and length of histories
    follow power laws. Users and items have tastes in a space of few dimensions: where they agree,
    the user is likelier to rate the item, and to rate it high. Every item has a rating.

    >>> G = ratings((100, 300, 4_000), seed=0)
    >>> G.shape, G.nnz, float(G.data.min()), float(G.data.max())
    ((100, 300), 4000, 0.5, 5.0)
    """
    named = isinstance(name_or_shape, str)
    if named and name_or_shape not in TWINS:
        raise ValueError(f"unknown table {name_or_shape!r}: choose from {', '.join(TWINS)}")
    twin = TWINS[name_or_shape] if named else Twin(*name_or_shape)
    if not max(twin[:2]) <= twin.ratings <= twin.users * twin.items // 4:
        raise ValueError(
            f"{twin.ratings:,} ratings of {twin.users:,} users and {twin.items:,} items: there has "
            "to be one for each of them at least, and at most a quarter of the table"
        )
    indptr = np.zeros(twin.users + 1, np.int64)
    np.cumsum(_rng(seed, "users").permutation(_histories(twin)), out=indptr[1:])
    world = _world(twin, indptr, seed)
    index, stars = np.empty(twin.ratings, np.int32), np.empty(twin.ratings, np.float32)

    def work(first: int) -> None:
        _rate(world, first, min(first + _BLOCK, twin.users), index, stars)

    list(threaded(work, range(0, twin.users, _BLOCK), n_jobs))
    table = sp.csr_array((stars, index, indptr), shape=twin[:2])
    table.has_sorted_indices = table.has_canonical_format = True
    return table


def _histories(twin: Twin) -> np.ndarray:
    """How many items each user rated, longest first, `ratings` in all."""
    least = max(1, min(_LEAST, twin.ratings // (2 * twin.users)))
    rank = (np.arange(twin.users) + 0.5) / twin.users
    excess, longest = rank**-_TAIL - 1.0, twin.items // 2

    def lengths(scale: float) -> np.ndarray:
        return np.minimum(least + scale * excess, longest).astype(np.int64)

    low, high = 0.0, 10.0 * twin.users * twin.items  # where all are at the longest
    for _ in range(100):  # bisection down to the last bit
        middle = (low + high) / 2
        low, high = (low, middle) if lengths(middle).sum() > twin.ratings else (middle, high)
    counts = lengths(low)
    short = np.flatnonzero(counts < longest)[: twin.ratings - counts.sum()]
    counts[short] += 1
    return counts


class _World(NamedTuple):
    """What decides who rates what, and how."""

    start: np.ndarray  # where each user's ratings begin
    first: np.ndarray  # and the items each rates whatever the taste,
    given: np.ndarray  # so that every item has a rating
    order: np.ndarray  # items by popularity
    twin: Twin
    quality: np.ndarray  # stars above the mean, of an item
    mild: np.ndarray  # and of a user
    of_user: np.ndarray  # tastes
    of_item: np.ndarray
    states: np.ndarray


def _world(twin: Twin, start: np.ndarray, seed: int) -> _World:
    rng = _rng(seed, "tastes")
    # A place among all ratings for every item: long histories hold more of the rare ones.
    places = np.sort(rng.choice(twin.ratings, twin.items, replace=False))
    given, order = rng.permutation(twin.items), rng.permutation(twin.items)
    quality, mild, of_user, of_item = (
        rng.standard_normal(shape, np.float32)
        for shape in (twin.items, twin.users, (twin.users, _TASTES), (twin.items, _TASTES))
    )
    of_item /= np.float32(np.sqrt(_TASTES))  # so that agreement has a spread of 1
    first, states = np.searchsorted(places, start), streams(seed, "histories", twin.users)
    return _World(
        start, first, given, order, twin, quality, mild, of_user, of_item, states
    )  # fmt: skip


@njit(nogil=True, cache=True)
def _agreement(world, user, item):
    total = 0.0
    for f in range(world.of_user.shape[1]):
        total += world.of_user[user, f] * world.of_item[item, f]
    return total


@njit(nogil=True, cache=True)
def _watch(world, user, seen, history):
    """The items of one user: popular ones likelier, those that agree with the taste too."""
    state, n, twin = world.states[user], 0, world.twin
    shift, power = twin.shift * twin.items, 1.0 - twin.exponent
    top, bottom = shift**power, (twin.items + shift) ** power
    for g in range(world.first[user], world.first[user + 1]):
        history[n] = world.given[g]
        seen[history[n]] = user
        n += 1
    for _ in range(_TRIES * twin.items):
        if n == len(history):
            break
        state, u = uniform(state)
        rank = (top + u * (bottom - top)) ** (1.0 / power) - shift  # the distribution, inverted
        item = world.order[min(int(rank), twin.items - 1)]
        state, u = uniform(state)
        doubt = np.exp(twin.picky * (_AGREED - _agreement(world, user, item)))
        if seen[item] != user and u * (1.0 + doubt) < 1.0:
            history[n] = item
            seen[item] = user
            n += 1
    rank = 0
    while n < len(history):  # few are left that this user could agree with
        if seen[world.order[rank]] != user:
            history[n] = world.order[rank]
            n += 1
        rank += 1
    history.sort()
    return state


@njit(nogil=True, cache=True)
def _rate(world, first, stop, index, stars):
    """The histories of some users, and how they liked them."""
    seen = np.full(world.twin.items, -1, np.int32)
    for user in range(first, stop):
        begin, end = world.start[user], world.start[user + 1]
        state = _watch(world, user, seen, index[begin:end])
        for p in range(begin, end):
            state, u = uniform(state)
            state, v = uniform(state)
            item = index[p]
            liked = _STARS + _QUALITY * world.quality[item] + _MILD * world.mild[user]
            liked += _LIKING * _agreement(world, user, item)
            liked += _MOOD * (u + v - 1.0)  # a triangle is near enough to a bell
            stars[p] = min(max(np.round(2.0 * liked) / 2.0, 0.5), 5.0)
