"""Triplets against a dense brute force, how they are distributed, cached and scored."""

import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import scipy.sparse as sp
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats
from shared_data import SMALL

from scaledsgd.core.observations import Observations
from scaledsgd.io.atomic import whole_folder
from scaledsgd.recommend import comparisons as ratings
from scaledsgd.research import baselines, movielens, synthetic


def _table(seed, users=12, items=9, filled=0.3):
    rng = np.random.default_rng(seed)
    stars = rng.integers(1, 11, (users, items)) / 2
    return stars * (rng.random((users, items)) < filled)


def _comparable(G):
    """{(j, k, i): Y} from the dense M of the rated columns."""
    G = G[:, G.any(axis=0)]
    length = np.linalg.norm(G, axis=0)
    M = G.T @ G / np.outer(length, length)
    above = M[:, :, None] - M[:, None, :]
    return {
        (int(j), int(k), int(i)): int(above[i, j, k] > 0)
        for i, j, k in np.argwhere(np.abs(above) > 1e-9)
    }


def _as_dict(index, y):
    return dict(zip(map(tuple, index.tolist()), y.tolist(), strict=True))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.05, 0.9), st.floats(0.01, 1.0), st.floats(0, 1))
def test_triplets_are_those_of_the_dense_matrix(seed, filled, share, split):
    G = _table(seed, filled=filled)
    expected = _comparable(G) if G.any() else {}
    wanted = int(share * len(expected))
    assume(wanted)
    n_train = int(split * wanted)
    drawn = ratings.triplets(sp.csr_array(G), n_train, wanted - n_train, seed)
    train, test = (
        _as_dict(drawn.train, drawn.train_targets),
        _as_dict(drawn.test, drawn.test_targets),
    )
    assert len(train) == n_train and len(test) == wanted - n_train  # none twice
    assert not train.keys() & test.keys()
    assert (train | test).items() <= expected.items()
    assert drawn.columns.tolist() == np.flatnonzero(G.any(axis=0)).tolist()


def test_asking_for_more_than_there_is_says_how_many_there_are():
    G = _table(1)
    exist = len(_comparable(G))
    with pytest.raises(ValueError, match=rf"{exist + 1:,} comparisons .* {exist:,} exist"):
        ratings.triplets(G, exist, 1, seed=0)
    with pytest.raises(ValueError, match="nothing to draw"):
        ratings.triplets(G, 0, 0, seed=0)
    with pytest.raises(ValueError, match="nothing to compare"):
        ratings.triplets(np.zeros((3, 3)), 1, 1, seed=0)


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_every_triplet_is_as_likely_as_every_other(share):
    G = _table(2, items=7, filled=0.5)
    names = sorted(_comparable(G))
    wanted, trials = int(share * len(names)), 600
    half = wanted // 2
    seen = {part: dict.fromkeys(names, 0) for part in ("train", "test")}
    for seed in range(trials):
        drawn = ratings.triplets(G, half, wanted - half, seed, n_jobs=1)
        for part, counts in seen.items():
            for name in map(tuple, getattr(drawn, part).tolist()):
                counts[name] += 1
    for part, size in (("train", half), ("test", wanted - half)):
        counts, p = np.array(list(seen[part].values())), size / len(names)
        # Of sets of a fixed size: the usual statistic, shrunk by what they lack of independence.
        statistic = ((counts - trials * p) ** 2).sum() / (trials * p * (1 - p))
        statistic *= (len(names) - 1) / len(names)
        assert 1e-4 < stats.chi2.sf(statistic, len(names) - 1) < 1 - 1e-4


def test_the_order_is_random_too():
    G = _table(3)
    places = [ratings.triplets(G, 200, 0, seed).train[:, 2] for seed in range(60)]
    # Were triplets left in the order of i, the first half would have the lower i.
    difference = np.mean([p[:100].mean() - p[100:].mean() for p in places])
    assert abs(difference) < 5 * np.std(places[0]) * np.sqrt(2 / 100 / 60)


def test_rows_are_drawn_independently_of_each_other():
    drawn = ratings.triplets(synthetic.ratings((60, 300, 3_000), seed=1), 5_000, 0, seed=0)
    j, k, _ = drawn.train.T
    shared = len(j) - len(np.unique(j.astype(np.int64) * 300 + k))
    by_chance = 5_000**2 / 2 / 300**2
    assert shared < 3 * by_chance  # popular pairs meet more often than all do


def test_same_seed_same_triplets_whatever_the_threads():
    G = synthetic.ratings((60, 300, 3_000), seed=1)
    one, two = (ratings.triplets(G, 5_000, 500, seed=7, n_jobs=n) for n in (1, 3))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))
    other = ratings.triplets(G, 5_000, 500, seed=8)
    assert not np.array_equal(one.train, other.train)


def test_proportional_ratings_are_equally_near():
    # Columns 1 and 2 are (3, 3) and (2, 2): 6 / sqrt(18) and 4 / sqrt(8), equal but for rounding.
    G = np.array([[1.0, 3.0, 2.0], [1.0, 3.0, 2.0], [5.0, 0.0, 0.0]])
    exist = len(_comparable(G))
    drawn = ratings.triplets(G, exist, 0, seed=0)
    assert not any({j, k} == {1, 2} for j, k, _ in drawn.train.tolist())


def test_similarities_are_cosines():
    G = _table(4)
    G = G[:, G.any(axis=0)]
    unit = G / np.linalg.norm(G, axis=0)
    items = ratings.prepared(sp.csr_array(G.astype(np.float32)))
    rows = [ratings.similarities(items, i) for i in range(G.shape[1])]
    assert np.allclose(rows, unit.T @ unit)


def test_cache_is_used_and_keyed(tmp_path, monkeypatch):
    G = _table(5)
    fresh = ratings.triplets(G, 30, 10, seed=1)
    first = ratings.triplets(G, 30, 10, seed=1, cache=tmp_path)
    monkeypatch.setattr(ratings, "_sampled", lambda *_: pytest.fail("computed again"))
    again = ratings.triplets(G, 30, 10, seed=1, cache=tmp_path)
    for a, b, c in zip(fresh, first, again, strict=True):
        assert np.array_equal(a, b) and np.array_equal(b, c) and isinstance(c, np.memmap)
    changed = G.copy()
    changed[np.nonzero(G)[0][0], np.nonzero(G)[1][0]] += 0.5
    for other in ((G, 31, 10, 1), (G, 30, 11, 1), (G, 30, 10, 2), (changed, 30, 10, 1)):
        with pytest.raises(pytest.fail.Exception, match="computed again"):
            ratings.triplets(*other, cache=tmp_path)


@pytest.mark.slow
def test_a_killed_run_leaves_no_cache_that_is_read(tmp_path):
    script = """
        import os, signal, sys
        import numpy as np
        from scaledsgd.recommend import comparisons
        save = np.save
        def killed(path, array):
            save(path, array[: len(array) // 2])
            if path.name == "test.npy":
                os.kill(os.getpid(), signal.SIGKILL)
        np.save = killed
        G = np.load(sys.argv[1])
        comparisons.triplets(G, 30, 10, seed=1, cache=sys.argv[2])
    """
    G, cache = _table(6), tmp_path / "cache"
    np.save(tmp_path / "G.npy", G)
    command = [sys.executable, "-c", textwrap.dedent(script), tmp_path / "G.npy", cache]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    assert subprocess.run(command, env=environment).returncode == -signal.SIGKILL
    (left,) = cache.iterdir()
    assert left.suffix == ".part"
    drawn = ratings.triplets(G, 30, 10, seed=1, cache=cache)
    for a, b in zip(drawn, ratings.triplets(G, 30, 10, seed=1), strict=True):
        assert np.array_equal(a, b)
    # Remains are swept away once nobody can be writing them any more.
    assert left.exists()
    os.utime(left, (time.time() - 2 * 86_400,) * 2)
    with whole_folder(cache / "other"):
        assert not left.exists()


def test_two_writers_of_one_folder_agree(tmp_path):
    final = tmp_path / "same"
    with whole_folder(final) as slow:
        (slow / "a").write_text("slow")
        with whole_folder(final) as fast:
            (fast / "a").write_text("fast")
    assert [path.name for path in tmp_path.iterdir()] == ["same"]
    assert (final / "a").read_text() == "fast"


def test_a_failure_leaves_no_folder(tmp_path):
    with pytest.raises(OSError, match="disk full"), whole_folder(tmp_path / "new"):
        raise OSError("disk full")
    assert not list(tmp_path.iterdir())


def test_np_maximum_of_movielens_is_the_published_one():
    if not SMALL.is_dir():
        pytest.skip("no copy of MovieLens-Latest-Small beside the repository")
    drawn = ratings.triplets(movielens.load(SMALL).table, 0, 100_000, seed=0)
    d = drawn.items
    test = Observations(drawn.test, drawn.test_targets, (d, d), "bpr", True)
    found = baselines.np_maximum(test)
    assert found == pytest.approx(0.79, abs=0.005)


def test_np_maximum_finds_a_ranking_that_all_agree_on():
    rng = np.random.default_rng(0)
    j, k = rng.permuted(np.tile(np.arange(30), (4_000, 1)), axis=1)[:, :2].T
    test = Observations.triplets(rng.integers(0, 30, len(j)), j, k, j < k)
    assert baselines.np_maximum(test) == 1.0


@given(st.integers(0, 999), st.integers(1, 5))
def test_no_psd_matrix_of_the_rank_is_below_the_noise_floor(seed, rank):
    rng = np.random.default_rng(seed)
    M = rng.standard_normal((8, 8))
    M = M + M.T
    floor = baselines.noise_floor(M, rank)
    values, Q = np.linalg.eigh(M)
    near = Q[:, -rank:] * np.sqrt(np.maximum(values[-rank:], 0))
    for scale in (0.0, 1e-3, 0.1):
        X = near + scale * rng.standard_normal(near.shape)
        assert np.mean((X @ X.T - M) ** 2) / 2 >= floor * (1 - 1e-12)


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=20), st.floats(0.0, 1.0), st.booleans())
def test_crossing_is_where_the_polygon_first_meets_the_level(values, level, falling):
    sign = -1.0 if falling else 1.0
    at = baselines.crossing(np.arange(len(values)) * 10.0, sign * np.array(values), sign * level)
    beyond = np.array(values) >= level if values[0] <= level else np.array(values) <= level
    if not beyond.any():
        assert at == np.inf
        return
    first = int(np.argmax(beyond))
    assert 10.0 * max(first - 1, 0) <= at <= 10.0 * first
    assert np.interp(at, np.arange(len(values)) * 10.0, values) == pytest.approx(level, abs=1e-9)
