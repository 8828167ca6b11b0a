import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaledsgd.core.factors import Factors
from scaledsgd.core.linalg import NumpyAlgebra

sizes = st.tuples(st.integers(1, 120), st.integers(1, 120))


def factors(shape, rank, seed, spread, symmetric, dtype="float64"):
    """Factors whose directions differ in size by 10^spread."""
    made = Factors.start(shape, rank, seed=seed, symmetric=symmetric, dtype=dtype)
    made.X *= np.logspace(0, -spread, rank)
    return made


@given(shape=sizes, rank=st.integers(1, 7), seed=st.integers(0, 99), spread=st.floats(0, 4),
       symmetric=st.booleans())  # fmt: skip
def test_a_refresh_changes_the_basis_and_nothing_else(shape, rank, seed, spread, symmetric):
    shape = (max(shape),) * 2 if symmetric else shape
    if min(shape) < rank:
        return
    made = factors(shape, rank, seed, spread, symmetric)
    before = made.left @ made.right.T
    made.refresh()
    assert np.abs(made.left @ made.right.T - before).max() <= 1e-9 * np.abs(before).max()
    for side in made.sides:
        gram = side.T @ side
        assert np.abs(gram - np.diag(made.spectrum)).max() <= 1e-9 * made.spectrum[0]
    assert made.spectrum == pytest.approx(
        np.linalg.svd(before)[1][:rank], abs=1e-9 * made.spectrum[0]
    )
    assert made.refresh() < 1e-4  # already there: the frozen P is right


@given(d=st.integers(1, 3000), r=st.integers(1, 60), seed=st.integers(0, 9))
def test_blocked_algebra_is_algebra(d, r, seed):
    X = np.random.default_rng(seed).standard_normal((d, r)).astype(np.float32)
    G = NumpyAlgebra().gram(X)
    exact = X.astype(np.float64)
    assert G.dtype == np.float64
    assert np.allclose(G, exact.T @ exact, rtol=1e-12, atol=1e-9)
    T = np.random.default_rng(seed + 1).standard_normal((r, r))
    NumpyAlgebra().transform(X, T)
    assert np.allclose(X, exact @ T, rtol=1e-3, atol=1e-3)


@given(shape=sizes, more=sizes, symmetric=st.booleans(), seed=st.integers(0, 99))
def test_growing_gives_the_rows_one_would_have_started_with(shape, more, symmetric, seed):
    larger = (shape[0] + more[0], shape[1] + more[1])
    if symmetric:
        shape, larger = (shape[0],) * 2, (larger[0],) * 2
    kind = {"rank": 3, "seed": seed, "symmetric": symmetric}
    grown = Factors.start(shape, **kind).grow(larger)
    assert np.array_equal(grown.compact(), Factors.start(larger, **kind).X)
    assert grown.shape == larger


def test_coherence_runs_from_spread_out_to_one_row():
    assert Factors(np.full((8, 1), 0.5)).coherence() == pytest.approx(1)
    assert Factors(np.eye(8, 1)).coherence() == pytest.approx(8)
