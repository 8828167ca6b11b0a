"""Calls of the public interface with values that nobody expects: answers, or sound exceptions."""

from __future__ import annotations

import random
import warnings
from functools import cache
from pathlib import Path

import models
import numpy as np
import pandas as pd
import polars as pl
import scipy.sparse as sp

from scaledsgd import (
    DistanceCompleter,
    DivergenceError,
    ItemRanker,
    MatrixCompleter,
    Observations,
    Recommender,
    learn_many,
    load,
)
from scaledsgd.core.memory import limit_memory

# NotFittedError is a ValueError. What is of the wrong type may be a TypeError.
SOUND = (ValueError, TypeError, MemoryError, DivergenceError)

SETTINGS = {
    "rank": (1, 2, 3, 0, -1, 99, 2.5, "auto", "x", None, np.int64(2), 10**12),
    "scaled": (True, False, "x"),
    "learning_rate": ("auto", 0.1, 0, -1, 1e9, float("nan"), "x"),
    "damping": ("auto", 0, 1, -1, float("inf"), "x"),
    "refresh": ("round", "sample", "x"),
    "epochs": (1, 2, 3, 0, -1, 1.5, "x", 10**12),
    "tol": (0, 1e-16, -1, float("nan"), "x"),
    "evaluations": (0, 1, 3, -1, 10**9, "x"),
    "n_jobs": (1, 2, 0, -1, 10**12, "x"),
    "device": ("cpu", "x"),
    "dtype": ("float32", "float64", "int8", "x", np.float32, None),
    "random_state": (0, 1, -1, None, "x", 2**40),
    "verbose": (False, "x"),
    "symmetric": (True, False, "x"),
    "loss": ("squared", "logistic", "softmax", "bpr", "x"),
    "mode": ("item-item", "x"),
    "similarity": ("cosine", "jaccard", "x"),
    "comparisons": ("auto", 20, 0, "x"),
    "negatives": (8, 0, "x"),
    "neighbours": ("auto", 3, 0, -1, "x"),
    "half_life": (None, 5, "30d", "x", 0),
    "temperature": ("auto", 0.1, 0, "x"),
    "ridge": (1.0, 0, "x"),
    "alpha0": (0.1, 0, "x"),
    "contrast": (1.0, "x"),
    "product": ("auto", "dot", "x"),
}
CELLS = (0, 1, 2, 5, -1, 2**31, 2**63, 2**70, 1.5, float("nan"), float("inf"), -1e308, 1e-320,
    "a", "",
         None, True, [1, 2], {}, b"x", np.datetime64("2026-11-16"), "\ud800", "\0",
             10**400)  # fmt: skip
KINDS = (MatrixCompleter, DistanceCompleter, ItemRanker, Recommender)


def column(rng: random.Random, length: int):
    """A column of a table, mostly sound."""
    what = rng.randrange(8)
    if what < 4:
        return np.array([rng.randrange(6) for _ in range(length)])
    if what == 4:
        return [rng.choice("abcdef") for _ in range(length)]
    if what == 5:
        return np.array([rng.random() for _ in range(length)])
    if what == 6:
        return [
            rng.choice(CELLS) if rng.random() < 0.2 else rng.randrange(6) for _ in range(length)
        ]
    return np.array([[rng.randrange(6)] for _ in range(length)])


def matrix(rng: random.Random):
    shape = rng.choice([(6, 5), (6, 6), (1, 1), (0, 3), (3, 0), (2, 9), (6,), (2, 2, 2)])
    M = np.array([rng.random() for _ in range(int(np.prod(shape)))]).reshape(shape)
    if M.size and rng.random() < 0.5:
        M[np.array([rng.random() for _ in range(M.size)]).reshape(shape) < 0.4] = np.nan
    if M.size and rng.random() < 0.2:
        M.flat[0] = rng.choice([np.inf, -np.inf, 1e308, -5.0, 1e-320])
    what = rng.randrange(6)
    if what == 0 and M.ndim == 2:
        return sp.csr_array(np.nan_to_num(M, posinf=1.0, neginf=1.0))
    if what == 1 and M.ndim == 2:
        return sp.coo_array((M.ravel(), np.indices(M.shape).reshape(2, -1)), shape=M.shape)
    if what == 2 and M.ndim == 2 and M.shape[0] == M.shape[1]:
        return M + M.T
    return M.astype(rng.choice([np.float64, np.float32, np.int64, object, str])) if what == 3 else M


def table(rng: random.Random):
    length = rng.choice([0, 1, 2, 20, 40, 40])
    lengths = [length if rng.random() < 0.97 else length + 1 for _ in range(4)]
    found = {name: column(rng, n) for name, n in zip("uvyt", lengths, strict=True)}
    make = rng.choice([dict, dict, pd.DataFrame, pl.DataFrame])
    try:
        return make(found)
    except Exception:  # theirs
        return found


def data(rng: random.Random):
    return rng.choice(
        [
            lambda: matrix(rng),
            lambda: table(rng),
            lambda: np.array([[rng.randrange(5) for _ in range(3)] for _ in range(20)]),
            lambda: rng.choice([None, [], {}, "nowhere.csv", 3, "x", np.zeros(0), {"u": [1]}]),
        ]
    )()


def names(rng: random.Random, kind: type) -> dict:
    sets = {
        ItemRanker: [{"user": "u", "item": "v"}, {"i": "u", "j": "v", "k": "t"}],
        Recommender: [
            {"user": "u", "item": "v"},
            {"user": "u", "item": "v", "weight": "y", "time": "t"},
        ],
    }
    found = dict(rng.choice(sets.get(kind, [{"row": "u", "column": "v", "value": "y"}, {}])))
    if found and rng.random() < 0.1:
        found[rng.choice(sorted(found))] = rng.choice(["nope", None, 3])
    return found


def settings(rng: random.Random, kind: type) -> dict:
    known = sorted(set(kind().get_params()) & set(SETTINGS))
    found = {"rank": rng.choice([1, 2])}
    for name in rng.sample(known, rng.choice([0, 0, 1, 2])):
        found[name] = rng.choice(SETTINGS[name])
    if kind is Recommender:  # a search for settings takes seconds
        found |= {"loss": "squared"} if rng.random() < 0.9 else {}
        found.setdefault("epochs", 1)
    else:
        found.setdefault("epochs", rng.choice([1, 2]))
    return found


@cache
def fitted(home: str) -> list[bytes]:
    return models.written(home)


def some(rng: random.Random):
    """Something to ask with."""
    return rng.choice(
        [
            lambda: rng.choice(CELLS),
            lambda: [rng.choice(CELLS) for _ in range(rng.randrange(4))],
            lambda: [rng.choice(["n1", "n3", 0, 3, 9]) for _ in range(rng.randrange(4))],
            lambda: (column(rng, 3), column(rng, 3)),
            lambda: matrix(rng),
            lambda: rng.choice(["n1", "n3", 0, 3, 6, 9]),
        ]
    )()


QUESTIONS = ("predict", "similar", "recommend", "explain", "evaluate", "transform", "score",
             "fold_in", "ranked", "vectors", "align", "save", "partial_fit",
             "predict_proba")  # fmt: skip


def ask(rng: random.Random, model, home: str) -> None:
    what = rng.choice([name for name in QUESTIONS if hasattr(model, name)])
    if what == "partial_fit":
        model.partial_fit(data(rng), **names(rng, type(model)))
    elif what == "save":
        model.save(rng.choice([Path(home, "kept"), Path(home, "kept")]))
        load(Path(home, "kept"))
    else:
        given = [some(rng) for _ in range(2 if what in ("explain", "align", "ranked") else 1)]
        options = {}
        if what in ("similar", "recommend") and rng.random() < 0.7:
            options["k"] = rng.choice([1, 2, 3, 0, -1, 99, 1.5, "x", None, 10**12])
        if what == "recommend" and rng.random() < 0.5:
            given, options = [], options | {rng.choice(["user", "items"]): given[0]}
        if what == "evaluate":
            options |= {"user": "u", "item": "v"}
            given = [table(rng)]
        answer = getattr(model, what)(*given, **options)
        for part in answer if isinstance(answer, tuple) else (answer,):
            if isinstance(part, np.ndarray) and part.dtype.kind == "f" and not _odd(given):
                assert not np.isnan(part).any(), (what, given, options)


def _odd(given: list) -> bool:
    """Whether a question holds numbers of which no finite answer can come."""
    try:
        numbers = np.asarray(given[0], float)
        return not np.isfinite(numbers).all() or np.abs(numbers).max(initial=0) > 1e100
    except (LookupError, TypeError, ValueError, OverflowError):
        return False


def call(rng: random.Random, home: str) -> None:
    if rng.random() < 0.5:
        path = Path(home, "asked")
        path.write_bytes(rng.choice(fitted(home)))
        model = load(path)
        for _ in range(rng.choice([1, 1, 3])):
            try:
                ask(rng, model, home)
            except SOUND as why:
                last = why
            else:
                last = None
        if last is not None:
            raise last
        return
    kind = rng.choice(KINDS)
    if rng.random() < 0.1:
        i, j = column(rng, 20), column(rng, 20)
        seen = Observations.pairs(
            i, j, column(rng, 20), shape=rng.choice([(6, 6), (1, 1), None, (0, 0), (2**40, 3)])
        )
        MatrixCompleter(**settings(rng, MatrixCompleter)).fit(seen)
        return
    model = kind(**settings(rng, kind))
    if rng.random() < 0.1:
        ask(rng, model, home)  # before fit
    given = data(rng)
    columns = names(rng, kind)
    if rng.random() < 0.1:
        learn_many(model, [given, table(rng)], **columns)
    else:
        rng.choice([model.fit, model.fit, model.partial_fit])(given, **columns)
    assert np.isfinite(model.factors.X).all()
    ask(rng, model, home)


def try_call(rng: random.Random, home: str) -> str:
    limit_memory(1e9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call(rng, home)
        except SOUND as why:
            if isinstance(why, MemoryError):
                return "too large"
            return "refused"
        except OSError as why:
            assert "nowhere" in str(why) or "cannot be" in str(why), why
            return "refused"
        finally:
            limit_memory(None)
    return "answered"
