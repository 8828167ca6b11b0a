"""What values may be, told by tables: numbers, words, lists and objects of JSON, and arrays.

>>> misfit({"rank": 0}, {"rank": Either("auto", Number(1, whole=True))})
"rank: 0 is not 'auto' or a whole number from 1 up"
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any, NamedTuple

import numpy as np

from .tables import shown

Sizes = dict[str, int]  # by name, in which shapes and limits are told
Limit = float | str  # a number, or the name of a size


class Number(NamedTuple):
    """A number from `low` to `high`, or `above` it. NaN never is one, infinity only where it may be
    `endless`."""

    low: Limit = -inf
    high: Limit = inf
    whole: bool = False
    endless: bool = False
    above: bool = False

    def fits(self, value, sizes: Sizes) -> bool:
        kind = int | np.integer if self.whole else int | float | np.number
        if not isinstance(value, kind) or isinstance(value, bool):
            return False
        low = _limit(self.low, sizes)
        inside = low <= value <= _limit(self.high, sizes) and not (self.above and value == low)
        return bool(inside and (self.endless or -inf < value < inf))

    def __str__(self) -> str:
        kind = "whole number" if self.whole else "number"
        if self.low == -inf and self.high == inf:
            return f"a {kind}"
        if self.above:
            return f"a {kind} above {self.low}"
        return f"a {kind} from {self.low} " + ("up" if self.high == inf else f"to {self.high}")


class Either(tuple):
    """One of several."""

    def __new__(cls, *several):
        return super().__new__(cls, several)


class Each(NamedTuple):
    """A list of such values or, with `named`, an object of any names."""

    value: Any
    named: bool = False


@dataclass(frozen=True)
class Array:
    """An array of one of these types ("text": strings), its shape by numbers and names of sizes, of
    which the first array that has one sets it. Numbers are finite, from `low` to `high`.

    rule : "unique"; or "offsets": whole numbers that never fall, from 0 to the size `high`.
    """

    dtypes: str
    shape: tuple[int | str, ...]
    low: Limit = -inf
    high: Limit = inf
    rule: str = ""

    def misfit(self, array: np.ndarray, sizes: Sizes) -> str | None:
        dtype = "text" if array.dtype == object else str(array.dtype)
        if dtype not in self.dtypes.split():
            return f"is of type {dtype}, not {self.dtypes.replace(' ', ' or ')}"
        wanted = [sizes.get(n, n) if isinstance(n, str) else n for n in self.shape]
        free = array.ndim == len(wanted) and all(
            held == size or isinstance(size, str)
            for held, size in zip(array.shape, wanted, strict=True)
        )
        if not free:
            return f"has the shape {array.shape}, not ({', '.join(map(str, wanted))})"
        sizes |= {n: h for n, h in zip(self.shape, array.shape, strict=True) if isinstance(n, str)}
        if dtype == "text":
            if not all(type(name) is str for name in array):
                return "holds something that is not a string"
            return _twice(len(set(array)), array) if self.rule == "unique" else None
        low, high = _limit(self.low, sizes), _limit(self.high, sizes)
        if array.size and not (low <= array.min() and array.max() <= high):  # nor NaN
            return f"has numbers outside [{low:g}, {high:g}]"
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            return "has numbers that are not finite"
        if self.rule == "offsets" and (
            not len(array) or array[0] != 0 or array[-1] != high or (array[1:] < array[:-1]).any()
        ):
            return f"does not go from 0 to {high} without falling"
        return _twice(len(np.unique(array)), array) if self.rule == "unique" else None


def _twice(different: int, array: np.ndarray) -> str | None:
    return f"has {len(array) - different} entries twice" if different < len(array) else None


def _limit(limit: Limit, sizes: Sizes) -> float:
    return sizes[limit] if isinstance(limit, str) else limit


def misfit(value, spec: Any, sizes: Sizes | None = None, name: str = "") -> str | None:
    """Why a value is not what a table says, with its place; None where it is.

    A spec is a Number, Either, Each, a type (str, bool), a word or None that must be met, a tuple
    (a list of that length), or a dict (an object of these names; those that end in "?" may be
    missing).
    """
    sizes = {} if sizes is None else sizes
    if isinstance(spec, Either):
        fits = any(misfit(value, one, sizes) is None for one in spec)
    elif isinstance(spec, Number):
        fits = spec.fits(value, sizes)
    elif isinstance(spec, Each):
        if not isinstance(value, dict if spec.named else list):
            return f"{name}: not {'an object' if spec.named else 'a list'}"
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return _first(((part, spec.value, key) for key, part in parts), sizes, name)
    elif isinstance(spec, dict):
        if not isinstance(value, dict):
            return f"{name}: not an object"
        named = {key.rstrip("?"): one for key, one in spec.items()}
        needed = {key for key in spec if not key.endswith("?")}
        odd = sorted((value.keys() - named.keys()) | (needed - value.keys()))
        if odd:
            return f"{name}: {odd[0]!r} is {'unknown' if odd[0] in value else 'missing'}"
        return _first(((part, named[key], key) for key, part in value.items()), sizes, name)
    elif isinstance(spec, tuple):
        if not isinstance(value, list | tuple) or len(value) != len(spec):
            return f"{name}: not a list of {len(spec)}"
        parts = zip(value, spec, range(len(spec)), strict=True)
        return _first(parts, sizes, name)
    elif isinstance(spec, type):
        fits = type(value) is spec
    else:
        fits = isinstance(value, type(spec)) and value == spec
    return None if fits else f"{name}: {shown(value)} is not {told(spec)}"


def _first(parts, sizes: Sizes, name: str) -> str | None:
    found = (misfit(v, s, sizes, f"{name}.{key}".lstrip(".")) for v, s, key in parts)
    return next((why for why in found if why), None)


def told(spec) -> str:
    """A spec of a single value in words."""
    if isinstance(spec, Either):
        return " or ".join(map(told, spec))
    return getattr(spec, "__name__", None) or (str if isinstance(spec, Number) else repr)(spec)
