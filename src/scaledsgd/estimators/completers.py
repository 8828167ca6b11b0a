"""Matrices from some of their entries, and points from some of their distances."""

from __future__ import annotations

from glob import has_magic
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, validate_data

from ..core.losses import LOSSES, Loss
from ..core.observations import Observations
from ..core.validation import clipped
from ..io.ids import Ids
from ..io.readers import open_file
from ..io.schema import Either, Number, told
from ..io.tables import are_files, columns_of
from ..training.columns import Columns
from ..training.completion import Completion
from ..training.history import UndeterminedWarning, warn
from ..training.ridge import Biases
from .base import FLAG, SETTINGS, Learner


class Completer(Learner):
    """An estimator that learns from entries (row, column, target)."""

    def fit(self, X, y=None, *, row=None, column=None, value=None, sample_weight=None):
        """Learn from a sparse matrix (stored entries are what is known), an array with NaN for
        the unknown, a frame or the path of a file with the named columns, or Observations. On a
        cluster, from Parquet files: a pattern or a list of paths.

        sample_weight : what the loss of each entry counts, relative to that of the others: of a
            table in the order of its lines, or the name of a column; of a matrix one for each row,
            or a sparse matrix of weights.

        >>> M = np.array([[1.0, 2.0], [2.0, 4.0], [3.0, 9.0]])  # of which the last is a mistake
        >>> weights = sp.csr_array([[1, 1], [1, 1], [1, 1e-6]])
        >>> model = MatrixCompleter(rank=1, random_state=0).fit(M, sample_weight=weights)
        >>> model.predict(([2], [1])).round(2)
        array([6.])
        """
        names = row, column, value
        X = self._opened(X, names, sample_weight)
        seen = self._observed(X, names, fresh=True, weights=self._weights(X, sample_weight))
        self.history_ = self._trainer.complete(seen, epochs=self.epochs, **self._how())
        self._warn()
        return self

    def partial_fit(self, X, y=None, *, row=None, column=None, value=None, sample_weight=None):
        """One pass over new entries. Rows and columns not seen before are added. A
        `sample_weight` of 1 is that of an entry without."""
        fresh, names = not hasattr(self, "history_"), (row, column, value)
        X = self._opened(X, names, sample_weight)
        weights = self._weights(X, sample_weight)
        seen = self._observed(X, names, fresh=fresh, weights=weights, relative=False)
        with self._trainer.following(seen) as left:
            self._trainer.run(left, epochs=1, streaming=True, **self._how())
        return self

    def _opened(self, X, names: tuple, weight) -> Any:
        """What is in a file, if that is meant by X; a cluster opens its files by itself."""
        if self.engine is not None or not isinstance(X, str | PathLike):
            return X
        if has_magic(str(X)) and not Path(X).exists():
            return X  # a pattern
        source = open_file(X)
        if not source.names:
            return source.matrix(names[2])
        if None in names:
            raise ValueError(f"{X}: name the columns: row=, column= and value=")
        numbers = [names[2], weight] if isinstance(weight, str) else [names[2]]
        return source.table(list(names[:2]), numbers)

    def _weights(self, X, given):
        """Weights of samples, a column of the table if they have a name."""
        if given is None:
            return None
        return columns_of(X, (given,))[0] if isinstance(given, str) else given

    _trainer: Completion

    def _trainer_of(self, *given) -> Completion:
        return Completion(*given, wide=self.rank == "auto", **self._ways())

    def _warn(self) -> None:
        """Say what the entries did not determine."""
        trainer, told = self._trainer, []
        for side, rows in trainer.undetermined.items():
            if rows:
                names = self._ids[side].names()[rows[:3]].tolist() if self._ids else rows[:3]
                some = ", ".join(map(str, names)) + (", ..." if len(rows) > 3 else "")
                told.append(f"{len(rows)} {self._sides[side]}(s) ({some}) have too few entries")
        if trainer.lost and trainer.held_error is None:
            off = 2 * trainer.policy.train / trainer.policy.size  # its slope is half the residual
            told.append(
                f"too few distances to hold any out, and those given are met up to {off:.2g} of "
                "their size: by their noise, or by a wrong shape"
            )
        elif trainer.lost:
            told.append(
                f"the error on held-out entries is {trainer.held_error:.2g}, far above that on the "
                "others: too few entries, or too large a rank"
            )
        if told:
            warn(f"not determined: {'; '.join(told)}", UndeterminedWarning)

    @property
    def _smallest(self) -> float:
        """Where targets are brought to a size of one, it is the factors that must not vanish."""
        if self.learning_rate != "auto" or self.objective.name == "logistic":
            return super()._smallest
        return 1e-60 if str(np.dtype(self.dtype)) == "float32" else 1e-300

    def _ways(self) -> dict:
        """Settings of a fit that not all have."""
        return {}

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


_LOSSES = "squared", "huber", "logistic"  # of entries


class MatrixCompleter(OneToOneFeatureMixin, TransformerMixin, Completer):
    """Complete a low-rank matrix from some of its entries.

    Parameters
    ----------
    rank : how many directions to learn at most; "auto" for as many as the data bears out. What was
        found is `effective_rank_`.
    loss : "squared"; "huber" where some entries are grossly wrong: what lies further off than the
        typical residual counts no more than that; "logistic" for bits or probabilities.
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
    center : add a mean, and a bias for every row and column: "auto" where that helps on held-out
        entries, True or False. "columns" is for tables whose columns are of different kinds, as
        centimetres beside euros: each has a mean, a size and a noise of its own; "auto" tries that
        where columns differ by orders of magnitude. Squared loss, two sides.
    regularization : a ridge beside them, as a share of what noise alone would need, or, with
        "columns", of the usual one; "auto" finds it on held-out entries, where one helps; 0 for
        none.

    >>> M = np.outer([1.0, 2.0, 3.0], [1.0, 1.0, 2.0])
    >>> M[2, 2] = np.nan
    >>> model = MatrixCompleter(rank=1, epochs=100, random_state=0).fit(M)
    >>> model.predict(([2], [2])).round(3)
    array([6.])

    In a pipeline it fills the gaps of rows that it has not seen:

    >>> from sklearn.linear_model import LinearRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> rng = np.random.default_rng(0)
    >>> X = rng.standard_normal((200, 1)) * [1.0, 20.0, 3000.0] + [5.0, 0.0, 1e5]
    >>> y, gaps = X[:, 0], np.where(rng.random(X.shape) < 0.3, np.nan, X)
    >>> fill = MatrixCompleter("auto", center="columns", random_state=0)
    >>> pipe = make_pipeline(fill, LinearRegression()).fit(gaps[:100], y[:100])
    >>> pipe.score(gaps[100:], y[100:]) > 0.9
    True
    """

    _legal = SETTINGS | {
        "loss": Either(*_LOSSES),
        "symmetric": FLAG,
        "center": Either("auto", "columns", FLAG),
        "regularization": Either("auto", Number(0)),
    }

    def __init__(
        self, rank: int | str = 2, *, loss="squared", symmetric=False, scaled=True,
        learning_rate: float | str = "auto", damping: float | str = "auto", refresh="round",
        epochs=200, tol=1e-16, evaluations=1, n_jobs=1, device="cpu", engine=None,
        dtype="float64", random_state=None, callbacks=(), verbose=False, center="auto",
        regularization: float | str = "auto",
    ):  # fmt: skip
        super().__init__(
            rank, scaled=scaled, learning_rate=learning_rate, damping=damping, refresh=refresh,
            epochs=epochs, tol=tol, evaluations=evaluations, n_jobs=n_jobs, device=device,
            engine=engine, dtype=dtype, random_state=random_state, callbacks=callbacks,
            verbose=verbose,
        )  # fmt: skip
        self.loss = loss
        self.symmetric = symmetric
        self.center = center
        self.regularization = regularization

    def _ways(self) -> dict:
        asked = self.center not in ("auto", False) or self.regularization not in ("auto", 0)
        if asked and (self.symmetric or self.loss != "squared"):
            raise ValueError("center and regularization are for loss='squared' with two sides")
        return {"center": self.center, "regularization": self.regularization}

    @property
    def intercept_(self) -> float:
        """The mean that is added to every entry; 0 where that does not help."""
        return self._biases.mean

    @property
    def row_bias_(self) -> np.ndarray:
        """What is added to the entries of every row."""
        return self._biases.rows

    @property
    def column_bias_(self) -> np.ndarray:
        """What is added to the entries of every column."""
        return self._biases.columns

    @property
    def _biases(self) -> Biases:
        check_is_fitted(self, "history_")
        biases = self._trainer.biases or Biases(0.0, np.zeros(0), np.zeros(0))
        biases.grow(self.factors.shape)
        return biases

    def scores(self, sides: list[np.ndarray]) -> np.ndarray:
        z = super().scores(sides)
        return z if self._trainer.biases is None else z + self._biases.of(np.stack(sides, axis=1))

    def _memory(self) -> dict[str, np.ndarray]:
        trainer, memory = self._trainer, {}
        if trainer.biases is not None:
            biases = self._biases
            memory = {"row_bias": biases.rows, "column_bias": biases.columns,
                      "intercept": np.array([biases.mean, trainer.ridge])}  # fmt: skip
        known = all(
            len(seen) == rows
            for seen, rows in zip(trainer.counts, self.factors.shape, strict=False)
        )
        if trainer.noise is not None and known:
            seen = {f"seen{side}": counts for side, counts in enumerate(trainer.counts)}
            memory |= seen | {"noise": np.array([trainer.noise])}
        if trainer.columns is not None:
            memory |= {"column_noise": trainer.columns.noises, "row_prior": trainer.columns.prior}
        return memory

    def _restore(self, arrays: dict[str, np.ndarray], facts: dict):
        super()._restore(arrays, facts)
        if "intercept" in arrays:
            mean, self._trainer.ridge = map(float, arrays["intercept"])
            self._trainer.biases = Biases(mean, arrays["row_bias"], arrays["column_bias"])
        if "noise" in arrays:
            self._trainer.noise = float(arrays["noise"][0])
            self._trainer.counts = [arrays["seen0"], arrays["seen1"]]
        if "column_noise" in arrays:
            R = self.column_factors_.astype(np.float64)
            own = arrays["column_bias"], R, arrays["column_noise"], arrays["row_prior"]
            self._trainer.columns = Columns(*own)
        return self

    @property
    def objective(self) -> Loss:
        if self.loss not in _LOSSES:
            raise ValueError(f"loss={self.loss!r} is not {told(Either(*_LOSSES))}")
        return LOSSES[self.loss]

    @property
    def is_symmetric(self) -> bool:
        return self.symmetric

    def predict(self, X, return_std: bool = False, clip=None) -> Any:
        """Entries of the matrix, or the gaps of new rows filled in.

        `X` names entries: a tuple (rows, columns) of ids or numbers, or an integer array of two
        columns. Any other matrix is read as rows with NaN for the unknown, and comes back full.

        With `return_std`, also the standard deviation of each entry, should it be observed: that of
        the noise, and of what is not known of its row and column. `clip`, a pair (low, high), holds
        predictions within a scale, as that of ratings.
        """
        check_is_fitted(self, "history_")
        if isinstance(X, tuple) or _are_pairs(X):
            z = clipped(self._entries(X), clip)
            return (z, self._deviations(X)) if return_std else z
        if return_std:
            raise ValueError("return_std is for entries named by (rows, columns)")
        if sp.issparse(X):
            raise TypeError("sparse rows are filled in by transform(X)")
        return clipped(self._filled(self._rows(X)), clip)

    def _filled(self, X) -> np.ndarray:
        """What is expected of all entries of checked rows."""
        rows, biases = self._folded_in(X)
        filled = rows @ self.column_factors_.T.astype(np.float64)
        if self._trainer.biases is None:
            return filled
        return filled + biases[:, None] + self.intercept_ + self.column_bias_

    def _deviations(self, pairs) -> np.ndarray:
        pairs = pairs if isinstance(pairs, tuple) else np.asarray(pairs).T
        index = np.stack([self.row_numbers(pairs[0], 0), self.row_numbers(pairs[1], 1)], axis=1)
        trainer = self._trainer
        if trainer.noise is None or any(
            len(seen) < rows for seen, rows in zip(trainer.counts, self.factors.shape, strict=True)
        ):
            raise ValueError(
                "return_std needs a fit with loss='squared', learning_rate='auto', device='cpu', "
                "enough entries to hold some out, and nothing learned since"
            )
        return trainer.noise * np.sqrt(1 + trainer.spread(index))

    @available_if(lambda self: self.loss == "logistic")
    def predict_proba(self, X) -> np.ndarray:
        """Probability of a one at each of the entries."""
        return self.objective.inverse_link(self.predict(X))

    def transform(self, X) -> np.ndarray:
        """Rows (n, columns) with their gaps filled: what is known stays, the rest is what the best
        fit to the column factors says. Of a sparse matrix, what is not stored is a gap. A row of
        which nothing is known is filled with what is usual in each column; with the logistic loss,
        gaps are filled with probabilities.

        >>> M = np.outer([1.0, 2.0, 3.0, 4.0], [1.0, 1.0, 2.0])
        >>> model = MatrixCompleter(rank=1, random_state=0).fit(M)
        >>> model.transform([[5.0, np.nan, np.nan]]).round(3)
        array([[ 5.,  5., 10.]])
        """
        X = self._rows(X)
        filled = self._filled(X)
        if self.loss == "logistic":
            filled = self.objective.inverse_link(filled)
        known = _dense(X)
        return np.where(np.isnan(known), filled, known).astype(X.dtype)

    def fold_in(self, X) -> np.ndarray:
        """Factors (n, rank) of rows given by some of their entries: the best fit to the column
        factors.

        >>> M = np.outer([1.0, 2.0, 3.0], [1.0, 1.0, 2.0])
        >>> model = MatrixCompleter(rank=1, random_state=0).fit(M)
        >>> rows = model.fold_in([[5.0, np.nan, 10.0]])
        >>> (rows @ model.column_factors_.T).round(3)
        array([[ 5.,  5., 10.]])
        """
        return self._folded_in(self._rows(X))[0]

    def _rows(self, X) -> Any:
        """Rows with gaps, checked: an array with NaN, or a sparse one."""
        check_is_fitted(self, "history_")
        X = self._matrix(sp.csr_array(X) if sp.issparse(X) else X, reset=False)
        if not np.isfinite(X.data).all() if sp.issparse(X) else np.isinf(X).any():
            raise ValueError("the rows hold numbers that are not finite")
        return X

    def _folded_in(self, X) -> tuple[np.ndarray, np.ndarray]:
        """Factors (n, r) and biases (n,) of checked rows given by some of their entries."""
        if self._trainer.columns is not None:
            return self._trainer.columns.rows(_dense(X)), np.zeros(X.shape[0])
        R, centred = self.column_factors_.astype(np.float64), self._trainer.biases is not None
        usual = np.zeros(R.shape[1])
        if centred:
            R = np.hstack([R, np.ones((len(R), 1))])
            usual = np.append(usual, 0.0)
        elif self.row_factors_.size:
            usual = self.row_factors_.mean(axis=0, dtype=np.float64)
        out = np.tile(usual, (X.shape[0], 1))
        for n in range(len(out)):
            if sp.issparse(X):
                part = slice(X.indptr[n], X.indptr[n + 1])
                known, y = X.indices[part], X.data[part]
            else:
                known = np.flatnonzero(~np.isnan(X[n]))
                y = X[n, known]
            if not len(y):
                continue
            if centred:
                hold = self._trainer.ridge * np.sqrt(len(y)) * np.eye(R.shape[1])
                A, b = R[known], y - self.intercept_ - self.column_bias_[known]
                out[n] = np.linalg.lstsq(A.T @ A + hold, A.T @ b, rcond=None)[0]
            else:
                out[n] = _fold_in(R[known], y, self.objective, self._trainer.policy.threshold)
        r = self.factors.rank
        return out[:, :r], out[:, r] if centred else np.zeros(len(out))

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

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = True
        return tags


def _dense(X) -> np.ndarray:
    """Rows as an array with NaN for the unknown."""
    if not sp.issparse(X):
        return X.astype(np.float64)
    out = np.full(X.shape, np.nan)
    out[np.repeat(np.arange(X.shape[0]), np.diff(X.indptr)), X.indices] = X.data
    return out


def _are_pairs(X) -> bool:
    return not sp.issparse(X) and np.asarray(X).dtype.kind in "iu" and np.shape(X)[1:] == (2,)


def _fold_in(R: np.ndarray, y: np.ndarray, loss: Loss, threshold: float = 0.0) -> np.ndarray:
    """The w that minimises the loss of R w. Each pass minimises the parabola that touches the loss
    from above, which for the squared loss is the loss itself; Huber's are as steep as the residual
    is small."""
    w = np.zeros(R.shape[1])
    if loss.name == "huber":
        for _ in range(50):
            e = np.abs(R @ w - y)
            root = np.sqrt(1 / np.maximum(e, threshold or 1.0))
            w = np.linalg.lstsq(R * root[:, None], y * root, rcond=None)[0]
        return w
    inverse = np.linalg.pinv(R)
    for _ in range(1 if loss.name == "squared" else 200):
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
        """The points turned, mirrored and moved so that the anchors lie at their positions; with a
        warning where that can be done in several ways."""
        X = self.points_
        at = self.row_numbers(list(anchors), 0)
        try:
            positions = np.asarray(positions, dtype=np.float64)
        except OverflowError:
            raise ValueError("a position is larger than any number of 64 bits") from None
        if positions.shape != (len(at), X.shape[1]):
            raise ValueError(
                f"{len(at)} anchors in {X.shape[1]} dimensions need positions of shape "
                f"{(len(at), X.shape[1])}, not {positions.shape}"
            )
        middle, goal = X[at].mean(axis=0), positions.mean(axis=0)
        if np.linalg.matrix_rank(positions - goal, rtol=1e-6) < X.shape[1]:
            warn(
                f"{len(at)} anchors do not say how the points are turned or mirrored: in "
                f"{X.shape[1]} dimensions it takes {X.shape[1] + 1}, not on one line or plane",
                UndeterminedWarning,
            )
        U, _, Vt = np.linalg.svd((X[at] - middle).T @ (positions - goal))
        return (X - middle) @ U @ Vt + goal
