"""Contestants that train on the same data, timed in turns: we, and whom else pip can install."""

from __future__ import annotations

import contextlib
import io
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import scipy.sparse as sp

from ... import ItemRanker, MatrixCompleter
from ...core.choices import Choices
from ...core.factors import Factors
from ...core.observations import Observations
from ...engines.cpu.engine import CpuEngine
from ...engines.cpu.permutations import UNCHANGED
from ...io.progress_bar import progress_bar
from ...training.choice_trainer import ChoicePolicy, ChoiceTrainer

USERS, ITEMS = 162_000, 62_000  # of MovieLens-25M
_SKEW = 3.0  # the item at a share u of the ranks is u^3 of the way down: half go to a fifth of them
_LONG = 1.0  # seconds that the measured epochs of a run take together, or as long as its start

Run = Callable[[int], object]  # train for so many epochs; what comes back may know its steps' time


class Pace(NamedTuple):
    """Medians over the turns."""

    epoch: float  # seconds
    steps: float  # of those, in the kernels (not known of others)

    def rate(self, samples: int) -> float:
        return samples / self.epoch


def skewed(samples: int, users: int = USERS, items: int = ITEMS, seed: int = 0):
    """Who rated what and how: users evenly, items unevenly.

    >>> user, item, stars = skewed(1000, users=10, items=100)
    >>> bool((item < 20).mean() > 0.5)
    True
    """
    rng = np.random.default_rng(seed)
    user = rng.integers(0, users, samples, dtype=np.int32)
    item = (items * rng.random(samples, dtype=np.float32) ** _SKEW).astype(np.int32)
    stars = rng.integers(1, 6, samples).astype(np.float32)
    return user, np.minimum(item, items - 1), stars


def comparisons(samples: int, items: int = ITEMS, seed: int = 0) -> Observations:
    """Random triplets."""
    rng = np.random.default_rng(seed)
    index = rng.integers(0, items, (samples, 3), dtype=np.int32)
    index[:, 1] = np.where(index[:, 0] == index[:, 1], (index[:, 1] + 1) % items, index[:, 1])
    targets = rng.integers(0, 2, samples).astype(np.float32)
    return Observations(index, targets, (items, items), "bpr", True)


def ours(seen: Observations, rank: int, threads: int = 1, **settings) -> Run:
    """This package, with the paper's P and a step so small that nothing happens to blow up."""
    make = ItemRanker if seen.loss.arity == 3 else MatrixCompleter
    steps = {"learning_rate": 1e-3 * min(seen.shape) / rank, "damping": 1.0}
    fixed = {"dtype": "float32", "random_state": 0, "evaluations": 0, "tol": 0.0}
    if make is MatrixCompleter:
        fixed["symmetric"] = seen.symmetric

    def run(epochs: int):
        model = make(rank, n_jobs=threads, epochs=epochs, **{**steps, **fixed, **settings})
        return model.fit(seen).trainer

    return run


def choosing(seen: Choices, rank: int, threads: int, loss: str) -> Run:
    """Epochs on choices with settings that are given: of the softmax, or of the squared loss."""

    def run(epochs: int):
        runner, policy = CpuEngine(threads), ChoicePolicy(loss=loss)
        start = runner.start_choices(seen.shape, rank, seed=0, scale=(0.1, 0.1), dtype="float32")
        trainer = ChoiceTrainer(start, policy, runner, np.random.default_rng(0))
        trainer.seen = seen.row_weights()
        trainer.warm_up(seen, epochs) if loss == "squared" else trainer.descend(seen, epochs)
        return trainer

    return run


def steps(seen: Observations, rank: int, threads: int = 1) -> Run:
    """The steps of an epoch and nothing else: a P that stays, samples in the order of the copy."""
    engine, rng = CpuEngine(threads), np.random.default_rng(0)
    factors = Factors.start(seen.shape, rank, symmetric=seen.symmetric, dtype="float32", seed=0)
    shift = [side * factors.begin for side in seen.loss.sides]
    data = engine.samples(seen, shift, np.float32, rng)
    data.way = UNCHANGED
    P, rates = np.full(rank, 1e-9), np.ones(seen.loss.arity)

    def run(epochs: int):
        for _ in range(epochs):
            for chunk in data.epoch(rng):
                engine.run(factors, P, rates, seen.loss, chunk)

    return run


# --- Others --------------------------------------------------------------------------------------


def _libmf(ratings, rank: int, threads: int) -> Run:
    with contextlib.redirect_stdout(io.StringIO()):  # it says where it lies
        from libmf import mf  # pyright: ignore[reportMissingImports]
    data = np.stack(ratings, axis=1).astype(np.float32)

    def run(epochs: int):
        mf.MF(k=rank, nr_threads=threads, nr_iters=epochs, eta=0.01, quiet=True).fit(data)

    return run


def _cornac(ratings, rank: int, threads: int) -> Run:
    from cornac.data import Dataset  # pyright: ignore[reportMissingImports]
    from cornac.models import MF  # pyright: ignore[reportMissingImports]

    user, item, stars = ratings
    names = {"uid_map": _named(USERS), "iid_map": _named(ITEMS)}
    columns = user.astype(np.int64), item.astype(np.int64), stars
    data = Dataset(USERS, ITEMS, **names, uir_tuple=columns)

    def run(epochs: int):
        MF(k=rank, max_iter=epochs, num_threads=threads, use_bias=False).fit(data)

    return run


def _named(count: int) -> dict[int, int]:
    return {number: number for number in range(count)}


def _implicit(ratings, rank: int, threads: int) -> Run:
    from implicit.cpu.bpr import (  # pyright: ignore[reportMissingImports]
        BayesianPersonalizedRanking,
    )

    user, item, _ = ratings
    shape = (USERS, ITEMS)
    data = sp.csr_matrix((np.ones(len(user), np.float32), (user, item)), shape=shape)

    def run(epochs: int):
        model = BayesianPersonalizedRanking(factors=rank, iterations=epochs, num_threads=threads)
        model.fit(data, show_progress=False)

    return run


# Whom to race in which loss, from the extra `bench`.
PEERS = {
    "squared": {"libmf": _libmf, "cornac": _cornac},
    "bpr": {"implicit": _implicit},
}


def missing() -> list[str]:
    """Which of them are not installed."""
    return [name for group in PEERS.values() for name in group if find_spec(name) is None]


# --- The race ------------------------------------------------------------------------------------


def race(runs: dict[str, Run], repeats: int = 3, text: str = "racing") -> dict[str, Pace]:
    """Seconds of an epoch, in steady state: that of several epochs more than one, divided by how
    many more. All take turns, so that a slow minute of the machine is everybody's.

    >>> pace = race({"sleeper": lambda epochs: time.sleep(0.01 * epochs)}, repeats=1)
    >>> bool(0.009 < pace["sleeper"].epoch < 0.03)
    True
    """
    more, found = {}, {name: [] for name in runs}
    with progress_bar(text, len(runs) * (repeats + 1)) as advance:
        for name, run in runs.items():
            run(1)  # compiles what there is to compile
            (short, _), (long, _) = _timed(run, 1), _timed(run, 3)
            epochs = 2 * max(_LONG, short) / max(long - short, 1e-3)
            more[name] = int(np.clip(np.ceil(epochs), 4, 100))
            advance(1)
        for _ in range(repeats):
            for name, run in runs.items():
                short, long = _timed(run, 1), _timed(run, 1 + more[name])
                found[name].append((np.array(long) - short) / more[name])
                advance(1)
    return {name: Pace(*np.median(paces, axis=0)) for name, paces in found.items()}


def _timed(run: Run, epochs: int) -> tuple[float, float]:
    clock = time.perf_counter()
    trainer = run(epochs)
    return time.perf_counter() - clock, getattr(trainer, "seconds", np.nan)
