"""Threads on rows of their own: every sample once, no row shared, no loss of convergence."""

import faulthandler
import os
from contextlib import ExitStack
from itertools import chain, pairwise
from threading import Event

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from threadpoolctl import ThreadpoolController, threadpool_limits

from scaledsgd import MatrixCompleter
from scaledsgd.core.factors import Factors
from scaledsgd.core.observations import Observations
from scaledsgd.engines.cpu import crew, step_kernels, thread_blocks, turns
from scaledsgd.engines.cpu import engine as cpu
from scaledsgd.engines.cpu import sample_order as shuffle


@pytest.fixture(autouse=True, params=["copied", "in place"])
def even_few_samples_are_shared_out(request, monkeypatch):
    monkeypatch.setattr(cpu, "_WOKEN", 1)
    monkeypatch.setattr(cpu, "_SHORT", 1)
    monkeypatch.setattr(thread_blocks, "_TURN", 1)
    if request.param == "in place":
        monkeypatch.setattr(thread_blocks, "WIDE", 1)
        monkeypatch.setattr(shuffle, "GROUP", 1)


@pytest.fixture(autouse=True)
def nobody_waits_for_ever():
    """Threads that hang in compiled code cannot be interrupted otherwise."""
    faulthandler.dump_traceback_later(240, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


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
                if data.groups > 1:
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
    for n_jobs in (2, 4, 16):
        some = losses(n_jobs)
        assert np.abs(np.log(some) - alone.mean(axis=0)).max() < slack
    assert np.array_equal(losses(2), losses(2))


def stepped(kind: str, jobs: int, m: int = 30_000) -> tuple[np.ndarray, float]:
    """Two epochs in rounds of a few thousand samples: X, and the sum of squared slopes."""
    seen, shift = drawn(kind, m, 3)
    seen.targets[:] /= seen.targets.max()
    engine, rng = cpu.CpuEngine(jobs), np.random.default_rng(0)
    factors = Factors(0.1 * rng.standard_normal((510, 3)), None if not any(shift) else 310)
    data, squares = engine.samples(seen, shift, np.float64, rng), 0.0
    P, rates = np.full(3, 1e-2), np.ones(len(shift))
    for portion in (part for _ in range(2) for part in data.epoch(rng)):
        for at in range(0, m, 7000):
            squares += engine.run(factors, P, rates, seen.loss, portion[at : at + 7000])
    return factors.X, squares


@pytest.mark.parametrize("kind", ["symmetric", "two-sided", "triplets"])
def test_who_runs_a_turn_makes_no_difference(kind, monkeypatch):
    """Of 8 threads' turns: one thread's result, more threads than cores, and threads of which some
    never start."""

    def late(work, groups):
        state = turns.counters(groups)
        for thread in (5, 2):
            work(thread, 8, state)

    found = []
    for threads in (1, 3, 8):
        monkeypatch.setattr(crew, "cores", lambda threads=threads: threads)
        found.append(stepped(kind, 8))
    monkeypatch.setattr(crew.Crew, "together", lambda self, work, groups: late(work, groups))
    found.append(stepped(kind, 8))
    for X, squares in found[1:]:
        assert np.array_equal(X, found[0][0]) and squares == found[0][1]
    assert np.ptp(found[0][0]) > 0.1


@pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
def test_a_thread_that_fails_holds_nobody_up(error, monkeypatch):
    """It has taken a turn that others wait for, and does not end it."""
    monkeypatch.setattr(crew, "cores", lambda: 4)
    compiled, taken = step_kernels.kernel, Event()

    def kernel(*what, **options):
        step = compiled(*what, **options)

        def fails(thread, threads, state, *rest):
            if thread == 2:
                state[2 * 8] = 1  # group 2's first turn
                taken.set()
                raise error
            taken.wait()
            step(thread, threads, state, *rest)

        return fails

    monkeypatch.setattr(step_kernels, "kernel", kernel)
    with pytest.raises(error):
        stepped("two-sided", 4)


def test_neighbours_part_in_every_shard():
    seen, shift = drawn("two-sided", 60_000, 0)
    data = cpu.CpuEngine(2).samples(seen, shift, np.float64, np.random.default_rng(0))
    for begin, end in pairwise(data.starts):
        t = data.targets[begin:end]
        assert (np.abs(np.diff(t)) < 100).mean() < 0.05


def test_a_child_has_threads_of_its_own():
    """A fork has none of its parent's."""
    stepped("two-sided", 4)
    child = os.fork()
    if child == 0:
        os._exit(0 if np.isfinite(stepped("two-sided", 4)[1]) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_blas_has_its_threads_back_when_the_last_is_done():
    def limits() -> set[int]:
        found = ThreadpoolController().select(user_api="blas").info()
        return {library["num_threads"] for library in found}

    with threadpool_limits(2, user_api="blas"):
        with ExitStack() as first:
            first.enter_context(crew.one_thread_each())
            with crew.one_thread_each(alone=True):
                first.close()
                assert limits() == {1}
        assert limits() == {2}
