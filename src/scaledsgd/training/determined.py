"""Which rows the entries determine, once something is learned.

Of an exact fit those are not determined that another one, from nearby, has elsewhere; in noise
those whose entries amplify it; and those that hardly any entries tie to the others (`connected`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.factors import Factors
from ..core.losses import rms
from ..core.observations import Chunk, Observations
from ..engines.cpu.normal_kernels import Normal
from .connected import apart
from .exact import EXACT, Exact

# Samples for each number: up to which an exact fit is looked at again; and from where on mentions
# are as good as entries: both are enough.
SPARSE, PLENTY = 2.6, 10.0
# To see whether an exact fit is the only one nearby: how far its rows are moved, in units of the
# smallest direction's size, and how far one ends from where it was that is not determined; and the
# smallest direction, of the largest, that rounding leaves visible.
_NUDGE, _ELSEWHERE, _LEAST = 0.01, 1e-5, 1e-6
_JUDGES, _MOSTLY = 40, 0.7  # rows of the other side that show it, and the share that has to agree
# Errors to be expected from the noise, in units of what they would be if all rows were as well
# known: of all entries, and of a row's that is to blame.
_WEAK, _BLAMED = 1.2, 8.0
_LOOKED_AT = 3e7  # numbers in the blocks of all rows that this may cost


def loose(
    fits: Exact, rest: Observations, held: Chunk | None, policy: Any, entries: int, *,
    solved: bool, wide: bool,
) -> list[np.ndarray]:  # fmt: skip
    """Rows of each side, as booleans, that the entries do not tell although they are enough.
    Args: policy, whose errors and useful directions are known; entries, how many there are; solved,
    whether the fit is exact; wide, whether its rank was to be found."""
    factors = fits.factors
    r = policy.columns or factors.rank
    used = max(policy.useful, 1) if solved else r if wide else factors.rank
    enough = entries > (SPARSE if solved else PLENTY) * factors.numbers(used)
    if enough or len(factors.X) * r**2 > _LOOKED_AT:
        return [np.zeros(len(side), bool) for side in factors.sides]
    parts = [fits.seen(part) for part in (rest, held) if part is not None]
    every = Chunk(*(np.concatenate(both) for both in zip(*parts, strict=True)))
    X = np.ascontiguousarray(factors.X[:, :r], np.float64)
    if solved:
        return _movable(fits, X[:, : max(policy.useful, 1)].copy(), every)
    return _noisy(fits, X, every, factors.numbers(r) / entries, policy.size**2)


def tied(rest: Observations, r: int, factors: Factors) -> list[np.ndarray]:
    """Rows of each side, as booleans, that too few entries tie to the others."""
    return apart(rest.index, rest.shape, factors.rows is None, r, factors.seed)


def _movable(fits: Exact, X: np.ndarray, every: Chunk) -> list[np.ndarray]:
    """Rows that an exact fit from nearby has elsewhere."""
    factors = fits.factors
    rng = np.random.default_rng([factors.seed, 7])
    X, _ = fits.descend(X, every)
    size = np.mean(X**2, axis=0)  # by as much as the smallest direction is large, in all
    least = max(float(size.min() / size.max()), _LEAST)
    by = _NUDGE * least * size.max() / np.sqrt(np.maximum(size, least * size.max()))
    Z, fit = fits.descend(X + by * rng.standard_normal(X.shape), every)
    if fit > EXACT:
        return [np.zeros(len(side), bool) for side in factors.sides]
    return _elsewhere(X, Z, factors, _ELSEWHERE * least)


def _elsewhere(X: np.ndarray, Z: np.ndarray, factors: Factors, far: float) -> list[np.ndarray]:
    """Rows of each side that differ between two fits, by most of their products with some rows
    of the other side: with the few that are not determined there, all differ. Args: far, in units
    of products."""
    both = Factors(np.hstack([X, Z]), factors.rows, gap=factors.gap).sides
    r, minus, sides = X.shape[1], np.repeat([1.0, -1.0], X.shape[1]), []
    for side, own in enumerate(both):
        other = both[(side + 1) % len(both)]
        some = other[:: max(1, len(other) // _JUDGES)]
        moved = np.quantile(np.abs(own @ (some * minus).T), _MOSTLY, axis=1)
        sides.append(moved > far * rms(own[:, :r] @ some[:, :r].T))
    return sides


def _noisy(fits: Exact, X: np.ndarray, every: Chunk, share: float, most: float) -> list[np.ndarray]:
    """Rows whose entries amplify the noise. Args: share, numbers that are learned for each entry;
    most, the variance of what nothing is known of."""
    factors, r = fits.factors, X.shape[1]
    e = np.real(every.targets) - fits.scores(X, every)
    normal = Normal(every.index, len(X), factors.begin, np.ones(1), False, fits.host.crew)
    normal.at(X, e, 0.0)
    variance = float(np.mean(e**2)) / max(1 - share, 0.1)
    bound, errors, sides = variance * share, [], [side[:, :r] for side in factors.sides]
    for side, own in enumerate(sides):
        other = sides[(side + 1) % len(sides)]
        G, blocks = other.T @ other / len(other), normal.of_rows(side)[: len(own)]
        blocks += np.tril(blocks, -1).transpose(0, 2, 1)
        floor = 1e-12 * np.trace(blocks, axis1=1, axis2=2)[:, None, None] + 1e-300
        inverse = np.linalg.inv(blocks + floor * np.eye(r))
        errors.append(np.minimum(variance * np.einsum("dqp,qp->d", inverse, G), most))
    if sum(np.mean(rows) for rows in errors) <= _WEAK**2 * bound * len(errors) / 2:
        return [np.zeros(len(rows), bool) for rows in errors]
    blamed = min(_BLAMED * bound / 2, max(float(rows.max()) for rows in errors))
    return [rows >= blamed for rows in errors]
