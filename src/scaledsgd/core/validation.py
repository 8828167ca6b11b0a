"""Numbers as training needs them, or one line that says which is in the way."""

from __future__ import annotations

import numpy as np


def refuse(wrong: np.ndarray, start: int, values: np.ndarray, message: str) -> None:
    """The first observation for which something is wrong, counted from `start`."""
    if wrong.any():
        at = int(np.argmax(wrong))
        raise ValueError(f"observation {start + at}: " + message.format(values[at]))


def real(values, what: str = "target") -> np.ndarray:
    """A float array, or one line that says what is in the way."""
    values = np.asarray(values)
    if values.dtype.kind == "f" and values.dtype.itemsize in (4, 8):
        return values
    try:
        return values.astype(np.float64)
    except (TypeError, ValueError):
        for at, value in enumerate(values.ravel().tolist()):
            try:
                float(value)
            except (TypeError, ValueError):
                raise TypeError(f"observation {at}: {what} {value!r} is not a number") from None
        raise


def whole(values, what: str) -> np.ndarray:
    """An integer array of row numbers, or one line that says what is in the way."""
    values = np.asarray(values)
    if values.ndim != 1:
        raise ValueError(f"{what} indices form an array of shape {values.shape}, not a list")
    if values.dtype.kind == "O":
        bad = next((v for v in values if not isinstance(v, int | np.integer)), None)
        if bad is not None:
            raise TypeError(f"{what} index {bad!r} is not a whole number")
        big = next((v for v in values if not -(2**63) <= v < 2**63), None)
        if big is not None:
            raise ValueError(f"{what} index {big} does not fit 64 bits")
        return values.astype(np.int64)
    if values.dtype.kind == "u":
        refuse(values > 2**63 - 1, 0, values, what + " index {} does not fit 64 bits")
        return values.astype(np.int64) if values.dtype.itemsize == 8 else values
    if values.dtype.kind == "f":
        refuse(values != np.floor(values), 0, values, what + " index {} is not a whole number")
        refuse(np.abs(values) >= 2**63, 0, values, what + " index {} does not fit 64 bits")
        return values.astype(np.int64)
    if values.dtype.kind not in "i" and len(values):
        raise TypeError(f"{what} index {values[:1].tolist()[0]!r} is not a whole number")
    return values.astype(np.int64) if values.dtype.kind != "i" else values
