"""Fit a model to a file, or ask a model about one: which columns are meant, which rows each line
names, in which line it went wrong, and what is told of the model that was made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from ..core.observations import Observations
from ..core.validation import clipped
from ..estimators.base import Learner
from ..estimators.completers import DistanceCompleter, MatrixCompleter
from ..estimators.ranker import ItemRanker
from ..estimators.recommender import Recommender
from ..io.ids import typed_id
from ..io.parquet import parquet_files
from ..io.progress_bar import progress_bar
from ..io.readers import open_file
from ..io.tables import InputError, Source, Table, observation_in, refuse_others
from ..training.metrics import auc_of

KINDS = {
    "matrix": MatrixCompleter,
    "distance": DistanceCompleter,
    "ranking": ItemRanker,
    "recommender": Recommender,
}

Estimator = MatrixCompleter | DistanceCompleter | ItemRanker | Recommender

# The columns of a file by the number of rows that a sample names, under the names that fit gives
# them, and the side of the matrix on which the ids lie.
_COLUMNS = {2: ("row", "column", "value"), 3: ("i", "j", "k", "target")}
_SIDES = {2: (0, 1), 3: (0, 1, 1)}
# The columns of events, by who learns from them.
_EVENTS = {
    ItemRanker: ("user", "item", "value", "time"),
    Recommender: ("user", "item", "weight", "time"),
}

_REFUSALS = (TypeError, ValueError, MemoryError)  # how an estimator answers to bad input

# What the command line calls a setting, where that is not the setting's own name.
_OPTIONS = {"n_jobs": "jobs", "random_state": "seed", "engine": "ray", "half_life": "half-life"}

Names = Mapping[str, str | None]  # what fit calls a column -> what the file does


def estimator(kind: str, settings: Mapping) -> Estimator:
    """A new model of that kind.

    >>> estimator("distance", {"rank": 3})
    DistanceCompleter(rank=3)
    """
    make = KINDS[kind]
    for name in settings:
        if name not in make().get_params():
            others = [other for other, one in KINDS.items() if name in one().get_params()]
            told = f"a {kind} has no such setting (--kind {' or '.join(others)} has)"
            raise InputError(f"--{_OPTIONS.get(name, name)}: {told}")
    return make(**settings)


def train(
    model: Estimator, source: Source, names: Names, at_least: float | None = None,
    unsquared: bool = False,
) -> None:  # fmt: skip
    """Fit a model to a file. Columns that are not named are taken in the file's order; the target
    of comparisons may be missing. Events are read for a recommender, and where a user or an item
    is named; only those whose value is at least `at_least`. Values that are `unsquared` distances
    are squared."""
    keys = _COLUMNS[model.objective.arity]
    if not source.names:
        if unsquared:
            raise InputError(f"--unsquared: {source.path} holds a matrix, not a table")
        _train_on_matrix(model, source, names)
        return
    if isinstance(model, Recommender) or names.get("user") or names.get("item"):
        named, table = _events(source, model, names, at_least)
    else:
        named = _columns(source, model, names, least=3)
        table = _read(source, list(named.values()), len(keys) - 1)
        if unsquared:
            _square(table, named["value"])
    try:
        with progress_bar("fitting", None):
            model.fit(table, **named)
    except _REFUSALS as why:
        raise table.located(why) from None


def _square(table: Table, name: str) -> None:
    """Distances become their squares; one below zero is none."""
    distances = table[name]
    if (distances < 0).any():
        row = int(np.argmax(distances < 0))
        raise table.refused(row, name, f"{distances[row]:g} is not a distance")
    table.columns[name] = distances**2


def anchored(model: DistanceCompleter, source: Source) -> tuple[list, np.ndarray]:
    """Points of a model and where they lie, from the first columns of a file."""
    name, *axes = source.first(1 + model.factors.rank)
    table = source.table([name], axes)
    ids = model.ids[0] if model.ids else None
    found = [typed_id(str(one), ids, model.factors.d) for one in table[name].tolist()]
    if None in found:
        unknown = table[name].tolist()[found.index(None)]
        raise table.refused(found.index(None), name, f"point {unknown!r} was never seen")
    return found, np.stack([np.asarray(table[axis], float) for axis in axes], 1)


def train_on_cluster(
    model: Estimator, files: Sequence[Path], names: Names, at_least: float | None = None
) -> None:
    """Fit a model to Parquet files that the machines of its engine read."""
    if isinstance(model, ItemRanker) and (names.get("user") or names.get("item")):
        raise InputError("--user, --item: events are made comparisons of without --ray")
    if at_least is not None:
        raise InputError("--at-least: a cluster learns from all events of its files")
    paths = parquet_files(list(files))
    wrong = next((path for path in paths if not path.endswith(".parquet")), None)
    if wrong is not None:
        raise InputError(f"{wrong}: a cluster reads Parquet files")
    source = open_file(paths[0])
    if isinstance(model, Recommender):
        named = _event_columns(source, model, names, at_least)
    else:
        named = _columns(source, model, names, least=3)
    with progress_bar("fitting on the cluster", None):
        model.fit(paths, **named)


def _events(
    source: Source, model: Learner, names: Names, at_least: float | None
) -> tuple[dict[str, str], Table]:
    """The names of the columns of events, by what fit calls them, and the events."""
    named = _event_columns(source, model, names, at_least)
    rated = names.get("value") if at_least is not None else None
    columns = list(dict.fromkeys([*named.values(), *([rated] if rated else ())]))
    table = _read(source, columns, 2, named.get("time"))
    if "weight" in named:
        _check_weights(table, named["weight"])
    if rated and at_least is not None:
        table = table.kept(_liked(table[rated], source, rated, at_least))
    return named, table


def _event_columns(
    source: Source, model: Learner, names: Names, at_least: float | None
) -> dict[str, str]:
    """The names of the columns of events, by what fit calls them."""
    if type(model) not in _EVENTS:
        raise InputError("--user, --item: events are for --kind recommender or --kind ranking")
    keys = _EVENTS[type(model)]
    missing = [key for key in keys[:2] if not names.get(key)]
    if len(missing) == 1:
        raise InputError(f"--{missing[0]}: events need it, as they need --user and --item")
    _check_events(model, names, at_least)
    rated = names.get("value") if at_least is not None else None
    refuse_others({**names, "value": None} if rated else names, keys, "kind")
    return source.choose({key: names.get(key) for key in keys}, 2)


def _check_events(model: Learner, names: Names, at_least: float | None) -> None:
    """Options that need each other."""
    if at_least is not None and not names.get("value"):
        raise InputError("--at-least: of which column? Give --value NAME")
    if not isinstance(model, Recommender):
        return
    if names.get("value") and at_least is None:
        told = "say which values are choices with --at-least X, or give --weight NAME"
        raise InputError(f"--value: a recommender learns from choices: {told}")
    if model.half_life is not None and not names.get("time"):
        raise InputError("--half-life: needs the column of times: give --time NAME")


def _check_weights(table: Table, name: str) -> None:
    weights = table[name]
    wrong = ~((weights > 0) & (weights < np.inf))
    if wrong.any():
        row = int(np.argmax(wrong))
        raise table.refused(row, name, f"weight {weights[row]:g} is not a finite number above 0")


def _liked(values: np.ndarray, source: Source, name: str, at_least: float) -> np.ndarray:
    liked = values >= at_least
    if not liked.any():
        raise InputError(f"{source.path}: no {name} is {at_least:g} or more")
    return liked


def _train_on_matrix(model: Estimator, source: Source, names: Names) -> None:
    S: Any = _matrix(source, names)
    if type(model) in _EVENTS:  # users x items
        S = S if sp.issparse(S) else sp.coo_array(np.where(np.isnan(S), 0, S))
    try:
        with progress_bar("fitting", None):
            model.fit(S)
    except _REFUSALS as why:
        at = observation_in(why)
        if at is None:
            raise InputError(f"{source.path}: {why}") from None
        i, j = S.tocoo().coords if sp.issparse(S) else np.nonzero(~np.isnan(S))
        what = str(why).partition(": ")[2]
        raise InputError(f"{source.path}, row {i[at]}, column {j[at]}: {what}") from None


def _columns(source: Source, model: Learner, names: Names, least: int) -> dict[str, str]:
    """Names of the columns in the file, at least so many of them, by what fit calls them."""
    keys = _COLUMNS[model.objective.arity]
    refuse_others(names, keys, "kind")
    given = {key: names[key] for key in keys if key in names}
    return source.choose(given, max(least, min(len(given), len(source.names))))


def _read(source: Source, columns: list[str], ids: int, time: str | None = None) -> Table:
    with progress_bar(f"reading {source.path.name}", source.path.stat().st_size) as advance:
        return source.table(columns[:ids], columns[ids:], advance, times=[time])


def _matrix(source: Source, names: Names):
    for key, name in names.items():
        if name is not None and key != "value":
            raise InputError(f"--{key} {name}: {source.path} holds a matrix without named columns")
    with progress_bar(f"reading {source.path.name}", None):
        return source.matrix(names.get("value"))


@dataclass(frozen=True)
class Query:
    """Lines of a file as row numbers of the model."""

    model: Learner
    table: Table
    names: list[str]  # of the columns with ids
    target: str | None  # None: every comparison holds as it is written
    rows: list[np.ndarray]
    skipped: int = 0

    def scores(self) -> np.ndarray:
        """z of every line."""
        return self.model.scores(self._in_order(self.rows))

    def predictions(self, clip: tuple[float, float] | None) -> np.ndarray:
        """What the target of every line is expected to be."""
        return clipped(self.model.objective.inverse_link(self.scores()), clip)

    def evaluation(self) -> dict[str, float]:
        """How far the model is from the targets."""
        loss = self.model.objective
        y = np.ones(len(self.rows[0])) if self.target is None else self.table[self.target]
        if len(y) == 0:
            raise InputError(f"{self.table.path}: no observations")
        try:  # the checks that training makes
            index = np.stack(self._in_order(self.rows), axis=1)
            Observations(index, y, self.model.factors.shape, loss.name)
        except ValueError as why:
            raise self.table.located(why) from None
        z = self.scores().astype(np.float64)
        unit = self.model.trainer.policy.threshold or 1.0  # in which Huber's loss is told
        value = loss.value(z / unit, y / unit) * unit**2 if unit != 1 else loss.value(z, y)
        found = {"observations": len(y), "mean_loss": float(value.mean())}
        if loss.name != "bpr":
            found["rms_error"] = float(np.sqrt(np.mean((loss.inverse_link(z) - y) ** 2)))
        return found | _ranking_quality(loss.name, z, y)

    def _in_order(self, columns: list) -> list:
        """Columns i, j, k of a file in the order j, k, i of the loss's table."""
        return columns if len(columns) == 2 else [columns[1], columns[2], columns[0]]


def _ranking_quality(loss: str, z: np.ndarray, y: np.ndarray) -> dict[str, float]:
    if loss == "bpr":
        return {"auc": auc_of(z, y)}
    if loss != "logistic":
        return {}
    found = {"accuracy": auc_of(z, y)}
    ones = y > 0.5
    if 0 < ones.sum() < len(y):  # otherwise there is nothing to tell apart
        from sklearn.metrics import roc_auc_score

        found["auc"] = float(roc_auc_score(ones, z))
    return found


def ask(model: Learner, source: Source, names: Names, *, skip_unknown: bool = False) -> Query:
    """Read a file for a model; targets are read if they are among the names."""
    if isinstance(model, Recommender):
        raise InputError("a Recommender predicts no values: ask it with recommend, or evaluate it")
    *keys, last = _COLUMNS[model.objective.arity]
    if source.names:
        columns = _columns(source, model, names, least=3 if last in names else len(keys))
        table = _read(source, list(columns.values()), len(keys))
    else:
        table = _entries(model, source, names)
    wanted, sides = list(table)[: len(keys)], _SIDES[len(keys)]
    found = [_rows(model, table[name], side) for name, side in zip(wanted, sides, strict=True)]
    seen = np.min(found, axis=0) >= 0
    for name, rows in zip(wanted, found, strict=True):
        if not skip_unknown and (rows < 0).any():
            row = int(np.argmin(rows >= 0))
            value = table[name][row]
            told = repr(value) if isinstance(value, str) else value
            raise table.refused(row, name, f"{told} was never seen in training")
    sound = table if seen.all() else table.kept(seen)
    rows = [rows[seen] for rows in found]
    target = list(table)[len(keys)] if last in names and len(table) > len(keys) else None
    return Query(model, sound, wanted, target, rows, int((~seen).sum()))


def _entries(model: Learner, source: Source, names: Names) -> Table:
    """What a matrix says of its entries, one a row."""
    if model.objective.arity == 3:
        raise InputError(f"{source.path}: holds a matrix, and comparisons are rows i, j, k")
    S = _matrix(source, names)
    if model.ids is not None:
        raise InputError(f"{source.path}: holds a matrix, and the model knows its rows by id")
    try:
        seen = Observations.matrix(S)
    except (TypeError, ValueError) as why:
        raise InputError(f"{source.path}: {why}") from None
    columns = {"row": seen.index[:, 0], "column": seen.index[:, 1], "value": seen.targets}
    return Table(source.path, columns, "entry")


def _rows(model: Learner, names: np.ndarray, side: int) -> np.ndarray:
    """Row numbers of ids, -1 for those that were never seen."""
    if model.ids is not None:
        return model.ids[side].find(names)
    if names.dtype.kind not in "iu":
        return np.full(len(names), -1)
    return np.where((names >= 0) & (names < model.factors.shape[side]), names, -1)


class _Columns(Mapping[str, np.ndarray]):
    """Columns of ids of a file, read when asked for."""

    def __init__(self, source: Source, keep: np.ndarray | slice = slice(None)):
        self._source, self._keep = source, keep

    def __getitem__(self, name: str) -> np.ndarray:
        return _read(self._source, [name], 1)[name][self._keep]

    def __iter__(self) -> Iterator[str]:
        return iter(self._source.names)

    def __len__(self) -> int:
        return len(self._source.names)


def find(
    model: Learner, source: Source, names: Names, at_least: float | None = None
) -> dict[str, float]:
    """How well a ranking finds what users chose, among all items that they have not had. `names`
    may hold "k", how many answers count."""
    if not isinstance(model, ItemRanker | Recommender):
        raise InputError(f"--user and --item: {type(model).__name__} ranks nothing")
    refuse_others(names, ("user", "item", "value", "k"), "model")
    columns = {key: names[key] for key in ("user", "item") if names.get(key)}
    if isinstance(model, ItemRanker) and len(columns) < 2:
        raise InputError("--user and --item name the columns of an event, and belong together")
    _check_events(model, names, at_least)
    keep: Any = slice(None)
    if at_least is not None:
        rated = str(names["value"])
        keep = _liked(_read(source, [rated], 0)[rated], source, rated, at_least)
    count: dict[str, Any] = {} if names.get("k") is None else {"k": _count(str(names["k"]))}
    try:
        return model.evaluate(_Columns(source, keep), **columns, **count)
    except _REFUSALS as why:
        placed = str(why).startswith(f"{source.path}")
        raise InputError(str(why) if placed else f"{source.path}: {why}") from None


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise InputError(f"--k {text}: not a whole number from 1 up")
    return int(text)


# --- What `fit` tells about the model that it made ------------------------------------------------


def summary(model: Learner, seconds: float) -> dict[str, Any]:
    """Names and values, as a person reads them. Args: seconds, that it took to read and to fit."""
    facts = _of_recommender(model) if isinstance(model, Recommender) else _of_matrix(model)
    return {"kind": type(model).__name__} | facts | {"seconds": round(seconds, 3)}


def _of_matrix(model: Learner) -> dict[str, Any]:
    history, last = model.history_, model.history_.records[-1]
    rows, columns = model.factors.shape
    tested = getattr(model, "test_auc_", None)
    held = getattr(model.trainer, "held_error", None)
    used, values = model.effective_rank_, model.singular_values_
    return {
        "rows": rows,
        "columns": columns,
        "rank": model.rank,
        "epochs": round(last["epoch"], 3),
        "stopped_by": history.stopped,
        "mean_loss": last["loss"],
        # Of the directions in use: of the others it would be that of rounding.
        "condition_number": float(values[0] / values[used - 1]) if used and values[0] else 1.0,
        "effective_rank": used,
        "repairs": history.repairs,
    } | {
        name: value
        for name, value in (("held_out_error", held), ("test_auc", tested))
        if value is not None
    }


def _of_recommender(model: Recommender) -> dict[str, Any]:
    policy = model.policy_
    found = {
        "users": len(model.user_ids),
        "items": len(model.item_ids),
        "choices": int(model.histories.table.nnz),
        "rank": model.rank,
        "loss": policy.loss,
    }
    if policy.loss == "softmax":
        found |= {
            "product": "cosine" if policy.cosine else "dot",
            "temperature": policy.tau,
            "contrast": policy.c,
        }
    found |= {
        "ridge": policy.ridge,
        "unobserved_weight": policy.alpha0,
        "neighbours": policy.neighbours,
        "epochs": round(model.history_.records[-1]["epoch"]),
    }
    # Held out: nothing, where nobody has three choices.
    for who, prefix in ((policy.loss, ""), ("popularity", "popularity_")):
        for name, value in zip(
            ("ndcg@20", "recall@20"), model.measures_.get(who, ()), strict=False
        ):
            found[prefix + name] = round(value, 4)
    return found
