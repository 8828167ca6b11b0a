"""The best matches among many, exactly and by an index."""

from __future__ import annotations

import sys
from unittest import mock

import numba
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from scaledsgd.engines.cpu import intrinsics, plain
from scaledsgd.recommend import search
from scaledsgd.recommend.search import Search, top_k

# Few different numbers, so that there are ties.
TABLES = hnp.arrays(
    np.float32, st.tuples(st.integers(1, 200), st.just(2)), elements=st.sampled_from([-1, 0, 1, 2])
)


ASKED = ["many", "few", "again", "again, without products of bytes"]


@given(TABLES, st.integers(1, 30), st.integers(0, 99), st.sampled_from(ASKED))
def test_the_best_are_those_of_a_full_sort(table, k, seed, who):
    rng = np.random.default_rng(seed)
    queries = rng.integers(-1, 3, (5, 2)).astype(np.float32)
    lists = [rng.permutation(len(table))[: rng.integers(len(table) + 1)] for _ in queries]
    start = np.concatenate([[0], np.cumsum([len(part) for part in lists])])
    exclude = start, np.concatenate(lists)
    how = {"_FEW": 4 if who == "many" else 5, "_PART": 48, "BYTES": search.BYTES and who == "again"}
    with mock.patch.multiple(search, **how):
        ask = _asked_again if who.startswith("again") else top_k
        rows, scores = ask(queries, table, k, exclude)
    k = min(k, len(table))
    for query, excluded, found, best in zip(queries, lists, rows, scores, strict=True):
        products = table @ query
        left = np.setdiff1d(np.arange(len(table)), excluded)
        order = left[np.argsort(-products[left], kind="stable")][:k]
        assert found.tolist() == order.tolist() + [-1] * (k - len(order))
        assert best[: len(order)].tolist() == products[order].tolist()


def _asked_again(queries, table, k, exclude):
    """By a search that has sorted its table by length."""
    searched = Search(table)
    searched.top_k(queries, k, exclude)
    return searched.top_k(queries, k, exclude)


@pytest.mark.parametrize("by_bytes", [True, False])
@given(st.integers(1, 40), st.integers(1, 9), st.floats(0, 2), st.integers(0, 99))
def test_no_row_that_is_among_the_best_is_passed_over(by_bytes, count, r, uneven, seed):
    rng = np.random.default_rng(seed)
    table = rng.standard_normal((300, r)) * np.exp(uneven * rng.standard_normal((300, 1)))
    queries = rng.standard_normal((count, r)).astype(np.float32)
    table = table.astype(np.float32)
    with mock.patch.multiple(search, _PART=48, BYTES=search.BYTES and by_bytes):
        rows, scores = _asked_again(queries, table, 7, None)
    products = queries.astype(float) @ table.T.astype(float)
    best = -np.sort(-products)[:, :7]
    close = 1e-5 * np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(table, axis=1).max()
    assert (abs(scores - best) <= close).all()
    assert (abs(np.take_along_axis(products, rows, 1) - best) <= close).all()


def test_products_of_bytes_are_those_of_plain_code():
    rng = np.random.default_rng(0)
    table, queries = (rng.integers(-128, 128, (4, 8)), rng.integers(0, 256, (16, 8)))
    offsets = rng.integers(-9999, 9999, 4).astype(np.int32)
    words = table.astype(np.int8).view(np.int32)
    asked = np.ascontiguousarray(queries.astype(np.uint8).view(np.int32).T)
    least = (queries @ table[1] + offsets[1]).astype(np.int32)  # as much as one of the rows has
    right = queries @ table.T + offsets >= least[:, None]
    for body in {plain, intrinsics.bodies if search.BYTES else plain}:
        bits = int(_bits(body)(words, 0, offsets, asked, least))
        assert [[bits >> 16 * j + q & 1 for j in range(4)] for q in range(16)] == right.tolist()


def _bits(body):
    exceed = body.exceed
    return numba.njit(
        lambda table, row, offsets, asked, least: exceed(table, row, offsets, asked, least)
    )


def test_many_answers_are_sorted_too():
    rng = np.random.default_rng(0)
    table, queries = rng.standard_normal((3000, 4)), rng.standard_normal((3, 4))
    exclude = np.array([0, 1, 1, 3]), np.array([7, 8, 9])
    some, all_of_them = (top_k(queries, table, k, exclude) for k in (900, 3000))
    assert np.array_equal(some[0], all_of_them[0][:, :900])
    assert all_of_them[0][0, -1] == -1 and 7 not in all_of_them[0][0]


def crowd(n: int) -> np.ndarray:
    """Vectors as they are learned: in clusters, some longer than others."""
    rng = np.random.default_rng(0)
    centres = 2 * rng.standard_normal((200, 16))
    vectors = centres[rng.integers(200, size=n)] + rng.standard_normal((n, 16))
    return (vectors * rng.lognormal(0, 0.2, (n, 1))).astype(np.float32)


def test_an_index_finds_what_an_exact_search_finds():
    pytest.importorskip("faiss")
    table = crowd(30_000)
    alone = np.arange(2001), np.arange(2000)
    exact, _ = top_k(table[:2000], table, 20, alone)
    searched = Search(table, indexed_from=10_000)
    found, scores = searched.top_k(table[:2000], 20, alone)
    assert searched._index
    shared = [len(set(a) & set(b)) for a, b in zip(exact.tolist(), found.tolist(), strict=True)]
    assert np.mean(shared) >= 0.95 * 20
    assert not (found == np.arange(2000)[:, None]).any() and (np.diff(scores, axis=1) <= 0).all()
    best = found[:, :10]  # without which there are still ten
    others, _ = searched.top_k(table[:2000], 10, (np.arange(0, 20_001, 10), best.ravel()))
    assert (others >= 0).all()
    assert not any(set(a) & set(b) for a, b in zip(others.tolist(), best.tolist(), strict=True))


def test_an_index_that_would_not_help_is_not_used():
    pytest.importorskip("faiss")
    table = np.random.default_rng(0).standard_normal((5_000, 32)).astype(np.float32)
    searched = Search(table, indexed_from=1_000)
    assert np.array_equal(searched.top_k(table[:2000], 5)[0], top_k(table[:2000], table, 5)[0])
    assert searched._index is False


def test_without_faiss_the_search_is_exact(monkeypatch):
    monkeypatch.setitem(sys.modules, "faiss", None)
    table = crowd(2_000)
    found = Search(table, indexed_from=1_000).top_k(table, 5)
    assert np.array_equal(found[0], top_k(table, table, 5)[0])
