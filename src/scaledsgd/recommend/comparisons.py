"""From who rated what to which item is nearer: similarities, compared three by three, or what came
next in a stream of events.

M_ij is how similar the ratings of items i and j are (similarity.py). Of the triplets in [d]^3
those with M_ij != M_ik are sampled uniformly without replacement, and Y says whether M_ij > M_ik.

Only a row of M exists at a time. Row i is the sum of the histories of those who rated i, and every
(j, k) is taken with the same small chance by jumping from one to the next in geometric gaps: no
draw can repeat, and given how many were taken, all sets of that size are equally likely.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from ..core.compiled import njit
from ..core.observations import Observations
from ..core.randomness import seeded, streams, threaded, uniform
from ..core.validation import refuse, whole
from ..engines.base import chosen
from ..engines.cpu.sample_order import dealer
from ..io.atomic import whole_folder
from ..io.progress_bar import progress_bar
from .similarity import SIMILARITIES as SIMILARITIES
from .similarity import TIE, Items, prepared, similar_row
from .similarity import similarities as similarities

_BLOCK = 64  # rows of M a thread takes at a time: enough blocks to keep all of them busy

# Rows looked at to learn how many triplets are comparable, and pairs tried in each. The share
# differs from row to row by about its own size, so 1024 rows tell it to a few percent.
_PILOT_ROWS, _PILOT_PAIRS = 1024, 1024

_SHUFFLED = 1 << 20  # comparisons put in order at a time

_TRIES = 16  # events of a stream that are drawn before any item will do

_VERSION = 2  # of the results: a change of any drawn number makes older caches strangers


class Triplets(NamedTuple):
    """Comparisons in the order of the BPR loss: a row (j, k, i) with target 1 says that item i is
    nearer to j than to k, with 0 that it is nearer to k."""

    train: np.ndarray
    train_targets: np.ndarray
    test: np.ndarray
    test_targets: np.ndarray
    columns: np.ndarray  # of the ratings: where each item came from

    @property
    def items(self) -> int:
        return len(self.columns)


def triplets(
    ratings, n_train: int, n_test: int, seed: int, *, similarity="cosine", fewer=False, cache=None,
    progress=False, n_jobs=None, device="cpu",
) -> Triplets:  # fmt: skip
    """Disjoint train and test comparisons from users x items ratings, in random order.

    Items without a rating are dropped. With `fewer`, all comparisons there are will do, divided in
    the same proportion. With `cache`, a folder, the result is kept there and opened as memory maps,
    the next time at once. A GPU (`device`) draws the same.

    >>> G = sp.csr_array([[5, 4, 0, 0], [0, 3, 0, 1.0]])
    >>> seen = triplets(G, n_train=6, n_test=4, seed=0)
    >>> seen.train.shape, seen.test.shape, seen.columns
    ((6, 3), (4, 3), array([0, 1, 3]))
    """
    if min(n_train, n_test) < 0 or n_train + n_test == 0:
        raise ValueError(f"{n_train} train and {n_test} test triplets: nothing to draw")
    table, columns = cleaned(ratings)
    where, _ = chosen(device)
    drawer = _on_gpu() if where == "cuda" else _on_cpu(progress, n_jobs)

    def make() -> Triplets:
        items, wanted = prepared(table, similarity), n_train + n_test
        index, y = _sampled(items, wanted, seed, fewer, drawer, n_jobs)
        cut = n_train if len(y) >= wanted else n_train * len(y) // wanted
        return Triplets(index[:cut], y[:cut], index[cut:wanted], y[cut:wanted], columns)

    if cache is None:
        return make()
    settings = n_train, n_test, seed, similarity, fewer
    return _stored(Path(cache), _key(table, columns, settings), make)


def cleaned(ratings) -> tuple[sp.csr_array, np.ndarray]:
    """The ratings of the items that have any, and which columns those were.

    >>> cleaned(np.array([[0.0, 2.0], [0.0, 1.0]]))[1]
    array([1])
    """
    table = sp.csr_array(ratings, dtype=np.float32, copy=True)
    table.sum_duplicates()
    table.eliminate_zeros()
    if not np.isfinite(table.data).all():
        raise ValueError("a rating is not a finite number")
    d = np.shape(ratings)[1]
    columns = np.flatnonzero(np.bincount(table.indices, minlength=d))
    if not len(columns):
        raise ValueError("no ratings: there is nothing to compare")
    return (table if len(columns) == d else table[:, columns]), columns


@njit(nogil=True, cache=True)
def _compared(items, rows, states, chance):
    """Of every triplet (i, j, k) with i among the rows, taken with that chance, the comparable."""
    d = len(items.weight)
    pairs = d * d
    gap = 1.0 / np.log1p(-chance)  # -0 for a chance of 1: every pair
    row, common = np.empty(d), np.empty(d)
    room = 64 + int(chance * pairs * len(rows) / 2)  # a first guess
    index, y, n = np.empty((room, 3), np.int32), np.empty(room, np.uint8), 0
    for at in range(len(rows)):
        similar_row(items, rows[at], row, common)
        state, pair = states[at], -1
        while True:
            state, u = uniform(state)
            skip = np.floor(np.log(u) * gap)
            if skip >= pairs - 1 - pair:
                break
            pair += 1 + int(skip)
            j = pair // d
            k = pair - j * d
            a, b = row[j], row[k]
            if abs(a - b) <= TIE * (abs(a) + abs(b)):
                continue
            if n == len(y):
                index, y = np.concatenate((index, index)), np.concatenate((y, y))
            index[n, 0], index[n, 1], index[n, 2], y[n] = j, k, rows[at], a > b
            n += 1
    return index[:n].copy(), y[:n].copy()


class _Drawer(NamedTuple):
    """Who does the work."""

    passed: Callable  # items, rows, states, chance -> comparisons, in parts
    gathered: Callable  # parts, a state -> all of them in one random order


def _on_cpu(progress: bool, n_jobs) -> _Drawer:
    passed = partial(_passed, progress=progress, n_jobs=n_jobs)
    return _Drawer(passed, partial(_gathered, progress=progress, n_jobs=n_jobs))


def _on_gpu() -> _Drawer:
    from . import comparisons_cuda as ratings_cuda

    return _Drawer(ratings_cuda.passed, ratings_cuda.gathered)


def _sampled(items: Items, wanted: int, seed: int, fewer: bool, drawer: _Drawer, n_jobs):
    """At least that many comparisons, or an error that says how many there are, unless fewer will
    do."""
    d = len(items.weight)
    chance = _chance(items, wanted, seed, n_jobs)
    attempt = 0
    while True:
        # Numbers of its own for every attempt: none is chosen for what came of an earlier one.
        states = streams(seed, f"triplets {attempt}", d)
        parts = drawer.passed(items, np.arange(d), states, chance)
        found = sum(len(y) for _, y in parts)
        if found >= wanted or (fewer and found and chance == 1.0):
            return drawer.gathered(parts, *streams(seed, "order of triplets", 1))
        if chance == 1.0:
            raise ValueError(f"{wanted:,} comparisons of {d:,} items wanted, {found:,} exist")
        chance = min(1.0, chance * max(2.0, 1.2 * wanted / (found + 1)))
        attempt += 1


def _passed(items: Items, rows, states, chance: float, progress: bool, n_jobs) -> list:
    blocks = [slice(a, a + _BLOCK) for a in range(0, len(rows), _BLOCK)]

    def work(block):
        return _compared(items, rows[block], states[block], chance)

    parts = []
    with progress_bar("comparing items", len(blocks), progress) as advance:
        for part in threaded(work, blocks, n_jobs):
            parts.append(part)
            advance(1)
    return parts


def _gathered(parts: list, key: np.uint64, progress: bool, n_jobs):
    """All parts in the random order that the key names."""
    index, y = np.concatenate([part for part, _ in parts]), np.concatenate([y for _, y in parts])
    parts.clear()
    out, out_y, (shuffle, *_) = np.empty_like(index), np.empty_like(y), dealer(3)
    blocks = [slice(a, a + _SHUFFLED) for a in range(0, len(y), _SHUFFLED)]

    def work(block):
        shuffle(index, y, key, block.start, out[block], out_y[block])

    with progress_bar("shuffling", len(blocks), progress) as advance:
        for _ in threaded(work, blocks, n_jobs):
            advance(1)
    return out, out_y


def _chance(items: Items, wanted: int, seed: int, n_jobs) -> float:
    """With which chance to take a triplet so that enough of them are comparable."""
    d = len(items.weight)
    count = min(d, _PILOT_ROWS)
    rows = np.random.default_rng(seeded(seed, "pilot rows")).choice(d, count, replace=False)
    tried = min(1.0, _PILOT_PAIRS / d**2)
    parts = _passed(items, rows, streams(seed, "pilot pairs", count), tried, False, n_jobs)
    found = np.array([len(y) for _, y in parts])  # by blocks of rows
    # Four standard errors down for the rows not looked at; a guess that is still too high is made
    # again, and half a hit where there was none keeps it finite.
    low = max(found.sum() - 4 * found.std() * np.sqrt(len(found)), found.sum() / 2, 0.5)
    comparable = low / (count * tried) * d
    # Five standard deviations up for the luck of the draw.
    return float(min(1.0, (wanted + 5 * np.sqrt(wanted)) / comparable))


def _key(table: sp.csr_array, columns: np.ndarray, settings: tuple) -> str:
    """A name for the result: all that it depends on, hashed."""
    digest = hashlib.sha256(repr((_VERSION, table.shape, settings)).encode())
    for array in (table.indptr.astype(np.int64), table.indices, table.data, columns):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:32]


def _stored(folder: Path, key: str, make: Callable[[], Triplets]) -> Triplets:
    """What `make` returns, from the folder of that key or put there."""
    final = folder / key
    if not final.is_dir():
        made = make()
        with whole_folder(final) as part:
            for name, array in made._asdict().items():
                np.save(part / f"{name}.npy", array)
    return Triplets(*(np.load(final / f"{name}.npy", mmap_mode="r") for name in Triplets._fields))


@njit(nogil=True, cache=True)
def _successions(previous, users, items, count, seed, out):
    """Fills `out` with rows (j, k, i): the user went from i to j, and k is another item, of the
    same events if that can be had. Returns how many there are."""
    np.random.seed(seed)
    found = 0
    for t in range(len(users)):
        i, j = previous[users[t]], items[t]
        previous[users[t]] = j
        if i < 0 or i == j:
            continue
        for _ in range(_TRIES):
            k = np.int64(items[np.random.randint(len(items))])
            if k != i and k != j:
                break
        else:
            low, high = (i, j) if i < j else (j, i)
            k = np.random.randint(count - 2)
            k += k >= low
            k += k >= high
        out[found, 0], out[found, 1], out[found, 2] = j, k, i
        found += 1
    return found


def successions(previous: np.ndarray, users, items, shape, *, seed: int = 0) -> Observations | None:
    """Comparisons "the item before is nearer to the one after it than to another", among items.

    Events are in the order of time. `previous` holds the row of the last item of each user, -1
    where there was none, and is brought up to date in place; refused events leave it as it is. An
    item that is chosen twice in a row says nothing. Another item is that of any of the same events,
    or any at all where they have no other. None if no comparison came of it.

    >>> last = np.array([-1, 4], np.int32)
    >>> after = successions(last, [0, 1, 0], [2, 3, 1], shape=(5, 5))
    >>> after.index[:, [2, 0]], last  # from 4 to 3, and from 2 to 1
    (array([[4, 3],
           [2, 1]], dtype=int32), array([1, 3], dtype=int32))
    """
    count = int(shape[1])
    users, items = whole(users, "user"), whole(items, "item")
    if len(users) != len(items):
        raise ValueError(f"{len(users)} users and {len(items)} items do not pair up")
    if len(users) == 0:
        raise ValueError("no events: the input is empty")
    for rows, limit, what in ((users, len(previous), "user"), (items, count, "item")):
        wrong = (rows < 0) | (rows >= limit)
        refuse(wrong, rows, f"{what} {{}} is not one of {limit}", unit="event")
    out = np.empty((len(users), 3), np.int32 if 2 * count < 2**31 else np.int64)
    if count < 3:  # there is no third item to compare with
        previous[users] = items
        return None
    found = _successions(previous, users, items, count, seed, out)
    if not found:
        return None
    ones = np.ones(found, np.float32)
    return Observations(out[:found], ones, (count, count), "bpr", symmetric=True)
