"""What may be a number, a row number or a target: the rules, and one line that says which value
breaks them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .losses import Loss

# The largest target, of either sign, whose square and its sums stay finite in that precision.
LARGEST = {"float32": 1e15, "float64": 1e100}

_END = np.float64(2.0**63)  # the first float past 64 bits; the one before is 2^63 - 1024


def refuse(wrong: np.ndarray, values: np.ndarray, message: str, start=0, unit="observation"):
    """Name the first of the values for which something is wrong; their numbers begin at `start`."""
    if wrong.any():
        at = int(np.argmax(wrong))
        raise ValueError(f"{unit} {start + at}: " + message.format(values[at]))


def real(values, what: str = "target") -> np.ndarray:
    """A float array, or one line that says what is in the way."""
    try:
        values = np.asarray(values)
    except ValueError:  # lists of different lengths
        values = np.empty((0, 0))
    if values.ndim != 1:
        raise ValueError(f"{what}s form a list, not an array of {values.ndim} dimensions")
    if values.dtype.kind == "f" and values.dtype.itemsize in (4, 8):
        return values
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        for at, value in enumerate(values.ravel().tolist()):
            try:
                float(value)
            except (TypeError, ValueError, OverflowError):
                raise TypeError(f"observation {at}: {what} {value!r} is not a number") from None
        raise


def finite(values: np.ndarray, what: str, unit: str = "observation") -> np.ndarray:
    """The values, of which none may be infinite or NaN."""
    refuse(~np.isfinite(values), values, what + " {} is not a finite number", unit=unit)
    return values


def clipped(values: np.ndarray, clip) -> np.ndarray:
    """Values held within a pair (low, high), or as they are without one.

    >>> clipped(np.array([0.2, 3.0, 5.3]), (0.5, 5))
    array([0.5, 3. , 5. ])
    """
    if clip is None:
        return values
    try:
        low, high = map(float, clip)
    except (TypeError, ValueError):
        raise ValueError(f"clip={clip!r} is not a pair (low, high)") from None
    if not low <= high:
        raise ValueError(f"clip={clip!r}: low is not below high")
    return np.clip(values, low, high)


def target_bounds(loss: Loss, dtype="float64") -> tuple[float, float]:
    """The least and the largest target that factors of a type can learn by a loss."""
    largest = LARGEST[str(np.dtype(dtype))]
    low, high = np.clip(loss.bounds, -largest, largest)
    return low, high


def bad_target(y: np.ndarray, loss: Loss) -> tuple[int, str] | None:
    """The place of the first target that is none, and why; None where all of them are targets."""
    low, high = target_bounds(loss)
    good = (y >= low) & (y <= high)
    if good.all():
        return None
    at = int(np.argmin(good))
    why = "of the {} loss is outside [{:g}, {:g}]".format(loss.name, *loss.bounds)
    if not np.isfinite(y[at]):
        why = "is not a finite number"
    elif abs(float(y[at])) > LARGEST["float64"]:
        why = "is too large to be squared safely"
    return at, f"{y[at]} {why}"


def is_whole(value) -> bool:
    """Whether something is a whole number that fits 64 bits."""
    whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return whole and -(2**63) <= int(value) < 2**63


def are_whole(values: np.ndarray) -> np.ndarray:
    """Of an array of any type, which values are whole numbers that fit 64 bits, as booleans.

    >>> are_whole(np.array([1.0, 1.5, 2.0**63, np.nan]))
    array([ True, False, False, False])
    """
    kind = values.dtype.kind
    if kind == "f":  # integers that have been through a column with gaps
        return (values == np.floor(values)) & (values >= -_END) & (values < _END)
    if kind == "u":
        return values <= np.iinfo(np.int64).max
    if kind == "O":
        return np.fromiter(map(is_whole, values), bool, len(values))
    return np.full(len(values), kind == "i")


def whole(values, what: str) -> np.ndarray:
    """An integer array of row numbers, or one line that says what is in the way."""
    values = np.asarray(values)
    if values.ndim != 1:
        raise ValueError(f"{what} indices form an array of shape {values.shape}, not a list")
    if values.dtype.kind == "i":
        return values
    good = are_whole(values)
    if not good.all():
        at = int(np.argmin(good))
        value = values[at : at + 1].tolist()[0]
        number = type(value) in (int, float)
        why = "does not fit 64 bits" if number and value % 1 == 0 else "is not a whole number"
        refusal = ValueError if number else TypeError
        raise refusal(f"observation {at}: {what} index {value!r} {why}")
    small = values.dtype.kind == "u" and values.dtype.itemsize < 8
    return values if small else values.astype(np.int64)
