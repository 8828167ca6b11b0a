"""Similarities against the formulas of textbooks, and the comparisons that they make."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from scaledsgd.recommend import comparisons as ratings
from scaledsgd.recommend.similarity import _SHRINKAGE, SIMILARITIES

STARS = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 7), st.integers(1, 6)),
    elements=st.sampled_from([0, 0, 1, 2, 3.5, 5]),
)


def dense(G: np.ndarray, kind: str) -> np.ndarray:
    """The textbook's formulas, a matrix at a time."""
    G, rated = G.astype(np.float64), G != 0
    common = rated.T.astype(float) @ rated
    if kind == "jaccard":
        count = rated.sum(axis=0)
        return common / (count[:, None] + count - common)
    if kind == "adjusted":
        means = G.sum(axis=1) / np.maximum(rated.sum(axis=1), 1)
        G = np.where(rated, G - means[:, None], 0)
    length = np.linalg.norm(G, axis=0)
    # An item that all find average has no direction: nothing is similar to it.
    flat = length < 1e-6
    M = G.T @ G / np.outer(np.where(flat, 1, length), np.where(flat, 1, length))
    M[flat], M[:, flat] = 0, 0
    return M * common / (common + _SHRINKAGE) if kind == "shrunk" else M


@pytest.mark.parametrize("kind", SIMILARITIES)
@given(G=STARS)
def test_similarities_are_those_of_the_textbook(kind, G):
    G = G[:, G.any(axis=0)]
    if not G.size:
        return
    items = ratings.prepared(sp.csr_array(G), kind)
    rows = [ratings.similarities(items, i) for i in range(G.shape[1])]
    assert np.allclose(rows, dense(G, kind), atol=1e-7)


# Adjusted, columns 0 and 4 are at right angles but for rounding, and 5 is to all of them.
ANGLES = np.array(
    [[0, 0, 5, 2, 1, 0], [2, 2, 2, 2, 5, 0], [2, 5, 5, 2, 2, 0], [2, 2, 0, 0, 2, 0], [0] * 5 + [1]],
    np.float32,
)
# 0.2 is average beside 0.1 and 0.3, though not as these numbers are rounded.
FLAT = np.array([[0.1, 0.2, 0.3, 0], [2, 0, 4, 3], [5, 0, 2, 0]], np.float32)


@pytest.mark.parametrize("kind", SIMILARITIES)
@given(G=STARS)
@example(G=ANGLES)
@example(G=FLAT)
def test_comparisons_are_those_of_the_similarity(kind, G):
    G = G[:, G.any(axis=0)]
    M = dense(G, kind)
    above = M[:, :, None] - M[:, None, :]
    differ = np.argwhere(np.abs(above) > 1e-9).tolist()
    if not differ:
        return
    exist = {(j, k, i): above[i, j, k] > 0 for i, j, k in differ}
    drawn = ratings.triplets(G, 10**6, 10**5, 0, similarity=kind, fewer=True, n_jobs=1)
    found = np.concatenate([drawn.train, drawn.test]).tolist()
    y = np.concatenate([drawn.train_targets, drawn.test_targets])
    assert dict(zip(map(tuple, found), y.tolist(), strict=True)) == exist
    assert len(drawn.test) == pytest.approx(len(exist) / 11, abs=1)
