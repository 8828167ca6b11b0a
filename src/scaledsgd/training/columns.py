"""Tables whose columns are of different kinds: centimetres beside euros.

Column j has a mean c_j, a size s_j and a noise v_j of its own, and every row has a few numbers that
all columns look at::

    y_ij = c_j + s_j (<w_j, x_i> + e_ij),    x_i ~ N(0, I),    e_ij ~ N(0, v_j)

which is factor analysis with gaps. Columns that others tell well count more for a row than noisy
ones. Expectation and maximisation by turns: of a row given the columns, the mean and covariance of
x_i; of a column given the rows, the ridge regression on them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..core.linalg import balance

_SWEEPS = 30  # where held-out entries of scikit-learn's tables gain nothing more
_ENOUGH = 20_000  # rows, drawn from all, that tell what columns are
_BLOCK = 1024  # rows at a time
_START, _NOISE = 0.7, 0.5  # the size of <w, x>, and v, to begin with, of a column of size one
_RIDGE = 2.0  # times r, on the entries of w_j: as if r directions shared half of a column's size
_VARIANCE = 0.3  # of the one entry more that v_j is taken from: none is known to the last digit
_FAR = 6.0  # standard deviations: what lies further off says no more about its row
WIDEST = 20  # directions, where the rank is not given: more gain nothing, beside that ridge


@dataclass
class Columns:
    """What the columns of a table are, in its units.

    >>> rng = np.random.default_rng(0)
    >>> taste = rng.standard_normal((200, 1))
    >>> table = taste @ [[1.0, -2.0, 3000.0]] + [5.0, 0.0, 1e5]
    >>> found = Columns.fit(table, 1, rng)
    >>> found.filled(np.array([[6.0, np.nan, np.nan]]))[0, 2].round(-2)
    np.float64(103000.0)
    """

    means: np.ndarray  # c (m,)
    loadings: np.ndarray  # s_j w_j (m, r)
    noises: np.ndarray  # s_j^2 v_j (m,)
    prior: np.ndarray  # the precision of x (r, r)

    @classmethod
    def fit(
        cls, table: np.ndarray, rank: int, rng: np.random.Generator, ridge=1.0, weights=None
    ) -> Columns:
        """Args: table (n, m), NaN for gaps; ridge, in units of the usual one; weights of the
        entries (n, m), 0 in gaps."""
        weights = ~np.isnan(table) if weights is None else weights
        if len(table) > _ENOUGH:
            some = rng.choice(len(table), _ENOUGH, replace=False)
            table, weights = table[some], weights[some]
        means, sizes = _sizes(table, weights)
        table = (table - means) / sizes
        m = table.shape[1]
        own = cls(
            np.zeros(m), _START / np.sqrt(rank) * rng.standard_normal((m, rank)),
            np.full(m, _NOISE), np.eye(rank),
        )  # fmt: skip
        for _ in range(_SWEEPS):
            own._improve(table, weights, _RIDGE * rank * ridge)
        own.means, own.noises = means + sizes * own.means, sizes**2 * own.noises
        own.loadings *= sizes[:, None]
        return own

    def rows(self, table: np.ndarray, weights: np.ndarray | None = None) -> np.ndarray:
        """What is expected of x (n, r) by what is known of each row."""
        weights = ~np.isnan(table) if weights is None else weights
        told = np.einsum("mq,mq->m", self.loadings, np.linalg.solve(self.prior, self.loadings.T).T)
        far = _FAR * np.sqrt(np.maximum(told, 0.0) + self.noises)
        table = np.clip(table, self.means - far, self.means + far)
        return np.concatenate([
            self._expected(table[part], weights[part])[0] for part in _blocks(len(table))
        ])  # fmt: skip

    def filled(self, table: np.ndarray) -> np.ndarray:
        """The expected entries (n, m) of each row."""
        return self.rows(table) @ self.loadings.T + self.means

    def balanced(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Go to the basis in which both sides have the same Gram, a diagonal. Args: rows (n, r).
        Returns: those there, and the Gram's diagonal."""
        T, U, spectrum = balance(rows.T @ rows, self.loadings.T @ self.loadings)
        self.loadings, self.prior = self.loadings @ U, U.T @ self.prior @ U
        return rows @ T, spectrum

    def _expected(self, table: np.ndarray, weights: np.ndarray):
        """Mean (n, r) and covariance (n, r, r) of x; and what is known (n, m), less the means."""
        y = np.where(np.isnan(table), 0.0, table - self.means)
        m, r = self.loadings.shape
        weighed = self.loadings / self.noises[:, None]
        squares = (weighed[:, :, None] * self.loadings[:, None, :]).reshape(m, -1)
        information = (weights.astype(np.float64) @ squares).reshape(-1, r, r)
        covariance = np.linalg.inv(information + self.prior)
        return np.einsum("nqp,np->nq", covariance, (weights * y) @ weighed), covariance, y

    def _improve(self, table: np.ndarray, weights: np.ndarray, ridge: float) -> None:
        """Regress every column on what is expected of the rows, and take its noise."""
        m, r = self.loadings.shape
        grams, products = np.zeros((m, (r + 1) ** 2)), np.zeros((m, r + 1))
        counts, squares = np.zeros(m), np.zeros(m)
        for part in _blocks(len(table)):
            known = weights[part].astype(np.float64)
            x, covariance, y = self._expected(table[part], known)
            x = np.hstack([x, np.ones((len(x), 1))])  # of the mean
            moments = x[:, :, None] * x[:, None, :]
            moments[:, :r, :r] += covariance
            grams += known.T @ moments.reshape(len(x), -1)
            products += (known * y).T @ x
            counts += known.sum(axis=0)
            squares += (known * y * y).sum(axis=0)
        G = grams.reshape(m, r + 1, r + 1)
        hold = np.diag(np.append(np.full(r, ridge + 1e-9), 1e-9))  # of a column without entries
        W = np.linalg.solve(G + self.noises[:, None, None] * hold, products[:, :, None])[:, :, 0]
        left = squares - 2 * (W * products).sum(axis=1) + np.einsum("mq,mqp,mp->m", W, G, W)
        self.noises = (np.maximum(left, 0.0) + _VARIANCE) / (counts + 1)
        self.loadings, self.means = W[:, :r], self.means + W[:, r]


def _blocks(rows: int) -> list[slice]:
    return [slice(n, n + _BLOCK) for n in range(0, rows, _BLOCK)]


def _sizes(table: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of every column; 0 and 1 where nothing is known, 1 where nothing
    varies."""
    known, total = ~np.isnan(table), weights.sum(axis=0)
    total = np.where(total > 0, total, 1.0)
    unit = np.max(np.abs(table), axis=0, where=known, initial=0.0)  # whose square is a number
    unit[unit == 0] = 1.0
    y = np.where(known, table / unit, 0.0)
    means = (weights * y).sum(axis=0) / total
    sizes = np.sqrt((weights * (y - means) ** 2).sum(axis=0) / total)
    sizes[sizes <= 1e-12] = 1.0
    return means * unit, sizes * unit
