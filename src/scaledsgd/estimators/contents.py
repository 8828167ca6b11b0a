"""What a model file holds: a table of its facts, a table of its arrays, and the check of both.

Files come from strangers, and their checksum has no key. Whatever passes here fits together: no
row, item or offset points beyond its array, and nothing below looks again.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from ..io.model_file import ModelFileError
from ..io.schema import Array, Each, Either, Number, Sizes, misfit
from ..training.auto_policy import INITIALISATIONS

if TYPE_CHECKING:
    from .base import Learner

_COUNT = Number(0, 2**62, whole=True)
_SIZE = Number(0)  # of something: finite
_ABOVE = Number(0, above=True)
_ENDLESS = Number(endless=True)

_FACTS: dict[str, Any] = {
    "estimator": str,
    "settings": Each(Either(None, bool, str, _ENDLESS), named=True),  # checked by the estimator
    "factors": {
        "rows": Either(None, Number(0, "d", whole=True)),
        "seed": _COUNT,
        "scale": (Number(), Number()),
        "offset": Number(),
    },
    "policy": {},
    "history": {
        "records": Each(
            dict.fromkeys(("epoch", "samples", "loss", "condition_number", "seconds"), _ENDLESS)
        ),
        **dict.fromkeys(("refreshes", "repairs", "rollbacks"), _COUNT),
        "stopped": str,
    },
    **dict.fromkeys(("samples", "left?", "began?"), _COUNT),
    "seconds": _SIZE,
    "random": {
        "bit_generator": "PCG64",
        "state": dict.fromkeys(("state", "inc"), Number(0, 2**128 - 1, whole=True)),
        "has_uint32": Number(0, 1, whole=True),
        "uinteger": Number(0, 2**32 - 1, whole=True),
    },
    "ids": Number(0, 2, whole=True),
    "streams": Each(
        {
            "position": Each(Either(Number(0, 2**63 - 1, whole=True), str, Each(str)), named=True),
            **dict.fromkeys(("lines", "events", "refused"), _COUNT),
            "batch": Number(1, 2**31 - 1, whole=True),
        },
        named=True,
    ),
    "own": {},
}

_OWN: dict[str, Any] = {
    "Recommender": {
        "measures": Each((_SIZE, _SIZE), named=True),
        "columns": {"user": str, "item": str},
        "unit": _ABOVE,
        "regressed?": _COUNT,
    }
}

# Of policies, by the type of a field, and those whose limits are tighter.
_FIELDS = {"float": _ENDLESS, "int": _COUNT, "bool": bool, "str": str, "None": None}
_TIGHTER = {
    "columns": Number(0, "r", whole=True),
    "useful": Number(-1, "r", whole=True),
    "stretch": Number(1, 2**31 - 1, whole=True),
    "negatives": Number(1, 2**31 - 1, whole=True),
    "kind": Either(*INITIALISATIONS),
    "loss": Either("softmax", "squared", "bpr"),
    **dict.fromkeys(("train", "held", "last"), Number(0, endless=True)),
    **dict.fromkeys(("theta", "turn", "tau", "c", "unit", "local_ridge"), _ABOVE),
}

_INTEGERS = "int32 int64"
# Squares of such numbers are finite, and those of any model that learned something are smaller.
_X = {
    dtype: Array(dtype, ("d", "r"), -m, m) for dtype, m in (("float32", 1e18), ("float64", 1e150))
}
_SPECTRUM = Array("float64", ("r",), 0)


def _names(size: str) -> Array:
    return Array("int64 text", (size,), rule="unique")


_HISTORIES = {  # what each user chose, and last
    "previous": Array("int32", ("users",), -1, "last_item"),
    "seen_items": Array(_INTEGERS, ("seen",), 0, "last_item"),
    "seen_values": Array("float32", ("seen",)),
    "seen_start": Array(_INTEGERS, ("starts",), 0, "seen", rule="offsets"),
}


_NEIGHBOURS = {  # which items speak for which
    "near_items": Array("int32", ("near",), 0, "last_item"),
    "near_weights": Array("float32", ("near",), 0),
    "near_start": Array("int64", ("near_starts",), 0, "near", rule="offsets"),
}


def _arrays(model: Learner, held: dict[str, np.ndarray], facts: dict) -> dict[str, Array]:
    """The arrays that such a model has."""
    kind, sides = type(model).__name__, ("rows",) if model.is_symmetric else ("rows", "columns")
    wanted = {"X": _X[str(held["X"].dtype)], "spectrum": _SPECTRUM}
    if ("P" in held or facts.get("left")) and kind != "Recommender":  # without it a round begins
        follows = model.scaled and model.refresh == "sample"
        wanted["P"] = Array("float64", (len(sides), "r", "r") if follows else ("r",))
    if "kept0" in held and kind != "Recommender":  # the snapshot of a stream
        dtype = str(held["X"].dtype)
        wanted |= {f"kept{n}": Array(dtype, (f"kept{n}", "r")) for n in range(len(sides))}
        wanted |= {"kept_spectrum": _SPECTRUM, "kept_columns": Array("int64", (1,), 0, "r")}
    if facts["ids"]:
        wanted |= {f"ids{n}": _names(side) for n, side in enumerate(sides)}
        if kind == "ItemRanker" and model.is_symmetric:  # users have no rows
            wanted["users"] = _names("users")
        if kind == "Recommender" or "previous" in held:
            wanted |= _HISTORIES
    if kind == "Recommender":
        wanted |= {
            f"weights{n}": Array("float64", (side,), 0, 1e30) for n, side in enumerate(sides)
        }
        if any(name in held for name in _NEIGHBOURS):
            wanted |= _NEIGHBOURS
    if ("intercept" in held or "column_noise" in held) and kind == "MatrixCompleter":
        wanted |= {"row_bias": Array("float64", ("rows",)), "intercept": Array("float64", (2,)),
                   "column_bias": Array("float64", ("columns",))}  # fmt: skip
    if "column_noise" in held and kind == "MatrixCompleter":
        wanted |= {"column_noise": Array("float64", ("columns",), 1e-300, 1e300),
                   "row_prior": Array("float64", ("r", "r"), -1e150, 1e150)}  # fmt: skip
    if "noise" in held and kind == "MatrixCompleter":
        wanted |= {"noise": Array("float64", (1,), 0), "seen0": Array("int64", ("rows",), 0),
                   "seen1": Array("int64", ("columns",), 0)}  # fmt: skip
    if "test_auc" in held:
        wanted["test_auc"] = Array("float64", (1,), 0, 1)
    return wanted


def _policy(model: Learner) -> dict[str, Any]:
    """By the fields of its dataclass, which may be more than they were."""
    spec = {}
    for field in fields(model._policy()):
        usual = Either(*(_FIELDS[part] for part in str(field.type).split(" | ")))
        spec[f"{field.name}?"] = _TIGHTER.get(field.name, usual)
    return spec


def validate(model: Learner, arrays: dict[str, np.ndarray], facts: dict) -> None:
    """Refuse arrays and facts that are not all of a model of this kind, or do not fit together."""
    sizes: Sizes = {}
    X = arrays.get("X", np.zeros(0))
    if str(X.dtype) not in _X or _X[str(X.dtype)].misfit(X, sizes) or not X.size:
        raise ModelFileError("X is not a table of moderate numbers")
    kind = type(model).__name__
    wrong = misfit(facts, _FACTS | {"policy": _policy(model), "own": _OWN.get(kind, {})}, sizes)
    rows, sides = facts["factors"]["rows"] if not wrong else None, 1 if model.is_symmetric else 2
    if wrong or (rows is None) != (sides == 1) or rows in (0, sizes["d"]):
        raise ModelFileError(wrong or f"factors.rows: {rows} of {sizes['d']} rows of a {kind}")
    if any(facts["settings"].get(name) is not None for name in ("engine", "callbacks")):
        raise ModelFileError("settings: an engine and callbacks are not kept")
    if facts["ids"] not in ((2,) if kind == "Recommender" else (0, sides)):
        raise ModelFileError(f"ids: {facts['ids']} of a {kind}")
    left, right = (sizes["d"],) * 2 if rows is None else (rows, sizes["d"] - rows)
    sizes |= {"rows": left, "columns": right, "last_item": right - 1}
    if sides == 2:
        sizes["users"] = left
    wanted = _arrays(model, arrays, facts)
    odd = sorted(wanted.keys() ^ arrays.keys())
    if odd:
        raise ModelFileError(f"{odd[0]} is {'unknown' if odd[0] in arrays else 'missing'}")
    for name, array in wanted.items():
        wrong = array.misfit(arrays[name], sizes)
        if wrong:
            raise ModelFileError(f"{name} {wrong}")
    pairs = (
        ("kept0", left), ("kept1", right), ("starts", sizes.get("users", 0) + 1),
        ("near_starts", right + 1),
    )  # fmt: skip
    for name, most in pairs:
        if not 0 < sizes.get(name, most) <= most:
            raise ModelFileError(f"{name}: {sizes[name]} rows of {most}")
