"""A model that lives in a server, asked as if it were here."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlencode, urlsplit
from uuid import uuid4

import numpy as np

from ..io.tables import columns_of

_BATCH = 5000  # events a request
_TRIES, _WAIT = 5, 0.2  # times that a request is sent, and seconds before the second time


class ServerError(RuntimeError):
    """The server's answer is a problem. `status` is HTTP's."""

    def __init__(self, status: int, detail: str):
        super().__init__(detail)
        self.status = status


class Client:
    """The methods of the models, answered by `scaledsgd serve`.

    url, token : as the server prints them.
    timeout : seconds to wait for an answer.

    What a model refuses with a ValueError is a ValueError here, too: an unknown user, say.

    >>> shop = Client("http://127.0.0.1:8421", "the token that it printed")
    >>> shop.recommend("ann", k=3)  # doctest: +SKIP
    (array(['tea', 'rye', 'jam'], dtype=object), array([0.9, 0.4, 0.2]))
    """

    def __init__(self, url: str, token: str = "", *, timeout: float = 30.0):
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"{url!r} is not the address of a server, as http://127.0.0.1:8421")
        connect = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._connection = connect(parts.hostname, parts.port, timeout=timeout)
        self._base = parts.path.rstrip("/")
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._lock = threading.Lock()

    def recommend(
        self, user=None, k: int = 10, *, items=None, candidates=None, exclude=None,
        filter_seen: bool = True, exclude_seen: bool = True,
    ):  # fmt: skip
        """As `Recommender.recommend`, and `ItemRanker.recommend` with `user` or `items` by name."""
        if (user is None) == (items is None):
            raise ValueError("recommend needs a user or a list of items, and not both")
        whom: Any = user if items is None else items
        several = np.ndim(whom) > 0 if items is None else any(np.ndim(one) for one in whom)
        how = {"k": int(k), "seen": not (filter_seen and exclude_seen)}
        how |= {} if candidates is None else {"candidates": _plain(candidates)}
        how |= {} if exclude is None else {"exclude": _plain(exclude)}
        key = "user" if items is None else "items"
        asked = whom if several else [whom]
        found = [self._items("/v1/recommend", {key: _plain(one), **how}) for one in asked]
        return _stacked(found) if several else found[0]

    def similar(self, item, k: int = 10):
        """As the models' `similar`."""
        several = np.ndim(item) > 0
        asked = item if several else [item]
        found = [self._items(f"/v1/similar/{_path(one)}?k={int(k)}") for one in asked]
        return _stacked(found) if several else found[0]

    def explain(self, user=None, item=None, *, items=None) -> tuple[np.ndarray, np.ndarray]:
        """As the models' `explain`."""
        if (user is None) == (items is None):
            raise ValueError("explain needs a user or a list of items, and not both")
        if items is not None:
            body = {"items": _plain(items), "item": _plain(item), "k": 1000}
            return self._items("/v1/explain", body, what="share")
        path = f"/v1/explain/{_path(user)}/{_path(item)}?k=1000"
        return self._items(path, what="share")

    def predict(self, X) -> np.ndarray:
        """As the models' `predict`: of a tuple (rows, columns) or an array of two columns, or of
        triplets (i, j, k), an array of three."""
        return self._predicted(X)

    def predict_proba(self, X) -> np.ndarray:
        """As `MatrixCompleter.predict_proba`."""
        return self._predicted(X, probabilities=True)

    def _predicted(self, X, **how) -> np.ndarray:
        columns = X if isinstance(X, tuple) else np.asarray(X).T
        names = ("row", "column") if len(columns) == 2 else ("i", "j", "k")
        if len(columns) not in (2, 3):
            raise ValueError("entries are named by two columns, comparisons by three")
        body = {name: _plain(column) for name, column in zip(names, columns, strict=True)}
        return np.array(self._ask("POST", "/v1/predict", body | how)["predictions"])

    @property
    def points_(self) -> np.ndarray:
        """As `DistanceCompleter.points_`; where the server knows anchors, aligned to them."""
        found = self._ask("GET", "/v1/points?limit=5000")
        if found["count"] > len(found["points"]):
            raise ValueError(f"{found['count']} points are more than a server sends")
        return np.array([one["at"] for one in found["points"]])

    @property
    def singular_values_(self) -> np.ndarray:
        return np.array(self.model()["spectrum"])

    def partial_fit(self, data, y=None, **columns: str) -> Client:
        """Send events to learn from, and wait until they are on the server's disk: a table whose
        columns are named as for the models, as in `partial_fit(events, user="who", item="what")`.
        What does not arrive is sent again, and counts once."""
        cells = columns_of(data, tuple(columns.values()))
        rows = zip(*(_plain(column) for column in cells), strict=True)
        events = [dict(zip(columns, row, strict=True)) for row in rows]
        for start in range(0, len(events), _BATCH):
            self.send(events[start : start + _BATCH])
        return self

    def send(self, events: Sequence[dict], key: str = "") -> None:
        """Send events as the server knows them: `{"user": "ann", "item": "tea"}`. Args: key, by
        which a request that is sent again is known; one is made."""
        headers = {"idempotency-key": key or uuid4().hex}
        self._ask("POST", "/v1/events", list(events), headers, again=True)

    def model(self) -> dict:
        """What the server tells about its model."""
        return self._ask("GET", "/v1/model")

    def live(self) -> Iterator[dict]:
        """The state of learning, twice a second, for as long as somebody asks for the next."""
        connection = type(self._connection)(self._connection.host, self._connection.port)
        try:
            connection.request("GET", f"{self._base}/v1/live", headers=self._headers)
            answer = connection.getresponse()
            if answer.status != 200:
                raise _error(answer.status, answer.read())
            for line in answer:
                if line.startswith(b"data: "):
                    yield json.loads(line[6:])
        finally:
            connection.close()

    def search(self, text: str, what: str = "items", limit: int = 10) -> list[dict]:
        """Items or users by what is in their titles or ids."""
        query = urlencode({"q": text, "what": what, "limit": limit})
        return self._ask("GET", f"/v1/search?{query}")["found"]

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def _items(self, path: str, body=None, what: str = "score") -> tuple[np.ndarray, np.ndarray]:
        found = self._ask("GET" if body is None else "POST", path, body)["items"]
        names = np.empty(len(found), object)
        names[:] = [one["item"] for one in found]
        if len(found) and not isinstance(names[0], str):
            names = names.astype(np.int64)
        return names, np.array([one[what] for one in found], float)

    def _ask(self, method: str, path: str, body=None, headers=None, again: bool = False) -> Any:
        content = None if body is None else json.dumps(body).encode()
        sent = self._headers | (headers or {})
        sent |= {"content-type": "application/json"} if body is not None else {}
        again = again or method == "GET" or path != "/v1/events"
        status, told = 503, b""
        with self._lock:
            for left in reversed(range(_TRIES if again else 1)):
                try:
                    self._connection.request(method, self._base + path, content, sent)
                    answer = self._connection.getresponse()
                    status, told = answer.status, answer.read()
                    if status not in (429, 503) or not left:
                        break
                except (HTTPException, OSError):
                    self._connection.close()
                    if not left:
                        raise
                time.sleep(_WAIT * (_TRIES - left))
        if status >= 400:
            raise _error(status, told)
        return json.loads(told)


def _error(status: int, told: bytes) -> Exception:
    try:
        detail = json.loads(told)["detail"]
    except (ValueError, KeyError, TypeError):
        detail = f"the server answers {status}"
    return ValueError(detail) if status in (400, 404, 422) else ServerError(status, detail)


def _plain(value) -> Any:
    """As JSON can hold it."""
    if isinstance(value, str | int) or value is None:
        return value
    return value.tolist() if hasattr(value, "tolist") else [_plain(one) for one in value]


def _path(name) -> str:
    return quote(str(_plain(name)), safe="")


def _stacked(found: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """A row for each answer; those with too few others end in -1 (or None), as the models' do."""
    width = max((len(items) for items, _ in found), default=0)
    words = any(items.dtype == object for items, _ in found if len(items))
    items = np.full((len(found), width), None if words else -1, object if words else np.int64)
    scores = np.full((len(found), width), -np.inf)
    for n, (some, their) in enumerate(found):
        items[n, : len(some)], scores[n, : len(some)] = some, their
    return items, scores
