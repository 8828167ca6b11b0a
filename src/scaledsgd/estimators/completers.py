"""Matrices from some of their entries, and points from some of their distances."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from ..core.losses import LOSSES, Loss
from ..core.observations import Observations
from ..io.ids import Ids
from ..io.schema import Either
from ..io.tables import are_files, columns_of
from .base import FLAG, SETTINGS, Learner


class Completer(Learner):
    """An estimator that learns from entries (row, column, target)."""

    def fit(self, X, y=None, *, row=None, column=None, value=None):
        """Learn from a sparse matrix (stored entries are what is known), an array with NaN for
        the unknown, a frame with the named columns, or Observations. On a cluster, from Parquet
        files: a pattern or a list of paths."""
        return self._learn(X, (row, column, value), self.epochs, fresh=True)

    def partial_fit(self, X, y=None, *, row=None, column=None, value=None):
        """One pass over new entries. Rows and columns not seen before are added."""
        fresh = not hasattr(self, "history_")
        return self._learn(X, (row, column, value), 1, fresh=fresh, streaming=True)

    def _new_ids(self) -> list[Ids]:
        ids = Ids()
        return [ids, ids] if self.is_symmetric else [ids, Ids()]

    def _observe(self, data, names, *, reset: bool) -> Observations:
        loss, symmetric = self.objective.name, self.is_symmetric
        if isinstance(data, Observations):
            observations = data
        elif are_files(data):
            observations = self._in_files(data, names[:2], names[2])
        elif self._ids is not None:
            rows, columns, targets = columns_of(data, names)
            i, j = self._ids[0].add(rows, names[0]), self._ids[1].add(columns, names[1])
            shape = (len(self._ids[0]), len(self._ids[1]))
            observations = Observations.pairs(
                i, j, targets, shape=shape, loss=loss, symmetric=symmetric
            )
        else:
            data = self._matrix(data, reset=reset)
            observations = Observations.matrix(data, loss=loss, symmetric=symmetric)
        self.n_features_in_ = observations.shape[1]
        return observations

    def _matrix(self, X, *, reset: bool) -> Any:
        if sp.issparse(X):
            X = X.tocoo() if X.format not in ("csr", "csc", "coo") else X
        try:
            return validate_data(
                self, X, reset=reset, accept_sparse=("csr", "csc", "coo"),
                dtype=(np.float64, np.float32), ensure_all_finite=False,
            )  # fmt: skip
        except OverflowError as why:
            raise ValueError(f"the matrix holds a number that is too large ({why})") from None

    def _entries(self, pairs) -> np.ndarray:
        """z of the entries named by (rows, columns) or an array of two columns."""
        if not isinstance(pairs, tuple):
            pairs = np.asarray(pairs).T
        if len(pairs) != 2:
            raise ValueError("entries are named by (rows, columns) or an array of two columns")
        return self.scores([self.row_numbers(pairs[0], 0), self.row_numbers(pairs[1], 1)])


class MatrixCompleter(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Completer):
    """Complete a low-rank matrix from some of its entries.

    Parameters
    ----------
    rank : how many directions to learn at most; "auto" for as many as the data bears out. What was
        found is `effective_rank_`.
    loss : "squared", or "logistic" for targets that are bits or probabilities.
    symmetric : learn M ~ X X^T (the paper's case) instead of M ~ L R^T.
    scaled : step with the preconditioner P; False is plain SGD.
    learning_rate : the paper's alpha; "auto" finds its step, and which directions to keep.
    damping : c in P = 1 / (spectrum + c d rms), where rms is the running residual. 0 is the
        paper's; "auto" is 0 beside a learning rate of your own, otherwise 1.
    refresh : "round" keeps P diagonal and frozen for a round; "sample" is the paper to the letter.
    epochs, tol : passes over the entries at most, ended when the mean loss falls to `tol` of that
        of a zero matrix, or when "auto" sees nothing more to gain.
    evaluations : how often an epoch the mean loss is taken.
    n_jobs : threads. They have rows of their own and repeat a result to the bit, but for data so
        small that they share rows, lock-free: then only one thread does.
    device : "cpu", "cuda", or "auto" for the GPU where it pays.
    engine : who trains instead of this machine: a `RayEngine`.
    dtype, random_state, callbacks, verbose : as their names say.

    >>> M = np.outer([1.0, 2.0, 3.0], [1.0, 1.0, 2.0])
    >>> M[2, 2] = np.nan
    >>> model = MatrixCompleter(rank=1, epochs=100, random_state=0).fit(M)
    >>> model.predict(([2], [2])).round(3)
    array([6.])
    """

    _legal = SETTINGS | {"loss": Either("squared", "logistic"), "symmetric": FLAG}

    def __init__(
        self, rank=2, *, loss="squared", symmetric=False, scaled=True,
        learning_rate: float | str = "auto", damping: float | str = "auto", refresh="round",
        epochs=200, tol=1e-16, evaluations=1, n_jobs=1, device="cpu", engine=None,
        dtype="float64", random_state=None, callbacks=(), verbose=False,
    ):  # fmt: skip
        super().__init__(
            rank, scaled=scaled, learning_rate=learning_rate, damping=damping, refresh=refresh,
            epochs=epochs, tol=tol, evaluations=evaluations, n_jobs=n_jobs, device=device,
            engine=engine, dtype=dtype, random_state=random_state, callbacks=callbacks,
            verbose=verbose,
        )  # fmt: skip
        self.loss = loss
        self.symmetric = symmetric

    @property
    def objective(self) -> Loss:
        if self.loss not in ("squared", "logistic"):
            raise ValueError(f"loss={self.loss!r} is not 'squared' or 'logistic'")
        return LOSSES[self.loss]

    @property
    def is_symmetric(self) -> bool:
        return self.symmetric

    def predict(self, X) -> np.ndarray:
        """Entries of the matrix, or the gaps of new rows filled in.

        `X` names entries: a tuple (rows, columns) of ids or numbers, or an integer array of two
        columns. Any other matrix is read as rows with NaN for the unknown, and comes back full.
        """
        check_is_fitted(self, "history_")
        if isinstance(X, tuple) or _are_pairs(X):
            return self._entries(X)
        if sp.issparse(X):
            raise TypeError("sparse rows are filled in by transform(X) @ column_factors_.T")
        return self.transform(X) @ self.column_factors_.T

    @available_if(lambda self: self.loss == "logistic")
    def predict_proba(self, X) -> np.ndarray:
        """Probability of a one at each of the entries."""
        return self.objective.inverse_link(self.predict(X))

    def transform(self, X) -> np.ndarray:
        """Factors of rows given by some of their entries: the best fit to the column factors."""
        check_is_fitted(self, "history_")
        X = sp.csr_array(X) if sp.issparse(X) else X
        X = self._matrix(X, reset=False)
        if not np.isfinite(X.data).all() if sp.issparse(X) else np.isinf(X).any():
            raise ValueError("the rows hold numbers that are not finite")
        R = self.column_factors_.astype(np.float64)
        out = np.zeros((X.shape[0], self.factors.rank))
        for n in range(len(out)):
            if sp.issparse(X):
                part = slice(X.indptr[n], X.indptr[n + 1])
                known, y = X.indices[part], X.data[part]
            else:
                known = np.flatnonzero(~np.isnan(X[n]))
                y = X[n, known]
            out[n] = _fold_in(R[known], y, self.objective)
        return out

    @property
    def row_factors_(self) -> np.ndarray:
        return self.factors.left

    @property
    def column_factors_(self) -> np.ndarray:
        return self.factors.right

    @property
    def factors_(self) -> np.ndarray:
        """X of the symmetric case, M ~ X X^T."""
        if not self.symmetric:
            raise AttributeError("factors_ is for symmetric=True: see row_factors_")
        return self.factors.X

    @property
    def _n_features_out(self) -> int:
        return self.factors.rank

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        return tags


def _are_pairs(X) -> bool:
    return not sp.issparse(X) and np.asarray(X).dtype.kind in "iu" and np.shape(X)[1:] == (2,)


def _fold_in(R: np.ndarray, y: np.ndarray, loss: Loss) -> np.ndarray:
    """The w that minimises the loss of R w. Each pass minimises the parabola that touches the loss
    from above, which for the squared loss is the loss itself."""
    w = np.zeros(R.shape[1])
    inverse = np.linalg.pinv(R)
    for _ in range(1 if loss.curvature == 1 else 200):
        step = inverse @ (loss.slope(R @ w, y) / loss.curvature)
        w -= step
        if np.abs(step).max() < 1e-10:
            break
    return w


class DistanceCompleter(Completer):
    """Coordinates of points from some of their squared distances.

    >>> rng = np.random.default_rng(0)
    >>> points = rng.random((40, 2))
    >>> D = ((points[:, None] - points) ** 2).sum(axis=2)
    >>> D[rng.random(D.shape) < 0.5] = np.nan
    >>> D = np.where(np.isnan(D), D.T, D)
    >>> model = DistanceCompleter(rank=2, epochs=200, random_state=0).fit(D)
    >>> float(np.abs(model.align(range(3), points[:3]) - points).max()) < 1e-6
    True
    """

    @property
    def objective(self) -> Loss:
        return LOSSES["distance"]

    @property
    def is_symmetric(self) -> bool:
        return True

    def predict(self, pairs) -> np.ndarray:
        """Squared distances between the points named by (rows, columns)."""
        check_is_fitted(self, "history_")
        return self._entries(pairs)

    @property
    def points_(self) -> np.ndarray:
        """The points, centred, along their principal axes: distances leave those free."""
        X = self.factors.X.astype(np.float64)
        X = X - X.mean(axis=0)
        return X @ np.linalg.eigh(X.T @ X)[1][:, ::-1]

    def align(self, anchors, positions) -> np.ndarray:
        """The points turned, mirrored and moved so that the anchors lie at their positions."""
        X = self.points_
        at = self.row_numbers(list(anchors), 0)
        positions = np.asarray(positions, dtype=np.float64)
        if positions.shape != (len(at), X.shape[1]):
            raise ValueError(
                f"{len(at)} anchors in {X.shape[1]} dimensions need positions of shape "
                f"{(len(at), X.shape[1])}, not {positions.shape}"
            )
        middle, goal = X[at].mean(axis=0), positions.mean(axis=0)
        U, _, Vt = np.linalg.svd((X[at] - middle).T @ (positions - goal))
        return (X - middle) @ U @ Vt + goal
