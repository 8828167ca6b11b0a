"""Threads on rows of their own: every sample once, no row shared, no loss of convergence."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaledsgd import MatrixCompleter
from scaledsgd.core.observations import Observations
from scaledsgd.engines.cpu import engine as cpu
from scaledsgd.engines.cpu import sample_order as shuffle
from scaledsgd.engines.cpu import thread_blocks


@pytest.fixture(autouse=True, params=["copied", "in place"])
def even_few_samples_are_shared_out(request, monkeypatch):
    monkeypatch.setattr(cpu, "_LEAST", 1)
    if request.param == "in place":
        monkeypatch.setattr(thread_blocks, "WIDE", 1)
        monkeypatch.setattr(shuffle, "GROUP", 1)


def drawn(kind: str, m: int, seed: int) -> tuple[Observations, list[int]]:
    """Samples with their number as target, and where the sides begin."""
    rng, t = np.random.default_rng(seed), np.arange(float(m))
    if kind == "triplets":
        index = (199 * rng.random((m, 3)) ** 2).astype(np.int32)
        index[:, 1] += index[:, 1] >= index[:, 0]  # nothing is compared with itself
        return Observations(index, t / m, (200, 200), "bpr", True), [0, 0, 0]
    index = (np.array([300, 200]) * rng.random((m, 2)) ** 2).astype(np.int32)
    if kind == "symmetric":
        return Observations(np.sort(index % 200), t, (200, 200), "squared", True), [0, 0]
    return Observations(index, t, (300, 200), "squared", False), [0, 310]


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["symmetric", "two-sided", "triplets"]), st.integers(2, 9),
    st.integers(1, 60_000), st.integers(1, 4), st.integers(0, 99),
)  # fmt: skip
def test_every_sample_has_its_turn_and_no_row_two_masters(kind, jobs, m, pieces, seed):
    seen, shift = drawn(kind, m, seed)
    data = cpu.CpuEngine(jobs).samples(seen, shift, np.float64, np.random.default_rng(seed))
    rng, left, told = np.random.default_rng(1), m, []
    for whole in data.epoch(rng):
        for piece in range(pieces, 0, -1):
            count, left = (left, 0) if piece == 1 else (left // piece, left - left // piece)
            for tasks in data.sub_rounds(count):
                groups = [[batch.chunk() for batch in part] for part in tasks]
                told += [some for part in groups for some in part]
                if data.groups > 1 and (kind != "triplets" or jobs in (2, 4)):
                    named = [row for part in groups for row in {*chain(*(i.flat for i, _ in part))}]
                    assert len(set(named)) == len(named)
        assert len(whole) == m
    index, t = (np.concatenate(column) for column in zip(*told, strict=True))
    order = np.argsort(t)
    assert np.array_equal(t[order], seen.targets)
    assert np.array_equal(index[order], seen.index + np.array(shift))


def test_threads_learn_like_one_and_always_the_same():
    """Of a matrix with singular values from 1 to 1e-3, entry by entry."""
    rng = np.random.default_rng(3)
    d, rank, n = 3000, 4, 200_000
    Z = rng.standard_normal((d, rank)) * np.logspace(0, -1.5, rank)
    i, j = rng.integers(0, d, (2, n))
    seen = Observations.pairs(i, j, (Z[i] * Z[j]).sum(1), shape=(d, d), symmetric=True)

    def losses(n_jobs, seed=0):
        model = MatrixCompleter(
            rank, symmetric=True, epochs=6, n_jobs=n_jobs, random_state=seed, tol=0
        )
        return np.array([record["loss"] for record in model.fit(seen).history_.records])

    alone = np.log([losses(1, seed) for seed in range(3)])
    slack = 0.1 * np.abs(alone[:, -1] - alone[:, 0]).mean() + np.ptp(alone, axis=0).max()
    # (In place decks are run in whole blocks: of 16 threads' small ones none for long, then many.)
    for n_jobs in (2, 4, 16) if shuffle.GROUP > 1 else (2, 4):
        some = losses(n_jobs)
        assert np.abs(np.log(some) - alone.mean(axis=0)).max() < slack
    assert np.array_equal(losses(2), losses(2))
