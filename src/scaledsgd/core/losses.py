"""The losses of the paper and one more, Huber's, one row of a table each.

Every loss is a scalar function psi(z, y) of one bilinear form over the two or three rows that a
sample names::

    z = <u, v>,   u = sum_m a_m x_m,   v = sum_m b_m x_m

and the step on each of those rows is the same for all of them::

    x_m  <-  x_m - alpha * psi'(z, y) * P (a_m v + b_m u)

so an engine implements the step once and reads the rest from here. An observation that has a weight
w is the complex number y + i w: it goes wherever a target goes, and sums of real numbers leave the
weight what it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

# Below this the sigmoid is 1e-35 and exp(-z) still fits a float32.
_LOWEST = -80.0


def _half_square(z, y):
    return 0.5 * (z - y) * (z - y)


def _difference(z, y):
    return z - y


def _huber(z, y):
    e = np.abs(z - y)
    inside = np.minimum(e, 1.0)
    return inside * (e - 0.5 * inside)


def _clipped_difference(z, y):
    return np.minimum(np.maximum(z - y, -1.0), 1.0)


def _quarter_square(z, y):
    return 0.25 * (z - y) * (z - y)


def _half_difference(z, y):
    return 0.5 * (z - y)


def _cross_entropy(z, y):
    return np.maximum(z, 0.0) + np.log1p(np.exp(-np.abs(z))) - y * z


def weight(y):
    """Of targets: 1, unless they are complex.

    >>> weight(3.0), weight(np.array([3.0 + 0.5j]))
    (1.0, array([0.5]))
    """
    return y.imag if np.iscomplexobj(y) else 1.0


def rms(y) -> float:
    """Of targets or what is left of them, with the weights that they have.

    >>> rms(np.array([4.0 + 1j, 9.0 + 0j, 9.0 + 0j, 9.0 + 0j]))
    2.0
    """
    return float(np.sqrt(np.mean(weight(y) * np.square(y.real, dtype=np.float64))))


def weighed(function: Callable, z, y):
    """A function of (z, y), times the weight that y has.

    >>> weighed(_difference, np.array([5.0]), np.array([3.0 + 0.5j]))
    array([1.])
    """
    return weight(y) * function(z, np.real(y))


def sigmoid(z):
    """The inverse link of the logistic losses.

    >>> float(sigmoid(0.0))
    0.5
    """
    return 1.0 / (1.0 + np.exp(-np.maximum(z, _LOWEST)))


def _sigmoid_difference(z, y):
    return sigmoid(z) - y


def _identity(z):
    return z


@dataclass(frozen=True)
class Loss:
    """One row of the table. `value` and `slope` are plain functions of (z, y), so that NumPy
    broadcasts them and an engine compiles them.

    >>> LOSSES["squared"].slope(3.0, 1.0)
    2.0
    """

    name: str
    a: tuple[int, ...]  # u = sum_m a_m x_m
    b: tuple[int, ...]  # v = sum_m b_m x_m
    value: Callable  # psi(z, y)
    slope: Callable  # the derivative of psi in z; EDM steps along (z - y) P (x_i - x_j)
    inverse_link: Callable  # from z to what the target measures
    bounds: tuple[float, float]  # of a valid target
    # How much further a unit step moves z than it does for the squared loss: along x_i - x_j
    # the form is quadratic and both rows move, 2 x 2 (automatic step sizes divide by it).
    gain: float = 1.0
    curvature: float = 1.0  # the largest second derivative of psi in z
    damping: float = 1.0  # eta, in units of d times the residual, that a policy damps P with
    cuda: str = field(kw_only=True)  # `slope` once more, for the GPU's compiler

    @property
    def arity(self) -> int:
        """How many rows a sample names."""
        return len(self.a)

    @property
    def sides(self) -> tuple[int, ...]:
        """On which side of a two-sided matrix each named row lies: u is left, v is right."""
        return tuple(0 if a else 1 for a in self.a)


_BOTH, _ANY = (1, 0), (-np.inf, np.inf)
_CUDA_SIGMOID = f"1 / (1 + exp(-max(z, real({_LOWEST})))) - y"

LOSSES: dict[str, Loss] = {
    loss.name: loss
    for loss in (
        # rows i, j: the entry M_ij
        Loss("squared", _BOTH, (0, 1), _half_square, _difference, _identity, _ANY,
             cuda="z - y"),
        # rows i, j: the entry M_ij, of which some are wrong; in units of the threshold
        Loss("huber", _BOTH, (0, 1), _huber, _clipped_difference, _identity, _ANY,
             cuda="max(min(z - y, real(1)), real(-1))"),
        # rows i, j: the squared distance |x_i - x_j|^2
        Loss("distance", (1, -1), (1, -1), _quarter_square, _half_difference, _identity,
             (0.0, np.inf), gain=4.0, curvature=0.5, damping=0.5, cuda="real(0.5) * (z - y)"),
        # rows i, j: a probability, or a single bit, of M_ij
        Loss("logistic", _BOTH, (0, 1), _cross_entropy, _sigmoid_difference, sigmoid, (0.0, 1.0),
             curvature=0.25, cuda=_CUDA_SIGMOID),
        # rows j, k, i: whether i is nearer to j than to k
        Loss("bpr", (0, 0, 1), (1, -1, 0), _cross_entropy, _sigmoid_difference, sigmoid,
             (0.0, 1.0), curvature=0.25, damping=0.7, cuda=_CUDA_SIGMOID),
    )
}  # fmt: skip
