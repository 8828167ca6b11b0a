import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scaledsgd.core.factors import Factors
from scaledsgd.core.linalg import LINE, NumpyAlgebra, aligned, balance, eigenbasis

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
        np.linalg.svd(before, compute_uv=False)[:rank], abs=1e-9 * made.spectrum[0]
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


@pytest.mark.parametrize("symmetric", [True, False])
def test_the_condition_number_is_that_of_the_matrix(symmetric):
    made = factors((40, 40), 4, 0, 4, symmetric)
    values = np.linalg.svd(made.left @ made.right.T)[1]
    made.refresh()
    assert made.condition_number == pytest.approx(values[0] / values[3], rel=1e-4)
    assert made.condition_number > 1e7
    assert not made.singular


@pytest.mark.parametrize("symmetric", [True, False])
def test_a_direction_that_is_not_there_is_told_and_does_no_harm(symmetric):
    made = factors((40, 40), 4, 0, 0, symmetric)
    for side in made.sides:
        side[:, 3] = side[:, 0]
    before = made.left @ made.right.T
    for _ in range(2):
        made.refresh()
        assert made.singular or not symmetric  # each side is held at its floor before they meet
        assert (made.spectrum >= 0).all() and np.isfinite(made.condition_number)
        assert np.abs(made.left @ made.right.T - before).max() < 1e-9
    assert (made.singular_values() >= 0).all()


def test_factors_that_blew_up_are_not_rotated():
    made = factors((9, 9), 2, 0, 0, False)
    made.right[3, 1] = np.nan
    with pytest.raises(FloatingPointError):
        made.refresh()


def test_without_a_rotation_only_the_spectrum_is_taken():
    made = factors((30, 20), 3, 0, 1, False)
    before = made.X.copy()
    assert made.refresh(rotate=False) == np.inf  # there was no spectrum to have moved from
    assert np.array_equal(made.X, before)
    assert made.spectrum == pytest.approx(np.linalg.svd(made.left @ made.right.T)[1][:3])


def test_how_far_p_is_off_is_seen_by_the_p_in_use_and_on_both_sides():
    made = factors((30, 20), 3, 0, 1, False)
    made.refresh()
    made.right[:] *= 1.1
    off = 1.1**2 - 1
    grown = Factors(made.X.copy(), made.rows, spectrum=made.spectrum)
    assert grown.refresh(frozen=0.5 / made.spectrum) == pytest.approx(off / 2)
    assert made.refresh() == pytest.approx(off)


def test_a_glance_spares_a_refresh_while_p_is_about_right():
    d = 8 * 2048  # rows from which on one in eight is enough to tell
    made = factors((d, d), 2, 0, 1, True)
    made.refresh()
    algebra = NumpyAlgebra()
    assert np.abs(algebra.sketch(made.X) - algebra.gram(made.X)).max() < 0.1 * made.spectrum[0]
    before = made.spectrum
    made.X *= 1.01
    assert made.refresh(glance=True) < 0.1
    assert made.spectrum is before
    made.refresh()
    assert made.spectrum == pytest.approx(1.01**2 * before)
    made.X *= 1.2
    assert made.refresh(glance=True) > 0.3
    assert made.spectrum == pytest.approx(1.01**2 * 1.2**2 * before)


def test_few_rows_are_all_looked_at():
    """One in eight would show nothing here."""
    rows = np.random.default_rng(0).standard_normal((20, 2))
    made = Factors(np.repeat(rows, 8, axis=0))
    made.refresh()
    before = made.spectrum
    moved = np.arange(160) % 8 > 0
    made.X[moved] *= 1.5
    assert made.refresh(glance=True) > 0.1
    assert made.spectrum == pytest.approx((1 + 7 * 1.5**2) / 8 * before)


def test_rows_begin_a_line_wherever_memory_was_found():
    held = [aligned(rows, 3, np.float64) for rows in range(1, 50)]
    assert {X.ctypes.data % LINE for X in held} == {0}
    assert {X.strides[0] for X in held} == {32}


@pytest.mark.parametrize("size", [1e-160, 1e-100, 1, 1e100, 1e160])
@pytest.mark.parametrize("least", [1, 1e-3, 1e-6])
def test_balancing_holds_whatever_the_size_and_the_condition(size, least):
    A, B = np.random.default_rng(0).standard_normal((2, 40, 5)) * np.geomspace(1, least, 5)
    T, U, sigma = balance(size * A.T @ A, size * B.T @ B)
    assert np.allclose(T @ U.T, np.eye(5), atol=1e-6)
    T /= np.sqrt(sigma)
    assert np.allclose(T.T @ (size * A.T @ A) @ T, np.eye(5), atol=1e-3)
    exact = np.linalg.svd(A @ B.T, compute_uv=False)[:5]
    assert sigma[:3] / size == pytest.approx(exact[:3], rel=1e-6)


def test_eigenvalues_below_zero_are_rounding():
    assert eigenbasis(np.diag([-1e-17, 4.0]))[1].tolist() == [4.0, 0.0]


def test_growing_never_loses_a_row():
    made = factors((5, 9), 2, 0, 0, False)
    before = made.left.copy(), made.right.copy()
    for shape, expected in (((3, 3), (5, 9)), ((9, 3), (9, 9))):
        grown = made.grow(shape)
        assert grown.shape == expected
        assert np.array_equal(grown.left[:5], before[0])
        assert np.array_equal(grown.right[:9], before[1])


def test_room_that_x_has_left_is_not_grown_into():
    """An engine may put X elsewhere: what lies in the old room is out of date."""
    made = factors((5, 9), 2, 0, 0, False).grow((6, 10))
    made.X = 2 * made.X
    grown = made.grow((7, 11))
    assert np.array_equal(grown.left[:6], made.left)
    assert np.array_equal(grown.right[:10], made.right)


def test_new_rows_have_the_scale_of_their_side_and_the_offset():
    made = Factors.start((9, 9), 2, seed=0, scale=(2.0, 0.1), offset=5.0).grow((4000, 4000))
    for side, scale in zip(made.sides, (2.0, 0.1), strict=True):
        assert side.std(axis=0) == pytest.approx([scale] * 2, rel=0.05)
        assert side.mean(axis=0) == pytest.approx([5.0, 0.0], abs=0.2)
