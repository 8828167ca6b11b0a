"""What tests of the server share: models of all kinds, served in this process on real sockets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="the extra `serve` is not installed")
pytest.importorskip("starlette", reason="the extra `serve` is not installed")

from scaledsgd import Client, DistanceCompleter, ItemRanker, MatrixCompleter, Recommender, load
from scaledsgd.serving.access import Tokens
from scaledsgd.serving.app import Service, application
from scaledsgd.serving.event_log import EventLog
from scaledsgd.serving.learner import LearnerThread, Live, Snapshot, columns_of
from scaledsgd.serving.server import http_server, listen

READ, WRITE, BOTH, OLD = (letter * 20 for letter in "rwbo")
TOKENS = [
    (READ, ("read",), None), (WRITE, ("write",), None), (BOTH, ("read", "write"), None),
    (OLD, ("read", "write"), 1.0),
]  # fmt: skip


def choices() -> dict[str, list]:
    """Two groups of users and items, and an id that a path has to be careful with."""
    rng = np.random.default_rng(0)
    users, items = [], []
    for u in range(40):
        for i in rng.choice(12, 6, replace=False):
            users.append(f"u{u}")
            items.append(f"{'tea' if u % 2 else 'rye'}/{i}")
    return {"user": users, "item": items}


def recommender() -> Recommender:
    model = Recommender(rank=4, loss="squared", random_state=0)
    return model.partial_fit(choices(), user="user", item="item")


def ranker() -> ItemRanker:
    return ItemRanker(rank=3, epochs=2, random_state=0).fit(choices(), user="user", item="item")


def matrix() -> MatrixCompleter:
    M = np.outer(np.arange(1.0, 9), np.arange(1.0, 7))
    M[0, 0] = np.nan
    return MatrixCompleter(rank=1, epochs=40, random_state=0).fit(M)


def distances() -> DistanceCompleter:
    points = np.random.default_rng(0).random((20, 2))
    i, j = np.triu_indices(20, 1)
    D = ((points[i] - points[j]) ** 2).sum(axis=1)
    table = {"row": [f"p{n}" for n in i], "column": [f"p{n}" for n in j], "value": D}
    model = DistanceCompleter(rank=2, epochs=100, random_state=0)
    return model.fit(table, row="row", column="column", value="value")


KINDS: dict[str, Callable] = {
    "recommender": recommender, "ranker": ranker, "matrix": matrix, "distances": distances,
}  # fmt: skip


@contextmanager
def running(service: Service, tokens: Tokens | None = None, **how) -> Iterator[SimpleNamespace]:
    """A server in a thread, asked under its own address."""
    place = listen("127.0.0.1", 0)
    server = http_server(application(service, tokens, **how))
    service.stopping = lambda: server.should_exit
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[place])))
    if service.learner is not None:
        service.learner.start()
    thread.start()
    try:
        url = f"http://127.0.0.1:{place.getsockname()[1]}"
        token = BOTH if tokens is not None else ""
        with Client(url, token) as client:
            port = place.getsockname()[1]
            yield SimpleNamespace(url=url, port=port, client=client, service=service, token=token)
    finally:
        server.should_exit = True
        thread.join(20)
        if service.learner is not None:
            service.learner.stop()
        service.close()
        place.close()


@contextmanager
def serving(tmp_path) -> Iterator[Callable]:
    """Serves a model: of a kind, or one's own; with tokens, and learning if it should."""
    with ExitStack() as stack:

        def serve(model="recommender", *, learn=False, tokens=None, how=None, **more):
            model = KINDS[model]() if isinstance(model, str) else model
            service = Service(Live(Snapshot(model).ready()), **more)
            if learn:
                path = tmp_path / "m.model"
                model.save(path)
                columns = columns_of(model)
                log = stack.enter_context(EventLog(tmp_path / "log"))
                service.log, service.columns = log, columns
                service.learner = LearnerThread(load(path), log, path, columns, pace=0.05)
                service.live = service.learner.live
            allowed = None if tokens is None else Tokens(tokens)
            return stack.enter_context(running(service, allowed, **(how or {})))

        yield serve
