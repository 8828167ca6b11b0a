"""Other ways to recommend, each with the grid that its settings are chosen from: popularity,
item-kNN, EASE, and the ALS and BPR of implicit and cornac."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from scipy.linalg import get_lapack_funcs
from threadpoolctl import threadpool_limits

from ...io.progress_bar import progress_bar
from ...recommend.search import Lists, top_k
from .recommend_data import Data, K, Table

EASE_ITEMS = 20_000  # a matrix of items x items is inverted: 1.6 GB and minutes
_BLOCK = 1 << 24  # scores held at a time


class How(NamedTuple):
    """What is the same for all contestants."""

    rank: int = 64
    seed: int = 0
    jobs: int = 2
    quick: bool = False
    peers: tuple[str, ...] = ("popularity",)
    ease_items: int = EASE_ITEMS
    device: str = "cpu"  # where ours is trained, and EASE's matrix is inverted

    def settings(self) -> dict[str, Any]:
        """Of our model, whose defaults are not touched but to be quick."""
        shared = {"rank": self.rank, "n_jobs": self.jobs, "device": self.device}
        shared |= {"random_state": self.seed}
        return shared | ({"epochs": 6} if self.quick else {})


# A model takes users and what each of them had, and returns the first K items of each.
Model = Callable[[np.ndarray, Lists], np.ndarray]


def by_vectors(users: np.ndarray, items: np.ndarray) -> Model:
    return lambda who, seen: top_k(users[who], items, K, seen)[0]


def by_scores(scores: Callable[[np.ndarray], np.ndarray], items: int) -> Model:
    """From scores of all items, for some users at a time."""

    def found(who: np.ndarray, seen: Lists) -> np.ndarray:
        start, had = seen
        best, step = [], max(1, _BLOCK // items)
        for at in range(0, len(who), step):
            S = scores(who[at : at + step]).astype(np.float32)
            ends = start[at : at + len(S) + 1]
            S[np.repeat(np.arange(len(S)), np.diff(ends)), had[ends[0] : ends[-1]]] = -np.inf
            top = np.argpartition(-S, min(K, items - 1), axis=1)[:, :K] if items > K else (
                np.tile(np.arange(items), (len(S), 1)))  # fmt: skip
            top = np.take_along_axis(
                top, np.argsort(-np.take_along_axis(S, top, 1), axis=1, kind="stable"), 1
            )
            best.append(np.where(np.isinf(np.take_along_axis(S, top, 1)), -1, top))
        return np.concatenate(best)

    return found


def popularity(train: Table, how: How) -> Model:
    counts = np.bincount(train.indices, minlength=train.shape[1])
    return by_vectors(np.ones((train.shape[0], 1)), counts[:, None].astype(np.float64))


def item_knn(train: Table, how: How, *, k: int, shrink: float) -> Model:
    """The k items most similar to each: n_ij / (sqrt(n_i n_j) + shrink)."""
    X: Any = sp.csc_array(train, dtype=np.float32)
    items, size = X.shape[1], np.sqrt(np.diff(X.indptr)).astype(np.float32)
    k, step, parts = min(k, items - 1), max(1, _BLOCK // items), []
    for at in range(0, items, step):
        S = (X[:, at : at + step].T @ X).toarray()
        S /= np.maximum(size[at : at + step, None] * size + shrink, 1e-9)
        S[np.arange(len(S)), np.arange(at, at + len(S))] = 0.0
        near = np.argpartition(-S, k, axis=1)[:, :k]
        row = np.repeat(np.arange(len(S)), k)
        parts.append(
            sp.csr_array((S[row, near.ravel()], (row, near.ravel())), shape=(len(S), items))
        )
    W, X = sp.csr_array(sp.vstack(parts).T), X.tocsr()
    return by_scores(lambda who: (X[who] @ W).toarray(), items)


def ease(train: Table, how: How, *, ridge: float) -> Model:
    """The linear model of Steck (2019): each item from all others, in closed form."""
    X: Any = sp.csr_array(train, dtype=np.float32)
    G = np.asfortranarray((X.T @ X).toarray())
    G[np.diag_indices_from(G)] += ridge
    G = _inverse(G) if how.device == "cpu" else _inverse_there(G)
    G /= -np.diag(G).copy()
    G[np.diag_indices_from(G)] = 0.0
    return by_scores(lambda who: X[who] @ G, X.shape[1])


def _inverse(G: np.ndarray) -> np.ndarray:
    """Of a positive matrix: in its own memory, and for a third of what an LU takes."""
    factor, invert = get_lapack_funcs(("potrf", "potri"), (G,))
    G, _ = factor(G, lower=1, overwrite_a=1, clean=0)
    G, _ = invert(G, lower=1, overwrite_c=1)
    for at in range(0, len(G), 1024):  # the upper half from the lower
        G[at : at + 1024, at:] = np.triu(G[at:, at : at + 1024].T, 0)
        block = G[at : at + 1024, at : at + 1024]
        block += np.triu(block, 1).T
    return G


def _inverse_there(G: np.ndarray) -> np.ndarray:
    """By the GPU, in seconds where two cores take minutes."""
    cupy: Any = import_module("cupy")
    return cupy.linalg.inv(cupy.asarray(G)).get()


def implicit_peer(train: Table, how: How, *, module: str, name: str, **settings: float) -> Model:
    """One of implicit's models."""
    peer = getattr(import_module(f"implicit.cpu.{module}"), name)
    model = peer(factors=how.rank, num_threads=how.jobs, random_state=how.seed, **settings)
    model.fit(sp.csr_matrix(train, dtype=np.float32), show_progress=False)
    return by_vectors(model.user_factors, model.item_factors)


implicit_als = partial(implicit_peer, module="als", name="AlternatingLeastSquares")
implicit_bpr = partial(implicit_peer, module="bpr", name="BayesianPersonalizedRanking")


def cornac_bpr(
    train: Table, how: How, *, learning_rate: float, lambda_reg: float, max_iter: int
) -> Model:
    from cornac.data import Dataset  # pyright: ignore[reportMissingImports]
    from cornac.models import BPR  # pyright: ignore[reportMissingImports]

    table: Any = sp.coo_array(train)
    users, items = (dict(zip(range(n), range(n), strict=True)) for n in train.shape)
    columns = (*(place.astype(np.int64) for place in table.coords), np.ones(table.nnz, np.float32))
    data = Dataset(*train.shape, uid_map=users, iid_map=items, uir_tuple=columns)
    # With a seed of its own it would run on one thread.
    model: Any = BPR(
        k=how.rank, learning_rate=learning_rate, lambda_reg=lambda_reg, max_iter=max_iter,
        num_threads=how.jobs,
    )  # fmt: skip
    np.random.seed(how.seed)
    model.fit(data)
    one = np.ones((train.shape[0], 1), np.float32)
    return by_vectors(
        np.hstack([model.u_factors, one]), np.hstack([model.i_factors, model.i_biases[:, None]])
    )


class Peer(NamedTuple):
    """A contestant, whose package it is, and the settings that it is tried with."""

    fit: Callable[..., Model]
    package: str | None = None
    grid: dict[str, tuple] = {}  # noqa: RUF012 (never changed)

    def settings(self, quick: bool) -> list[dict]:
        """All of the grid; the first and the last of each setting where it has to be quick."""
        values = ({axis[0], axis[-1]} if quick else axis for axis in self.grid.values())
        return [dict(zip(self.grid, at, strict=True)) for at in product(*values)]

    def skipped(self, data: Data, how: How) -> str:
        """Why it does not take part, if it does not."""
        if self.package and find_spec(self.package) is None:
            return f"{self.package} is not installed (pip install 'scaledsgd[bench]')"
        items = data.train.shape[1]
        if self.fit is ease and items > how.ease_items:
            return f"{items:,} items are more than --ease-items {how.ease_items:,}"
        return ""


PEERS = {
    "popularity": Peer(popularity),
    "item-kNN": Peer(item_knn, None, {"k": (20, 100, 400), "shrink": (0.0, 10.0, 100.0)}),
    "EASE": Peer(ease, None, {"ridge": (30.0, 100.0, 300.0, 1000.0)}),
    "implicit ALS": Peer(
        implicit_als, "implicit",
        {"regularization": (0.01, 1.0, 10.0, 30.0, 100.0), "alpha": (1.0, 10.0, 30.0),
         "iterations": (8, 15)},
    ),
    "implicit BPR": Peer(
        implicit_bpr, "implicit",
        {"learning_rate": (0.01, 0.03, 0.1), "regularization": (0.001, 0.01, 0.03),
         "iterations": (50, 100, 200)},
    ),
    "cornac BPR": Peer(
        cornac_bpr, "cornac",
        {"learning_rate": (0.01, 0.03, 0.1), "lambda_reg": (0.003, 0.01, 0.03),
         "max_iter": (100, 300)},
    ),
}  # fmt: skip


class Outcome(NamedTuple):
    """What a contestant reaches on the test part, in which time and with what settings."""

    measures: dict[str, float]
    seconds: float  # of the final fit
    search: float = 0.0  # of finding the settings
    settings: dict = {}  # noqa: RUF012 (never changed)
    tried: tuple[dict, ...] = ()  # settings with the NDCG of the validation part


_RUNS, SHORT = 9, 1.0  # fits of which the median is told, and seconds that they take at most


def timed(fit: Callable[[], Any], told: Callable[[Any], float] | None = None) -> tuple[Any, float]:
    """What is fitted, and the seconds that it took, or that it tells: the median of several fits
    where those are short, since one of some milliseconds says little."""
    begun, model, taken = time.perf_counter(), None, []
    while not taken or (len(taken) < _RUNS and time.perf_counter() - begun < SHORT):
        clock = time.perf_counter()
        model = fit()
        taken.append(told(model) if told else time.perf_counter() - clock)
    return model, float(np.median(taken))


def contest(name: str, data: Data, how: How) -> Outcome:
    """Choose settings on the validation part, train on all training choices, look at the test."""
    peer, held, tried, clock = PEERS[name], data.held_out(how.seed), [], time.perf_counter()
    grid = peer.settings(how.quick)
    # Implicit has threads of its own, in each of which BLAS must not start others.
    with threadpool_limits(1 if peer.package else how.jobs, "blas"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with progress_bar(name, len(grid)) as advance:
            for settings in grid if len(grid) > 1 else ():
                model = peer.fit(held.train, how, **settings)
                ndcg = held.measures(model(held.users, held.seen(held.users)))[f"ndcg@{K}"]
                tried.append(settings | {f"ndcg@{K}": ndcg})
                advance(1)
        best = max(tried, key=lambda one: one[f"ndcg@{K}"], default={})
        settings = {key: best[key] for key in peer.grid} if best else {}
        search = time.perf_counter() - clock
        model, seconds = timed(lambda: peer.fit(data.train, how, **settings))
        found = model(data.users, data.seen(data.users))
    return Outcome(data.measures(found), seconds, search if tried else 0.0, settings, tuple(tried))
