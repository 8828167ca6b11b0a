"""Synthetic problems are what they say: spectra, distinct entries, tables skewed like MovieLens."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shared_data import SMALL

from scaledsgd.research import movielens, synthetic


@given(st.integers(1, 60))
def test_every_entry_of_a_symmetric_matrix_can_be_drawn_once(d):
    whole = d * (d + 1) // 2
    seen = synthetic.completion_problem((d, d), 1, 1.0, whole, seed=d, symmetric=True)
    rows, columns = seen.index.T
    assert (columns <= rows).all()
    assert len(np.unique(rows.astype(np.int64) * d + columns)) == whole


def test_triangular_numbers_survive_rounding():
    # The root of 8 t + 1 has as many digits as a float64 from here on.
    class Fixed:
        def choice(self, count, samples, replace):
            i = np.array([94_906_265, 94_906_266, 2**30])
            return np.concatenate([i * (i + 1) // 2 - 1, i * (i + 1) // 2])

    i, j = synthetic._lower_entries((2**31, 2**31), 6, Fixed())
    assert ((j >= 0) & (j <= i)).all()
    assert i.tolist() == [94_906_264, 94_906_265, 2**30 - 1, 94_906_265, 94_906_266, 2**30]


@pytest.mark.parametrize("symmetric", [False, True])
def test_completion_problem_has_the_spectrum_asked_for(symmetric):
    seen = synthetic.completion_problem((40, 40), 4, 1e3, 500, seed=1, symmetric=symmetric)
    M = seen.left @ seen.right.T
    assert np.allclose(np.linalg.svd(M, compute_uv=False)[:4], [1, 0.1, 0.01, 0.001])
    assert np.allclose(M[tuple(seen.index.T)], seen.targets)
    assert len(np.unique(seen.index, axis=0)) == 500


def test_noise_is_a_stranger_to_the_matrix_of_the_same_seed():
    U = synthetic.psd_matrix(200, [1.0], seed=3)[1].ravel()
    noise = synthetic.noisy(np.outer(U, U), 0.0, seed=3) - np.outer(U, U)
    assert abs(U @ noise @ U) < 5 * np.sqrt(2) / 200  # sigma of a symmetric Gaussian of norm 1


@settings(max_examples=25, deadline=None)
@given(st.integers(4, 60), st.integers(4, 80), st.floats(0, 1), st.integers(0, 99))
def test_rating_tables_of_any_shape(users, items, filling, seed):
    most = users * items // 4
    least = min(max(users, items), most)
    count = int(least + filling * (most - least))
    if count < max(users, items):
        with pytest.raises(ValueError, match="a quarter"):
            synthetic.ratings((users, items, count), seed)
        return
    G = synthetic.ratings((users, items, count), seed, n_jobs=1)
    assert G.shape == (users, items) and G.nnz == count and G.dtype == np.float32
    assert set(np.unique(G.data)) <= set(np.arange(1, 11) / 2)
    assert np.diff(G.indptr).min() >= 1
    assert np.bincount(G.indices, minlength=items).min() >= 1
    rows = np.repeat(np.arange(users), np.diff(G.indptr))
    assert len(np.unique(rows * items + G.indices)) == count
    again = synthetic.ratings((users, items, count), seed, n_jobs=3)
    assert np.array_equal(G.indices, again.indices) and np.array_equal(G.data, again.data)


def _skew(G):
    counts = [np.diff(G.indptr), np.bincount(G.indices)]
    return np.array([np.quantile(n, [0.25, 0.5, 0.75, 0.99, 1.0]) for n in counts])


def test_twin_is_skewed_like_the_real_one():
    if not SMALL.is_dir():
        pytest.skip("no copy of MovieLens-Latest-Small beside the repository")
    twin, real = synthetic.ratings("small", seed=0), movielens.load(SMALL).table
    assert twin.shape == real.shape and twin.nnz == real.nnz
    ratio = _skew(twin) / _skew(real)
    assert ratio.min() > 0.5 and ratio.max() <= 2
    assert abs(twin.data.mean() - real.data.mean()) < 0.2
    assert abs(twin.data.std() - real.data.std()) < 0.2


def test_agreeing_tastes_are_rated_more_often_and_higher():
    twin = synthetic.TWINS["small"]
    G = synthetic.ratings("small", seed=5)
    world = synthetic._world(twin, G.indptr.astype(np.int64), 5)
    users = np.repeat(np.arange(twin.users), np.diff(G.indptr))
    agreement = (world.of_user[users] * world.of_item[G.indices]).sum(axis=1)
    assert agreement.mean() > 0.5  # of indifferent raters it would be 0
    assert G.data[agreement > 1].mean() > G.data[agreement < 0].mean() + 0.3
