"""The order of samples: every one once an epoch, whatever the input's order was."""

from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from scaledsgd.core.factors import Factors
from scaledsgd.core.losses import LOSSES
from scaledsgd.core.observations import Chunk, Observations
from scaledsgd.engines.base import open_engine
from scaledsgd.engines.cpu.sample_order import Next, Shard, draw_key
from scaledsgd.engines.cuda.kernels import unavailable

GROUP = 65_536  # samples
needs_gpu = pytest.mark.skipif(bool(unavailable()), reason=unavailable())


def numbered(m: int) -> Observations:
    """Sample t names the rows t // 100 and t % 100 and has the target t."""
    t = np.arange(m)
    return Observations.pairs(t // 100, t % 100, t, shape=(m // 100 + 1, 100))


def epoch(data, rng) -> Chunk:
    return joined(chain.from_iterable(chunks(data, whole) for whole in data.epoch(rng)))


def chunks(data, whole):
    if not isinstance(whole, Next):
        return [whole]
    batches = chain.from_iterable(chain.from_iterable(data.sub_rounds(len(whole))))
    return (batch.chunk() for batch in batches)


def joined(dealt) -> Chunk:
    parts = [(host(chunk.index).copy(), host(chunk.targets).copy()) for chunk in dealt]
    return Chunk(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_gpu)])
@settings(max_examples=25, deadline=None)
@given(m=st.integers(1, 200_000), jobs=st.integers(1, 3), seed=st.integers(0, 99))
def test_an_epoch_holds_every_sample_once(device, m, jobs, seed):
    seen, rng = numbered(m), np.random.default_rng(seed)
    held = np.sort(rng.choice(m, m // 30, replace=False))
    rest, apart = seen.hold_out(held)
    data = open_engine(device, jobs).samples(rest, [0, 3000], "float64", rng)
    assert sorted(apart.targets) == list(held)
    for _ in range(2):
        index, targets = epoch(data, rng)
        t = targets.astype(int)
        assert np.array_equal(np.sort(np.concatenate([t, held])), np.arange(m))
        assert np.array_equal(index, np.stack([t // 100, 3000 + t % 100], axis=1))
    assert np.array_equal(seen.targets, np.arange(m))  # the caller's arrays are as they were


@pytest.mark.parametrize("m", [40_000, 10 * GROUP + 17])
def test_neighbours_part_and_no_place_is_preferred(m):
    rng = np.random.default_rng(5)
    data = open_engine("cpu").samples(numbered(m), [0, 0], "float64", rng)
    first, second = (epoch(data, rng).targets for _ in range(2))
    for order in (first, second):
        # A row's 100 samples are as far apart as chance has them: in the runs of 1000 samples that
        # the epoch is cut into, each row turns up as often as any.
        rows = (order[: m // 1000 * 1000] // 100).astype(int).reshape(-1, 1000)
        pairs = sum((np.bincount(run) ** 2).sum() - 1000 for run in rows) / rows.size
        assert pairs == pytest.approx(100 * 1000 / m, rel=0.25)
        # Where a sample stands says nothing of where it stood in the input.
        tenths = stats.contingency.crosstab(np.arange(m) * 10 // m, order * 10 // m).count
        assert stats.chi2_contingency(tenths).pvalue > 1e-4
    # Neither do neighbours of one epoch meet in the next.
    place = np.argsort(second)
    near = np.abs(np.diff(place[first.astype(int)]))
    assert (near < 100).mean() < 3 * 200 / min(m, GROUP)


def test_the_first_samples_of_the_copy_are_a_fair_draw():
    rng = np.random.default_rng(2)
    data = open_engine("cpu").samples(numbered(10 * GROUP), [0, 0], "float64", rng)
    assert stats.kstest(data.fair(GROUP).targets / (10 * GROUP), "uniform").statistic < 0.02


@pytest.mark.parametrize("wide", [True, False])
def test_threads_share_a_hand(wide):
    m = 2 * GROUP + 1000
    seen = numbered(m)
    deck = Shard(seen.index, seen.targets, np.random.default_rng(0), wide=wide)
    hands = list(deck.mini_batches(np.uint64(7), 0, m))[:-1]
    for hand in hands:
        parts = [part.chunk().targets for part in hand.split(3)]
        assert sum(map(len, hand.split(3))) == len(hand) > 0
        assert np.array_equal(np.concatenate(parts), hand.chunk().targets)
    X, loss = np.ones((m // 100 + 1, 2)), LOSSES["squared"]
    both = [Factors(X.copy()) for _ in range(2)]
    for chunk, factors in zip([hands[0], hands[0].chunk()], both, strict=True):
        open_engine("cpu").run(factors, np.full(2, 1e-9), np.ones(2), loss, chunk)
    assert np.array_equal(*(factors.X for factors in both))
    assert not np.array_equal(both[0].X, X)


@needs_gpu
@pytest.mark.parametrize("m", [20, 1000, 3 * GROUP + 100, 300 * GROUP + 5])
def test_cuda_deals_the_order_of_the_cpu(m):
    here, there = np.random.default_rng(3), np.random.default_rng(3)
    one, other = (numbered(m).hold_out(np.arange(0, m, 40))[0] for _ in range(2))
    deck = Shard(*one.take("float64"), here)
    cpu = joined(deck.dealt(draw_key(here), 0, len(deck)))
    cuda = epoch(open_engine("cuda").samples(other, [0, 0], "float64", there), there)
    assert np.array_equal(cpu.index, cuda.index)
    assert np.array_equal(cpu.targets, cuda.targets)


def host(array):
    return array if isinstance(array, np.ndarray) else array.get()
