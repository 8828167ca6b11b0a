import re
import tracemalloc

import numpy as np
import pandas as pd
import polars as pl
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import check_estimator

from scaledsgd import (
    DistanceCompleter,
    DivergenceError,
    ItemRanker,
    MatrixCompleter,
    Observations,
    Recommender,
    UndeterminedWarning,
)
from scaledsgd.core.losses import sigmoid
from scaledsgd.training.metrics import recovery_error


def low_rank(shape, rank, seed, kappa=1.0):
    rng = np.random.default_rng(seed)
    sizes = np.logspace(0, -np.log10(kappa), rank)
    A, B = (np.linalg.qr(rng.standard_normal((n, rank)))[0] for n in shape)
    return A * sizes * np.sqrt(np.prod(shape)), B


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"rank": 2, "center": "columns", "random_state": 0}])
def test_scikit_learns_contract_holds(settings):
    # A row that is repeated is another row of the matrix, with factors of its own.
    others = dict.fromkeys(
        ("check_sample_weight_equivalence_on_dense_data",
         "check_sample_weight_equivalence_on_sparse_data"), "a row is no sample of a regression"
    )  # fmt: skip
    model = MatrixCompleter(**settings)
    results = check_estimator(model, on_skip=None, expected_failed_checks=others)
    assert {result["status"] for result in results} <= {"passed", "skipped", "xfail"}


@pytest.mark.parametrize("kappa", [1.0, 1e4])
def test_a_rectangle_with_most_entries_missing_is_completed(kappa):
    A, B = low_rank((300, 200), 3, 0, kappa)
    rng = np.random.default_rng(1)
    S = sp.coo_array(np.where(rng.random((300, 200)) < 0.25, A @ B.T, 0))
    model = MatrixCompleter(rank=3, epochs=120, random_state=0).fit(S)
    assert recovery_error(model.row_factors_, model.column_factors_, A, B) < 1e-6
    sizes = np.linalg.svd(A @ B.T)[1][:3]
    assert model.singular_values_ == pytest.approx(sizes, rel=1e-2)


def test_every_kind_of_input_gives_the_same_model():
    A, B = low_rank((20, 12), 2, 3)
    M = A @ B.T
    i, j = (part.ravel() for part in np.indices(M.shape))
    y = M.ravel()
    settings = {"rank": 2, "epochs": 5, "random_state": 0}
    names = {"row": "u", "column": "v", "value": "y"}
    table = {"u": i, "v": j, "y": y}
    expected = MatrixCompleter(**settings).fit(M).row_factors_
    for data in (sp.csr_array(M), sp.csr_matrix(M), sp.lil_array(M), sp.coo_array(M)):
        assert np.allclose(MatrixCompleter(**settings).fit(data).row_factors_, expected)
    assert np.allclose(
        MatrixCompleter(**settings).fit(Observations.pairs(i, j, y)).row_factors_, expected
    )
    for frame in (pd.DataFrame(table), pl.DataFrame(table), table):
        assert np.allclose(MatrixCompleter(**settings).fit(frame, **names).row_factors_, expected)


def test_string_ids_go_in_and_come_out():
    who, what = ["ann", "bob", "eve"] * 2, ["x"] * 3 + ["y"] * 3
    frame = pd.DataFrame({"who": who, "what": what, "n": [1.0, 2, 3, 2, 4, 6]})
    columns = {"row": "who", "column": "what", "value": "n"}
    model = MatrixCompleter(rank=1, epochs=200, random_state=0).fit(frame, **columns)
    assert model.predict((["bob", "eve"], ["x", "y"])) == pytest.approx([2, 6], abs=1e-3)
    with pytest.raises(ValueError, match="row 'joe' was never seen"):
        model.predict((["joe"], ["x"]))
    with pytest.raises(ValueError, match="no column 'who2': the table has who, what, n"):
        model.fit(frame, row="who2", column="what", value="n")
    more = pd.DataFrame({"who": ["joe"], "what": ["z"], "n": [1.0]})
    model.partial_fit(more, **columns)
    assert (len(model.row_factors_), len(model.column_factors_)) == (4, 3)
    assert np.isfinite(model.predict((["joe"], ["z"]))).all()
    bad = pd.DataFrame({"who": ["zoe"], "what": ["z"], "n": [np.nan]})
    with pytest.raises(ValueError, match="target nan"):
        model.partial_fit(bad, **columns)
    with pytest.raises(ValueError, match="'zoe' was never seen"):
        model.predict((["zoe"], ["x"]))


def test_logistic_loss_learns_probabilities():
    A, B = low_rank((60, 50), 2, 5)
    model = MatrixCompleter(rank=2, loss="logistic", epochs=100, random_state=0)
    model.fit(sigmoid(A @ B.T))
    pairs = (np.repeat(np.arange(60), 50), np.tile(np.arange(50), 60))
    assert np.abs(model.predict_proba(pairs) - sigmoid(A @ B.T).ravel()).max() < 0.01
    assert not hasattr(MatrixCompleter(), "predict_proba")
    folded = model.fold_in(sigmoid(A @ B.T)[:3])
    assert np.allclose(folded @ model.column_factors_.T, (A @ B.T)[:3], atol=0.05)


def test_new_rows_are_folded_in_from_what_is_known_of_them():
    A, B = low_rank((40, 30), 3, 6)
    M = A @ B.T
    model = MatrixCompleter(rank=3, epochs=200, random_state=0).fit(M)
    rows = M[:5].copy()
    rows[:, ::2] = np.nan
    assert np.allclose(model.predict(rows), M[:5], atol=1e-5)


@settings(max_examples=10)
@given(seed=st.integers(0, 1000), symmetric=st.booleans())
def test_growing_then_fitting_is_fitting_the_larger_matrix(seed, symmetric):
    """The rows that one batch does not name do not disturb those that it does."""
    rng = np.random.default_rng(seed)
    i, j, y = *rng.integers(0, 8, (2, 60)), rng.random(60)
    if symmetric:
        y = np.ones(60)
    settings = {"rank": 2, "symmetric": symmetric, "learning_rate": 0.05, "random_state": seed}

    def seen(shape):
        return Observations.pairs(i, j, y, shape=shape, symmetric=symmetric)

    grown = MatrixCompleter(**settings)
    grown._ids, grown._trainer = None, grown._start(seen((8, 8)))
    grown._trainer.grow((12, 12))
    grown._trainer.run(seen((8, 8)), epochs=3)
    direct = MatrixCompleter(epochs=3, **settings).fit(seen((12, 12)))
    assert np.array_equal(grown._trainer.factors.X, direct.factors.X)


@pytest.mark.parametrize("rank", [3, 9, "auto"])
def test_the_rank_that_is_there_is_found(rank):
    A, B = low_rank((300, 200), 3, 2, kappa=1e3)
    rng = np.random.default_rng(1)
    S = sp.coo_array(np.where(rng.random((300, 200)) < 0.4, A @ B.T, 0))
    model = MatrixCompleter(rank=rank, random_state=0).fit(S)
    assert model.effective_rank_ == 3
    assert recovery_error(model.row_factors_, model.column_factors_, A, B) < 1e-6


def test_partial_fit_continues():
    A, B = low_rank((50, 40), 2, 7)
    model = MatrixCompleter(rank=2, random_state=0)
    for _ in range(60):
        model.partial_fit(A @ B.T)
    assert recovery_error(model.row_factors_, model.column_factors_, A, B) < 1e-6
    assert len(model.history_) == 60


def test_distances_give_points_back():
    rng = np.random.default_rng(0)
    points = rng.random((80, 2))
    i, j = np.triu_indices(80, 1)
    known = rng.random(len(i)) < 0.3
    i, j = i[known], j[known]
    names = np.array([f"p{n}" for n in range(80)])
    table = {"a": names[i], "b": names[j], "d2": ((points[i] - points[j]) ** 2).sum(axis=1)}
    model = DistanceCompleter(rank=2, epochs=300, random_state=0)
    model.fit(table, row="a", column="b", value="d2")
    found = model.align(names[:4], points[:4])
    order = model._ids[0].rows(names)
    assert np.abs(found[order] - points).max() < 1e-5
    assert model.predict((["p0"], ["p1"])) == pytest.approx(((points[0] - points[1]) ** 2).sum())
    with pytest.raises(ValueError, match="positions of shape"):
        model.align(names[:4], points[:3])
    for few in (names[:2], points[:2]), (names[:3], [[0, 0], [1, 1], [2, 2]]):
        with pytest.warns(UndeterminedWarning, match="turned or mirrored: in 2 dimensions"):
            model.align(*few)


@pytest.mark.parametrize("mode", ["item-item", "user-item"])
def test_comparisons_give_a_ranking(mode):
    rng = np.random.default_rng(0)
    users = rng.standard_normal((60, 3))
    items = users if mode == "item-item" else rng.standard_normal((40, 3))
    i = rng.integers(0, len(users), 60_000)
    j, k = rng.integers(0, len(items), (2, 60_000))
    i, j, k = (part[j != k] for part in (i, j, k))
    y = ((users[i] * (items[j] - items[k])).sum(axis=1) > 0).astype(float)
    half = len(i) // 2
    triplets = np.stack([i, j, k], axis=1)
    model = ItemRanker(rank=3, mode=mode, epochs=10, random_state=0)
    model.fit(triplets[:half], y[:half])
    assert model.score(triplets[half:], y[half:]) > 0.9
    best, scores = model.similar(5, k=7)
    assert len(best) == 7
    assert 5 not in best
    assert (np.diff(scores) <= 0).all()
    order = model.ranked(0, [3, 9, 1])
    assert sorted(order) == [1, 3, 9]
    if mode == "user-item":
        assert model.recommend(0, k=4)[0].shape == (4,)
        with pytest.raises(ValueError, match="one that it has seen"):
            model.recommend(items=[1, 2])
    else:
        assert model.recommend([0], k=4)[0].shape == (4,)
        with pytest.raises(ValueError, match="0 is not a list of items"):
            model.recommend(0)


def test_a_run_that_blows_up_says_so_and_keeps_the_last_finite_state():
    A, B = low_rank((30, 30), 2, 0)
    model = MatrixCompleter(rank=2, learning_rate=1e4, random_state=0)
    with pytest.raises(DivergenceError, match=r"epoch 1 at sample \d+, learning rate 1e.04"):
        model.fit(A @ B.T)
    assert np.isfinite(model.row_factors_).all()
    assert model.history_.stopped == "diverged"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 0}, "rank=0 is not 'auto' or a whole number from 1 to"),
        ({"rank": True}, "rank=True is not 'auto' or a whole number from 1 to"),
        ({"rank": "auto", "learning_rate": 0.1}, "rank='auto' needs"),
        ({"rank": 11}, "rank=11 is more than"),
        ({"learning_rate": -1}, "learning_rate=-1"),
        ({"damping": "some"}, "damping='some'"),
        ({"refresh": "never"}, "refresh='never'"),
        ({"dtype": "int8"}, "dtype='int8'"),
        ({"epochs": 0}, "epochs=0"),
        ({"n_jobs": 0}, "n_jobs=0"),
        ({"n_jobs": -2}, "n_jobs=-2"),
        ({"loss": "bpr"}, "loss='bpr'"),
        ({"device": "abacus"}, "device='abacus'"),
        ({"n_jobs": 10**12}, "n_jobs=1000000000000 is not -1 or a whole number from 1 to 1024"),
        ({"evaluations": 10**9}, "evaluations=1000000000 is not"),
        ({"symmetric": "x"}, "symmetric='x'"),
        ({"dtype": "nonsense"}, "dtype='nonsense'"),
        ({"tol": "small"}, "tol='small'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        MatrixCompleter(**settings).fit(np.ones((10, 10)))


@pytest.mark.parametrize("make", [MatrixCompleter, DistanceCompleter])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [5e-324, 1e-300, 1e-160, 1e-40, 1e-14, 1e14, 1e40, 1e160, 1e308])
def test_targets_of_any_size_are_learned_or_refused(make, dtype, scale):
    x = np.random.default_rng(0).random((30, 2))
    M = ((x[:, None] - x) ** 2).sum(axis=2) if make is DistanceCompleter else x @ x.T
    model = make(rank=2, dtype=dtype, random_state=0)
    try:
        model.fit(M / M.max() * scale)
    except ValueError as why:
        assert "too small" in str(why) or "too large" in str(why)
        return
    assert model.history_.stopped != "solved" or model.history_["loss"][-1] <= 1e-8 * scale**2


def test_questions_before_fit_and_nested_ids_are_refused():
    for model in (ItemRanker(), Recommender()):
        with pytest.raises(NotFittedError):
            model.similar(3)
    nested = {"u": [[1, 2], [3, 4]], "v": [1, 2], "y": [1.0, 2.0]}
    for column in (nested["u"], [[1], [2, 3]], np.array([[1], [2]])):
        with pytest.raises((TypeError, ValueError), match="column 'u'"):
            MatrixCompleter(1).fit(nested | {"u": column}, row="u", column="v", value="y")


def test_two_threads_learn_what_one_does():
    A, B = low_rank((400, 300), 3, 0)
    one, two = (
        MatrixCompleter(rank=3, epochs=20, n_jobs=n, random_state=0).fit(A @ B.T) for n in (1, 2)
    )
    for model in (one, two):
        assert recovery_error(model.row_factors_, model.column_factors_, A, B) < 1e-6


@pytest.mark.parametrize("make", [MatrixCompleter, ItemRanker, Recommender])
def test_all_cores_are_those_that_this_process_may_use(make, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {1, 3, 4})
    table = {"a": [0, 0, 1, 1, 2, 2], "b": [0, 1, 1, 2, 2, 0], "c": [1.0, 2, 3, 4, 5, 6]}
    names = {"row": "a", "column": "b", "value": "c"}
    names = names if make is MatrixCompleter else {"user": "a", "item": "b"}
    model = make(2, n_jobs=-1, epochs=1, random_state=0).fit(table, **names)
    assert model.trainer.engine.n_jobs == 3 and model.n_jobs == -1


def test_one_thread_is_reproducible():
    M = np.random.default_rng(0).random((20, 20))
    first, second = (MatrixCompleter(rank=3, random_state=5).fit(M) for _ in range(2))
    assert np.array_equal(first.row_factors_, second.row_factors_)
    assert clone(first).get_params() == first.get_params()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["coo", "csr", "observations", "symmetric"])
def test_fit_takes_little_more_memory_than_its_input(kind):
    rng = np.random.default_rng(0)
    m, d = 3_000_000, 3000
    i, j = rng.integers(0, d, (2, m), dtype=np.int32)
    y = (i * 1e-3 + 1) * (j * 1e-3 + 1)
    S = sp.coo_array((y, (i, j)), shape=(d, d))
    data = {"csr": S.tocsr, "observations": lambda: Observations.pairs(i, j, y, shape=(d, d))}.get(
        kind, lambda: S
    )()
    given = len(y) * 16 if kind != "csr" else data.nnz * 12
    model = MatrixCompleter(rank=2, epochs=2, symmetric=kind == "symmetric", random_state=0)
    MatrixCompleter(rank=2, epochs=1).fit(np.eye(3))  # compiled, imported
    tracemalloc.start()
    model.fit(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak - 3 * model.factors.X.nbytes < 1.6 * given


def test_few_measured_distances_are_met_up_to_their_noise_and_the_warning_says_so():
    rng = np.random.default_rng(5)
    places = 50 * rng.random((20, 2))
    i, j = np.nonzero(np.triu(rng.random((20, 20)) < 0.5, 1))
    measured = np.linalg.norm(places[i] - places[j], axis=1).round(1)
    with pytest.warns(UndeterminedWarning, match="too few distances to hold any out") as warned:
        D = sp.coo_array((measured**2, (i, j)), shape=(20, 20))
        model = DistanceCompleter(rank=2, random_state=0).fit(D)
    assert np.abs(model.align([0, 5, 11], places[[0, 5, 11]]) - places).max() < 0.3
    residual = model.predict((i, j)) - measured**2
    off = np.sqrt(np.mean(residual**2) / np.mean(measured**4))
    (told,) = re.findall(r"up to (\S+) of their size", str(warned[0].message))
    assert float(told) == pytest.approx(off, rel=0.2)


def test_predictions_are_held_within_a_scale_only_if_asked():
    M = np.outer([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 2.0])
    model, names, gaps = (
        MatrixCompleter(1, random_state=0).fit(M),
        ([0, 3], [0, 2]),
        M * [1, 1, np.nan],
    )
    free = model.predict(names)
    assert free == pytest.approx([1, 8])
    assert model.predict(names, clip=(2, 5)).tolist() == [2, 5]
    filled = model.predict(gaps, clip=(2, 5))
    np.testing.assert_array_equal(filled, model.predict(gaps).clip(2, 5))
    assert filled.min() == 2 and filled.max() == 5
    for clip in (5, (5, 2), (1, np.nan), (1, 2, 3), ("a", "b")):
        with pytest.raises(ValueError, match=r"^clip=.*(pair \(low, high\)|low is not below)"):
            model.predict(names, clip=clip)
