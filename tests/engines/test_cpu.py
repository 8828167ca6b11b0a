"""What the CPU engine does beside the step."""

import numpy as np
import pytest
from numba import njit

from scaledsgd.core.factors import Factors
from scaledsgd.core.losses import LOSSES, sigmoid
from scaledsgd.core.observations import Observations
from scaledsgd.engines.base import Chunk, open_engine
from scaledsgd.engines.cpu import engine as cpu
from scaledsgd.engines.cpu.permutations import BLOCK, ordered, place


@pytest.fixture
def engine():
    return open_engine()


def test_a_row_that_is_not_finite_is_found_among_those_that_were_named(engine):
    X, index = np.ones((50, 3)), np.array([[1, 2], [3, 49]])
    assert engine.finite(X, index)
    X[49, 1] = np.inf
    assert not engine.finite(X, index)
    assert engine.finite(X, index[:1])
    assert not engine.finite(X, np.tile(index[:1], (99, 1)))  # then all of X is looked at


def test_the_inverse_is_damped(engine):
    X = np.random.default_rng(0).standard_normal((30, 3))
    for side, inverse in zip((X[:10], X[10:]), engine.inverse(Factors(X, 10), 2.0), strict=True):
        assert inverse == pytest.approx(np.linalg.inv(side.T @ side + 2 * np.eye(3)))


def test_fresh_columns_are_of_one_size_on_both_sides(engine):
    factors = Factors(np.full((5000, 4), 9.0), rows=4000)
    engine.sow(factors, 1, 3, 0.1, [0])
    assert (factors.X[:, 0] == 9).all() and (factors.X[:, 3] == 0).all()
    norms = [(side[:, 1:3] ** 2).sum(axis=0) for side in factors.sides]
    expected = 0.1**2 * np.sqrt(4000 * 1000)
    assert np.array(norms) == pytest.approx(np.full((2, 2), expected), rel=0.15)


def test_rows_are_put_where_they_take_up_few_lines(engine):
    X = np.random.default_rng(0).standard_normal((9, 3))[1:]
    held = engine.put(X)
    assert np.array_equal(held, X)
    assert held.ctypes.data % 64 == 0 and held.strides[0] == 32
    assert engine.put(held) is held


def test_each_row_of_a_sample_has_its_own_rate(engine):
    factors = Factors(np.array([[2.0], [3.0]]))
    chunk = Chunk(np.array([[0, 1]]), np.array([5.0]))
    engine.run(factors, np.ones(1), np.array([0.1, 0.01]), LOSSES["squared"], chunk)
    assert factors.X[:, 0] == pytest.approx([2 - 0.1 * 3, 3 - 0.01 * 2])


def test_squares_are_those_of_the_slopes_whatever_the_cap(engine):
    X, chunk = np.ones((2, 1)), Chunk(np.array([[0, 1]]), np.array([4.0]))
    for cap in (np.inf, 1e-3):
        squares = engine.run(
            Factors(X.copy()), np.ones(1), np.full(2, 0.1), LOSSES["squared"], chunk, cap
        )
        assert squares == pytest.approx(9)


def test_the_compiled_sigmoid_of_float32_is_the_sigmoid(engine):
    """By steps on rows of one column with target 0: each moves by the sigmoid of its score."""
    z = np.linspace(-40, 40, 4001)
    X = np.concatenate([z, np.ones(len(z))]).astype(np.float32)[:, None]
    index = np.stack([np.arange(len(z)), len(z) + np.arange(len(z))], axis=1)
    chunk = Chunk(index, np.zeros(len(z), np.float32))
    factors = Factors(X.copy())
    rates = np.array([0.0, 1.0])  # the ones move, by the sigmoid times z
    engine.run(factors, np.ones(1), rates, LOSSES["logistic"], chunk)
    moved = 1 - factors.X[len(z) :, 0].astype(np.float64)
    assert moved == pytest.approx(z * sigmoid(z), abs=2e-5)
    squares = engine.run(Factors(X), np.ones(1), 0 * rates, LOSSES["logistic"], chunk)
    assert squares == pytest.approx((sigmoid(z) ** 2).sum(), rel=1e-6)


@pytest.mark.parametrize("jobs", [1, 2, 4])
def test_a_fair_share_of_the_samples_comes_from_all_over(jobs, monkeypatch):
    monkeypatch.setattr(cpu, "_WOKEN", 1)
    d, m = 40, 20_000
    i, j = np.random.default_rng(0).integers(0, d, (2, m))
    seen = Observations.pairs(i, j, np.arange(float(m)), shape=(d, d))
    data = open_engine(n_jobs=jobs).samples(seen, [0, d], "float64", np.random.default_rng(1))
    some = data.fair(4000)
    assert len(some.targets) == pytest.approx(4000, abs=100)
    counts = np.bincount(some.index[:, 0], minlength=d)
    assert counts.min() > 50 and counts.max() < 150  # a hundred of each row


def test_what_a_round_reports_is_for_as_many_samples_as_were_asked_for(engine):
    """Samples are run in whole blocks; the sum of squares is scaled to what was wanted."""
    d, m = 30, 70_000
    index = np.random.default_rng(0).integers(0, d, (m, 2))
    seen = Observations.pairs(*index.T, np.full(m, 2.0), shape=(d, d))
    data = engine.samples(seen, [0, d], "float64", np.random.default_rng(1))
    factors = Factors(np.zeros((2 * d, 1)), d)
    for portion in data.epoch(np.random.default_rng(2)):
        for part in (portion[:1000], portion[1000:1033], portion[1033:]):
            squares = engine.run(factors, np.ones(1), np.zeros(2), LOSSES["squared"], part)
            assert squares == pytest.approx(4.0 * len(part))


def test_threads_that_share_p_add_up_what_each_has_seen(monkeypatch):
    monkeypatch.setattr(cpu, "_LEAST", 1)
    engine, X = open_engine(n_jobs=2), np.random.default_rng(0).standard_normal((8, 2))
    factors = Factors(X)
    P = engine.inverse(factors, 0.0)
    chunk = Chunk(np.array([[0, 1], [2, 3]], np.int32), np.array([3.0, -2.0]))  # one for each
    before = X.copy()
    engine.run_sampled(factors, P, 0.0, np.full(2, 0.3), LOSSES["squared"], chunk)
    assert (np.abs(X - before)[:4] > 1e-3).all()
    assert P[0] @ X.T @ X == pytest.approx(np.eye(2), abs=1e-9)


def test_a_p_that_breaks_down_is_the_inverse_of_what_x_has_become(engine):
    """The last step takes the only row of a direction to zero."""
    X = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    chunk = Chunk(np.array([[0, 0]], np.int32), np.array([0.0]))
    factors = Factors(X)
    P = engine.inverse(factors, 0.0)
    engine.run_sampled(factors, P, 0.0, np.ones(2), LOSSES["squared"], chunk)
    assert engine.repairs == 1
    assert np.array_equal(P, engine.inverse(factors, 0.0))


def test_blocks_and_the_samples_in_them_are_gone_through_in_an_order_of_their_own():
    orders = []
    for key in (7, 8):
        blocks = np.empty(500, np.int64)
        njit(ordered)(500, np.uint64(key), 0, blocks)
        orders.append([[place(b, c, BLOCK) for c in range(BLOCK)] for b in blocks.tolist()])
        places = np.array(orders[-1])
        assert sorted(places.ravel()) == list(range(500 * BLOCK))
        number, within = places // BLOCK, places % BLOCK
        assert (number == number[:, :1]).all()
        assert abs(np.corrcoef(number[:, 0], np.arange(500))[0, 1]) < 0.2
        assert len(np.unique(within[:, 0])) > BLOCK / 2  # where each begins,
        assert len(np.unique((within[:, 1] - within[:, 0]) % BLOCK)) > BLOCK / 4  # and its steps
    assert orders[0] != orders[1]
