"""Gaps of new rows, as scikit-learn's pipelines ask for them."""

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from sklearn.ensemble import RandomForestRegressor
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from scaledsgd import MatrixCompleter, UndeterminedWarning, load


def imputer(rank="auto", **settings):
    return MatrixCompleter(rank, **{"center": "columns", "random_state": 0, **settings})


def with_gaps(X, share=0.25, seed=0):
    return np.where(np.random.default_rng(seed).random(X.shape) < share, np.nan, X)


@pytest.fixture(scope="module")
def kinds():
    """Columns of three kinds: of size 1, 1e-4 and 1e6, all told by two numbers of a row."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 2)) @ rng.standard_normal((2, 9))
    return X * np.repeat([1.0, 1e-4, 1e6], 3) + np.repeat([0.0, 1.0, 1e7], 3)


def error(filled, X, gaps):
    """In standard deviations of each column."""
    return float(np.sqrt(np.mean(((filled - X) / X.std(axis=0))[np.isnan(gaps)] ** 2)))


@pytest.mark.parametrize("settings", [{}, {"rank": 2, "center": "auto"}])
def test_columns_of_any_size_are_filled_and_what_is_known_stays(kinds, settings):
    gaps = with_gaps(kinds)
    model = imputer(**settings).fit(gaps[:200])
    filled = model.transform(gaps[200:])
    assert error(filled, kinds[200:], gaps[200:]) < 0.15
    known = ~np.isnan(gaps[200:])
    assert np.array_equal(filled[known], kinds[200:][known])
    by_column = np.abs(filled - kinds[200:]).mean(axis=0) / kinds.std(axis=0)
    assert by_column.max() < 0.1


@pytest.mark.parametrize("table", [load_diabetes, load_wine, load_breast_cancer])
def test_tables_of_scikit_learn_are_filled_better_than_by_neighbours(table):
    X = np.random.default_rng(0).permutation(table().data)
    gaps = with_gaps(X, seed=1)
    cut = len(X) // 3
    scale = StandardScaler().fit(gaps)
    near = KNNImputer().fit(scale.transform(gaps[cut:])).transform(scale.transform(gaps[:cut]))
    rival = error(scale.inverse_transform(near), X[:cut], gaps[:cut])
    mean = error(SimpleImputer().fit(gaps[cut:]).transform(gaps[:cut]), X[:cut], gaps[:cut])
    ours = error(imputer().fit(gaps[cut:]).transform(gaps[:cut]), X[:cut], gaps[:cut])
    assert ours < 1.1 * rival and ours < 0.85 * mean
    defaults = MatrixCompleter(random_state=0).fit(gaps[cut:])
    assert error(defaults.transform(gaps[:cut]), X[:cut], gaps[:cut]) < 0.9 * mean


def test_one_wild_entry_does_not_lead_a_row_astray(kinds):
    model = imputer().fit(with_gaps(kinds))
    row = kinds[:1].copy()
    row[0, 0], row[0, 8] = 1e9, np.nan
    assert np.abs(model.transform(row) - kinds.mean(axis=0))[0, 8] < 10 * kinds.std(axis=0)[8]


def test_a_row_of_which_nothing_is_known_gets_the_means(kinds):
    gaps = with_gaps(kinds)
    nothing = np.full((1, 9), np.nan)
    filled = imputer().fit(gaps).transform(nothing)[0]
    assert np.abs((filled - np.nanmean(gaps, axis=0)) / kinds.std(axis=0)).max() < 0.2
    M = np.outer([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 2.0])  # exact: without means of its own
    plain = MatrixCompleter(1, random_state=0).fit(M)
    assert plain.transform(np.full((1, 3), np.nan)) == pytest.approx(M.mean(axis=0)[None], abs=0.01)


def test_a_column_without_entries_is_said_and_filled_with_zeros(kinds):
    gaps = with_gaps(kinds)
    gaps[:, 4] = np.nan
    with pytest.warns(UndeterminedWarning, match=r"1 column\(s\) \(4\) have too few entries"):
        model = imputer().fit(gaps)
    filled = model.transform(gaps)
    assert filled.shape == gaps.shape and not filled[:, 4].any() and np.isfinite(filled).all()


def test_columns_that_do_not_vary_stay_what_they_are(kinds):
    table = np.column_stack([kinds, np.full(len(kinds), 7.0), np.zeros(len(kinds))])
    filled = imputer().fit_transform(with_gaps(table))
    assert filled[:, 9:] == pytest.approx(table[:, 9:], abs=1e-6)


def test_sparse_rows_and_frames_are_filled_alike(kinds):
    gaps = with_gaps(kinds)[:50]
    gaps[3, 2] = 0.0  # known, and stored
    known = ~np.isnan(gaps)
    i, j = np.nonzero(known)
    sparse = sp.csr_array((gaps[known], (i, j)), shape=gaps.shape)
    names = [f"c{n}" for n in range(9)]
    frame = pd.DataFrame(gaps, columns=names, index=np.arange(50) + 1000)
    model = imputer().set_output(transform="pandas").fit(frame)
    filled = model.transform(frame)
    assert list(filled.columns) == names == model.get_feature_names_out().tolist()
    assert list(filled.index) == list(frame.index)
    assert np.allclose(imputer().fit(sparse).transform(sparse), filled, rtol=1e-6)
    with pytest.raises(ValueError, match="feature names"):
        model.transform(frame.rename(columns={"c0": "d0"}))


def test_pipelines_searches_and_column_transformers_know_it():
    frame = load_wine(as_frame=True).frame
    X, y = frame.drop(columns="target"), frame["target"]
    X = X.mask(np.random.default_rng(0).random(X.shape) < 0.25)
    pipe = make_pipeline(imputer(), StandardScaler(), LogisticRegression(max_iter=1000))
    assert cross_val_score(pipe, X, y, cv=3).mean() > 0.9
    grid = {"matrixcompleter__rank": [1, 4], "matrixcompleter__regularization": [1e-3, 1.0]}
    scores = GridSearchCV(pipe, grid, cv=3).fit(X, y).cv_results_["mean_test_score"]
    assert len(set(scores)) > 1 and scores.min() > 0.8
    parts = make_column_transformer(
        (imputer(), list(X.columns[:6])), (SimpleImputer(), list(X.columns[6:])),
        verbose_feature_names_out=False,
    ).set_output(transform="pandas")  # fmt: skip
    out = parts.fit_transform(X)
    assert list(out.columns) == list(X.columns) and not out.isna().any().any()
    assert clone(imputer(3)).get_params() == imputer(3).get_params()


def test_it_is_kept_in_a_file_and_learns_on(kinds, tmp_path):
    gaps = with_gaps(kinds)
    model = imputer(dtype="float32").fit(gaps[:200])
    model.save(tmp_path / "table.model")
    again = load(tmp_path / "table.model")
    assert np.allclose(again.transform(gaps[200:]), model.transform(gaps[200:]), rtol=1e-5)
    i, j = np.nonzero(~np.isnan(gaps))
    assert np.allclose(model.predict((i[:50], j[:50])), kinds[i[:50], j[:50]],
                       atol=0.5 * kinds.std(axis=0)[j[:50]])  # fmt: skip
    model = imputer().fit(gaps[:200, :3])
    model.partial_fit(gaps[:200, :3])  # what is learned now is not of columns of different kinds
    filled = model.transform(gaps[200:, :3])
    assert error(filled, kinds[200:, :3], gaps[200:, :3]) < 1
    model.save(tmp_path / "table.model")
    assert np.allclose(load(tmp_path / "table.model").transform(gaps[200:, :3]), filled)


def test_what_columns_do_not_go_with_is_said(kinds):
    for wrong in ({"loss": "huber"}, {"symmetric": True}, {"learning_rate": 0.1, "rank": 2}):
        with pytest.raises(ValueError, match="center and regularization"):
            imputer(**wrong).fit(np.eye(9))
    with pytest.raises(ValueError, match="not finite"):
        imputer().fit(kinds).transform(np.full((1, 9), np.inf))


def test_entries_of_little_weight_count_little(kinds):
    wrong, weights = kinds.copy(), np.ones(len(kinds))
    wrong[:100, ::2] = (2 * kinds.mean(axis=0) - kinds)[:100, ::2]
    weights[:100] = 1e-6
    gaps = with_gaps(kinds)[100:]
    clean, held, misled = (
        imputer(2).fit(table, sample_weight=w)
        for table, w in ((kinds[100:], None), (wrong, weights), (wrong, None))
    )
    errors = [error(m.transform(gaps), kinds[100:], gaps) for m in (clean, held, misled)]
    assert errors[1] < 1.1 * errors[0] < 0.5 * errors[2]


def test_bits_are_filled_with_probabilities():
    rng = np.random.default_rng(0)
    X = (rng.random((60, 1)) + rng.random(20) > 1).astype(float)
    filled = MatrixCompleter(2, loss="logistic", random_state=0).fit_transform(with_gaps(X))
    assert filled.min() >= 0 and filled.max() <= 1
    assert np.mean((filled > 0.5) == (X > 0.5)) > 0.9


@pytest.mark.slow
def test_filled_columns_are_as_good_as_whole_ones_for_what_follows():
    X, y = load_diabetes(return_X_y=True)
    gaps = with_gaps(X)
    model = make_pipeline(imputer(), LinearRegression())
    forest = make_pipeline(SimpleImputer(), RandomForestRegressor(random_state=0, n_estimators=30))
    scores = [cross_val_score(one, gaps, y, cv=4).mean() for one in (model, forest)]
    assert scores[0] > scores[1]
