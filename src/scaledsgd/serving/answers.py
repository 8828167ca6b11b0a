"""Questions to a snapshot, from what came over the wire to what goes back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from json.encoder import encode_basestring_ascii as _quoted
from queue import SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from ..estimators.base import Learner
from ..estimators.completers import DistanceCompleter, MatrixCompleter
from ..estimators.ranker import ItemRanker
from ..estimators.recommender import Recommender
from ..io.ids import Ids, typed_id
from .access import Problem
from .learner import Live, Snapshot, finite

_TOGETHER = 16  # questions that one product of matrices answers: more would all wait for it
_HISTORY = 400  # records of a run that are sent, at most
_LISTED = 50  # rows or entries that are listed as the worst
_SHOWN = 2000  # known entries that are drawn

Titles = Mapping[Any, str]

# What a model of each kind can be asked.
ABILITIES: dict[type, tuple[str, ...]] = {
    Recommender: ("recommend", "similar", "explain", "map"),
    ItemRanker: ("recommend", "similar", "explain", "map", "predict"),
    MatrixCompleter: ("predict", "residuals"),
    DistanceCompleter: ("predict", "points", "residuals"),
}


def abilities(model: Learner) -> tuple[str, ...]:
    return ABILITIES[type(model)]


def need(model: Learner, ability: str) -> None:
    if ability not in abilities(model):
        raise Problem(404, f"{type(model).__name__} has nothing to {ability}")


def _text(cell) -> str:
    whole = isinstance(cell, float) and cell.is_integer()
    return str(int(cell)) if whole else str(cell)


def known(cell, ids: Ids | None, count: int, what: str) -> int | str:
    """The id that somebody has sent, as a number or a text."""
    found = typed_id(_text(cell), ids, count)
    if found is None:
        raise Problem(404, f"{what} {cell!r} was never seen in training")
    return found


def users_of(model: Any) -> Ids:
    if model.user_ids is None:
        raise Problem(404, "this model knows no users: send the items that somebody likes")
    return model.user_ids


def user_in(model: Any, cell) -> int | str:
    return known(cell, users_of(model), 0, "user")


def item_in(model: Learner, cell) -> int | str:
    return known(cell, model.ids[1] if model.ids else None, model.factors.shape[1], "item")


def listed(items, scores, titles: Titles, what: str = "score") -> list[dict]:
    """Items with their scores and titles."""
    rows = zip(items.tolist(), np.asarray(scores, float).round(6).tolist(), strict=True)
    if not titles:
        return [{"item": item, what: score} for item, score in rows]
    return [{"item": item, what: score, "title": title_of(titles, item)} for item, score in rows]


def title_of(titles: Titles, item) -> str:
    return titles.get(item) or titles.get(str(item), "")


def recommend(
    model: Any, k: int, *, user=None, items=None, candidates=None, exclude=(), seen: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """The best items and their scores, for a user or for whoever likes some items. A model is asked
    for as many more as are to be left out."""
    whom: dict = {"user": user_in(model, user)} if user is not None else {}
    if items is not None:
        whom = {"items": [item_in(model, item) for item in items]}
    there = model.factors.shape[1]
    gone = {item_in(model, item) for item in exclude}
    among = None if candidates is None else {item_in(model, item) for item in candidates} - gone
    wanted = there if among is not None else min(there, k + len(gone))
    how = {("filter_seen" if isinstance(model, Recommender) else "exclude_seen"): not seen}
    found, scores = _asked(model.recommend, **whom, k=wanted, **how)
    if gone or among is not None:
        kept = [i for i, one in enumerate(found.tolist()) if one not in gone]
        kept = [i for i in kept if among is None or found[i] in among]
        found, scores = found[kept], scores[kept]
    return found[:k], scores[:k]


def similar(model: Any, item, k: int) -> tuple[np.ndarray, np.ndarray]:
    return _asked(model.similar, item_in(model, item), min(k, model.factors.shape[1]))


def explain(model: Any, item, user=None, items=None) -> tuple[np.ndarray, np.ndarray]:
    """Which items of a user, or of a list, speak for an item, and their shares."""
    wanted = item_in(model, item)
    if items is not None:
        return _asked(model.explain, item=wanted, items=[item_in(model, one) for one in items])
    return _asked(model.explain, user_in(model, user), wanted)


def _asked(method, *given, **named):
    """A question that the model itself may find no good: it knows no items of a user, say."""
    try:
        return method(*given, **named)
    except ValueError as why:
        raise Problem(404, str(why)) from None


def predict(model: Any, columns: Mapping[str, Sequence], probabilities: bool = False) -> np.ndarray:
    """Predictions for `row` and `column`, or for `i`, `j` and `k`, lists of one length."""
    wanted = ("i", "j", "k") if isinstance(model, ItemRanker) else ("row", "column")
    if set(columns) != set(wanted):
        raise Problem(400, f"{type(model).__name__} predicts by {', '.join(wanted)}")
    if len({len(column) for column in columns.values()}) != 1:
        raise Problem(400, f"{', '.join(wanted)} are not lists of one length")
    sides = {"row": 0, "i": 0}
    rows = []
    for name in wanted:
        side = sides.get(name, 1)
        ids, count = model.ids[side] if model.ids else None, model.factors.shape[side]
        rows.append([known(cell, ids, count, name) for cell in columns[name]])
    if isinstance(model, ItemRanker):
        return model.predict(_columns(rows))
    if probabilities and getattr(model, "loss", "") != "logistic":
        raise Problem(404, "only a logistic model predicts probabilities")
    return (model.predict_proba if probabilities else model.predict)(tuple(rows))


def _columns(rows: list[list]) -> np.ndarray:
    table = np.empty((len(rows[0]), len(rows)), object)
    for n, column in enumerate(rows):
        table[:, n] = column
    return table if any(isinstance(cell, str) for cell in table.flat) else table.astype(np.int64)


# --- What a model is --------------------------------------------------------------------------


def describe(snapshot: Snapshot) -> dict:
    """What the page shows of a model at a glance."""
    model, history = snapshot.model, snapshot.model.history_
    rows, columns = model.factors.shape
    records = history.records[:: max(1, -(-len(history.records) // _HISTORY))]
    if history.records:
        records = [*records[:-1], history.records[-1]]
    policy = model.trainer.policy
    return {
        "kind": type(model).__name__,
        "rows": rows,
        "columns": columns,
        "users": _users(model),
        "rank": model.factors.rank,
        "loss": getattr(policy, "loss", None) or model.objective.name,
        "abilities": list(abilities(model)),
        "settings": {k: _plain(v) for k, v in model.get_params().items()},
        "spectrum": [finite(float(s)) for s in snapshot.spectrum],
        "history": [{k: finite(float(v)) for k, v in one.items()} for one in records],
        "stopped": history.stopped,
        "quality": _quality(model),
        "snapshot": snapshot.number,
    }


def _users(model: Any) -> int:
    """How many users are known by id."""
    ids = getattr(model, "user_ids", None)
    return 0 if ids is None else len(ids)


def _plain(value):
    plain = value is None or isinstance(value, bool | int | str)
    return finite(value) if isinstance(value, float) else value if plain else str(value)


def _quality(model: Any) -> dict[str, float]:
    """What was measured on data that was held out."""
    if isinstance(model, Recommender):
        found = {}
        for who, name in ((model.policy_.loss, ""), ("popularity", "popularity ")):
            for what, value in zip(
                ("NDCG@20", "recall@20"), model.measures_.get(who, ()), strict=False
            ):
                found[name + what] = round(float(value), 4)
        return found
    if isinstance(model, ItemRanker):
        tested = getattr(model, "test_auc_", None)
        return {} if tested is None else {"test AUC": round(tested, 4)}
    held = finite(float(getattr(model.trainer.policy, "held", np.inf)))
    return {} if held is None else {"held-out error": held}


def search(snapshot: Snapshot, what: str, text: str, limit: int, titles: Titles) -> list[dict]:
    """Items or users whose id or title has the text in it: those that are called so first, then
    those that begin so, and of the others those that many chose."""
    model: Any = snapshot.model
    word = text.casefold().strip()
    if what == "users":
        ids = getattr(model, "user_ids", None)
        names = np.zeros(0, np.int64) if ids is None else ids.names()
        folded = [str(name).casefold() for name in names.tolist()]
        rank = np.zeros(len(names))
        titles = {}
    else:
        ids = model.ids[1] if model.ids else None
        names = np.arange(model.factors.shape[1]) if ids is None else ids.names()
        folded = [(title_of(titles, n) or str(n)).casefold() for n in names.tolist()]
        rank = -snapshot.popularity.astype(float)
    found = [n for n, told in enumerate(folded) if word in told]
    found += [n for n, name in enumerate(names.tolist()) if str(name) == text and n not in found]
    found.sort(key=lambda n: (folded[n] != word, not folded[n].startswith(word), rank[n], n))
    chosen = names[found[:limit]].tolist()
    return [{"id": one, "title": title_of(titles, one)} for one in chosen]


def item_map(snapshot: Snapshot, limit: int, titles: Titles) -> list[dict]:
    """The best-known items and where they lie."""
    model, flat = snapshot.model, snapshot.directions
    best = np.argsort(-snapshot.popularity, kind="stable")[:limit]
    names = best if model.ids is None else model.ids[1].names()[best]
    rows = zip(names.tolist(), flat[best].round(4).tolist(), best.tolist(), strict=True)
    return [
        {
            "item": name, "x": x, "y": y, "count": int(snapshot.popularity[row]),
            "title": title_of(titles, name),
        }
        for name, (x, y), row in rows
    ]  # fmt: skip


class Known(NamedTuple):
    """Entries that are known, to compare a model with: ids of rows and columns, and values."""

    rows: np.ndarray
    columns: np.ndarray
    values: np.ndarray


def residuals(snapshot: Snapshot, entries: Known | None) -> dict:
    """How far known entries are from what the model says, and where they are furthest."""
    model: Any = snapshot.model
    nothing = {"count": 0, "rms": None, "worst_rows": [], "worst": [], "shown": []}
    if entries is None:
        return nothing
    if model.ids is None:
        left = entries.rows.astype(np.int64)
        right = entries.columns.astype(np.int64)
        left[left >= model.factors.shape[0]] = right[right >= model.factors.shape[1]] = -1
    else:
        left, right = (ids.find(c) for ids, c in zip(model.ids, entries[:2], strict=True))
    there = np.flatnonzero((left >= 0) & (right >= 0))
    if not len(there):
        return nothing
    rows, columns, values = (column[there] for column in entries)
    found = model.scores([left[there], right[there]])
    if getattr(model, "loss", "") == "logistic":
        found = model.objective.inverse_link(found)
    error = found - values
    squares = np.bincount(left[there], error**2)
    counts = np.bincount(left[there])
    rms = np.sqrt(squares / np.maximum(counts, 1))
    worst = np.argsort(-rms)[:_LISTED]
    names = model.ids[0].names() if model.ids else np.arange(len(rms))
    order = np.argsort(-np.abs(error))[:_LISTED]
    some = np.linspace(0, len(there) - 1, min(_SHOWN, len(there))).astype(int)
    return {
        "count": len(there),
        "rms": float(np.sqrt(np.mean(error**2))),
        "worst_rows": [
            {"row": names[n : n + 1].tolist()[0], "rms": float(rms[n]), "count": int(counts[n])}
            for n in worst.tolist()
            if counts[n]
        ],
        "worst": [
            {
                "row": rows[n : n + 1].tolist()[0], "column": columns[n : n + 1].tolist()[0],
                "value": float(values[n]), "predicted": float(found[n]),
            }
            for n in order.tolist()
        ],
        "shown": np.stack([values[some], found[some]], 1).round(6).tolist(),
    }  # fmt: skip


# --- Many questions at once -------------------------------------------------------------------


class Question(NamedTuple):
    """What to recommend to a user."""

    user: str
    k: int
    exclude: Sequence[str]
    seen: bool
    told: asyncio.Future


class Counter:
    """Where questions for recommendations queue. While one lot is being answered the next gathers,
    and one product of matrices answers all of it: a table of items that is read from memory once
    serves as many as ask."""

    def __init__(self, live: Live, titles: Titles, loop: asyncio.AbstractEventLoop):
        self._live, self._titles, self._loop = live, titles, loop
        self._queue: SimpleQueue[Question | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="answers", daemon=True)
        self._thread.start()

    def ask(self, user: str, k: int, exclude: Sequence[str], seen: bool) -> asyncio.Future:
        """A list of items, or a Problem."""
        told = self._loop.create_future()
        self._queue.put(Question(user, k, exclude, seen, told))
        return told

    @property
    def waiting(self) -> int:
        return self._queue.qsize()

    def stop(self) -> None:
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            lot = [self._queue.get()]
            while len(lot) < _TOGETHER and not self._queue.empty():
                lot.append(self._queue.get())
            asked = [one for one in lot if one is not None]
            if asked:
                try:
                    told = self._answered(asked)
                except Exception:  # whoever asks must be told something
                    told = [
                        (one.told, Problem(500, "an error of the server's own")) for one in asked
                    ]
                self._loop.call_soon_threadsafe(_tell, told)
            if None in lot:
                return

    def _answered(self, lot: list[Question]) -> list[tuple[asyncio.Future, Any]]:
        snapshot = self._live.snapshot
        model: Any = snapshot.model
        try:
            need(model, "recommend")
            ids = users_of(model)
        except Problem as why:
            return [(one.told, why) for one in lot]
        texts = np.empty(len(lot), object)
        texts[:] = [one.user for one in lot]
        rows = ids.find(texts)
        told = [
            (one.told, Problem(404, f"user {one.user!r} was never seen in training"))
            for one, row in zip(lot, rows, strict=True)
            if row < 0
        ]
        for seen in {one.seen for one in lot}:
            group = [n for n, one in enumerate(lot) if rows[n] >= 0 and one.seen == seen]
            if group:
                asked = [lot[n] for n in group]
                told += self._together(snapshot, asked, rows[group], seen)
        return told

    def _together(self, snapshot: Snapshot, lot: list[Question], users: np.ndarray, seen: bool):
        model: Any = snapshot.model
        k = min(max(one.k + len(one.exclude) for one in lot), model.factors.shape[1])
        try:
            gone = [{item_in(model, item) for item in one.exclude} for one in lot]
            if isinstance(model, Recommender):
                rows, scores = model.recommend_to_rows(users, k, not seen)
                items = model.item_ids.names(rows)
            else:
                names = model.user_ids.names(users)
                items, scores = model.recommend(user=names, k=k, exclude_seen=not seen)
        except (ValueError, Problem):  # one of them is no good: each by itself
            return [(one.told, self._alone(snapshot, one)) for one in lot]
        rows = zip(lot, gone, items.tolist(), scores.astype(float).round(6).tolist(), strict=True)
        return [
            (one.told, self._text(out, found, values, one.k, snapshot.number))
            for one, out, found, values in rows
        ]

    def _text(self, gone: set, items: list, scores: list, k: int, number: int) -> str:
        """The answer as JSON, which is most of what an answer costs besides its search."""
        if gone or (scores and scores[-1] == -np.inf):
            both = zip(items, scores, strict=True)
            kept = [(i, s) for i, s in both if s > -np.inf and i not in gone]
            items, scores = [i for i, _ in kept], [s for _, s in kept]
        parts = []
        for item, score in zip(items[:k], scores[:k], strict=True):
            name = _quoted(item) if type(item) is str else item
            title = f', "title": {_quoted(title_of(self._titles, item))}' if self._titles else ""
            parts.append(f'{{"item": {name}, "score": {score}{title}}}')
        return f'{{"items": [{", ".join(parts)}], "snapshot": {number}}}'

    def _alone(self, snapshot: Snapshot, one: Question) -> Any:
        try:
            found, scores = recommend(
                snapshot.model, one.k, user=one.user, exclude=one.exclude, seen=one.seen
            )
            values = scores.astype(float).round(6).tolist()
            return self._text(set(), found.tolist(), values, one.k, snapshot.number)
        except Problem as why:
            return why


def _tell(told: list[tuple[asyncio.Future, Any]]) -> None:
    for future, answer in told:
        if not future.done():  # who asked may have gone
            future.set_result(answer)
