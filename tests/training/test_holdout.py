"""What a run is judged by: enough samples, no more, none of them twice, of rows that are seen."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaledsgd.core.factors import Factors
from scaledsgd.core.losses import LOSSES
from scaledsgd.core.observations import Chunk, Observations
from scaledsgd.engines.base import open_engine
from scaledsgd.training.holdout import errors_by_rank, hold_out


def drawn(count: int, d: int = 1000, seed: int = 0) -> Observations:
    """Samples of an entry and with a target of their own each."""
    i, j = np.divmod(np.random.default_rng(seed).choice(d * d, count, replace=False), d)
    return Observations.pairs(i, j, np.arange(float(count)), shape=(d, d))


def test_three_in_a_hundred_are_held_out_within_limits():
    rng = np.random.default_rng(0)
    for count, held in ((599, 0), (600, 60), (1500, 60), (10_000, 300), (800_000, 20_000)):
        rest, some = hold_out(drawn(count), rng)
        assert (0 if some is None else len(some.targets)) == held
        assert len(rest) == count - held


@given(count=st.integers(700, 2500), seed=st.integers(0, 99), disposable=st.booleans())
def test_every_sample_is_trained_on_or_held_out(count, seed, disposable):
    seen = drawn(count, seed=seed)
    seen.disposable = disposable
    before = {y: tuple(row) for row, y in zip(seen.index.tolist(), seen.targets, strict=True)}
    rest, held = hold_out(seen, np.random.default_rng(seed))
    index, y = np.concatenate([rest.index, held.index]), np.append(rest.targets, held.targets)
    assert sorted(y) == sorted(before)
    assert all(before[t] == tuple(row) for row, t in zip(index.tolist(), y, strict=True))
    assert len(seen) == (len(rest) if rest is seen else count)


@given(seed=st.integers(0, 99), symmetric=st.booleans(), times=st.integers(1, 3))
def test_no_entry_is_both_trained_on_and_held_out(seed, symmetric, times):
    """Whether it is named again, or its mirror image is."""
    i, j = np.random.default_rng(seed).integers(0, 60, (2, 1500))
    y = (i * j).astype(float)
    i, j = (np.append(i, j), np.append(j, i)) if symmetric else (i, j)
    i, j = np.tile(i, times), np.tile(j, times)
    y = np.tile(np.append(y, y) if symmetric else y, times)
    seen = Observations.pairs(i, j, y, shape=(60, 60), symmetric=symmetric)
    rest, held = hold_out(seen, np.random.default_rng(seed))
    assert held is not None and len(held) + len(rest) == len(seen)

    def entries(index):
        return set(map(tuple, np.sort(index).tolist() if symmetric else index.tolist()))

    assert not entries(rest.index) & entries(held.index)
    assert len(entries(held.index)) >= 30 and len(held) <= len(seen) // 5


@pytest.mark.parametrize("symmetric", [True, False])
def test_only_rows_seen_as_often_as_the_median_judge(symmetric):
    rng = np.random.default_rng(0)
    i, j = (100 * rng.random((2, 4000)) ** 2).astype(int)  # the first are named most
    seen = Observations.pairs(i, j, np.ones(4000), shape=(100, 100), symmetric=symmetric)
    _, held = hold_out(seen, rng)
    both = (np.append(i, j),) * 2 if symmetric else (i, j)
    for named, column in zip(both, held.index.T, strict=True):
        counts = np.bincount(named, minlength=100)
        assert counts[column].min() >= np.median(counts)


def test_few_samples_of_well_seen_rows_judge_nothing():
    """All of one row and one column: the others are seen once, the median of what is left."""
    i = np.append(np.zeros(700, int), np.arange(1, 701))
    j = np.append(np.arange(1, 701), np.zeros(700, int))
    seen = Observations.pairs(i, j, np.ones(1400))
    rest, held = hold_out(seen, np.random.default_rng(0))
    assert held is None or len(np.unique(held.index, axis=0)) == len(held.targets)
    assert len(rest) == 1400 - (0 if held is None else len(held.targets))


def test_a_matrix_is_complete_when_every_entry_is_there_once():
    assert Observations.matrix(np.ones((3, 4))).complete()
    assert not Observations.pairs([0, 0, 1, 1], [0, 1, 0, 0], np.ones(4)).complete()
    i, j = np.triu_indices(5, 1)
    assert Observations.pairs(i, j, np.ones(10), symmetric=True).complete()  # no diagonal
    assert Observations.pairs(j, i, np.ones(10), symmetric=True).complete()
    i[3], j[3] = i[4], j[4]
    assert not Observations.pairs(i, j, np.ones(10), symmetric=True).complete()
    on = np.arange(5)  # the diagonal does not stand in for what is missing
    i, j = np.append(i, on), np.append(j, on)
    assert not Observations.pairs(i, j, np.ones(15), symmetric=True).complete()


@pytest.mark.parametrize("name", ["squared", "distance", "bpr"])
def test_errors_by_rank_are_those_of_fewer_columns(name):
    loss, rng, engine = LOSSES[name], np.random.default_rng(0), open_engine()
    X, y = rng.standard_normal((20, 4)), rng.random(50)
    index = np.stack([rng.permutation(20)[: loss.arity] for _ in range(50)])
    errors = errors_by_rank(Factors(X), engine, loss, Chunk(index, y))
    for k in range(1, 5):
        z = engine.scores(Factors(X[:, :k].copy()), index, loss)
        assert errors[:, k - 1] == pytest.approx(loss.slope(z, y))
