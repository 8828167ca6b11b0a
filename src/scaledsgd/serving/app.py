"""The routes of `api`, answered."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from typing import Any
from urllib.parse import unquote

from jsonschema import Draft202012Validator
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route as HttpRoute
from starlette.types import ASGIApp

from .. import __version__
from ..estimators.completers import DistanceCompleter
from ..streaming.validate import validate
from . import answers
from .access import Gate, Limits, Problem, Tokens
from .api import ROUTES, Route, openapi
from .event_log import EventLog
from .learner import LearnerThread, Live, finite, roles_of
from .measures import Measures

_EVERY = 0.5  # seconds between two messages of the live view
_LONG = 1 << 15  # bytes of a body that are looked at beside the others, not before them
_QUEUE = 2000  # questions that may wait
_WHOLE = re.compile(r"-?\d{1,18}", re.ASCII)  # a number in a path or a query

# The page: what it is made of, by path, and of what kind that is.
_PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/uplot.css": ("uplot.css", "text/css; charset=utf-8"),
    "/uplot.js": ("uplot.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_SHELL = frozenset({*_PAGE, "/health/live"})
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass
class Service:
    """What the routes answer from."""

    live: Live
    name: str = "model"
    titles: answers.Titles = field(default_factory=dict)
    note: str = ""  # shown on the page
    known: answers.Known | None = None
    anchors: tuple[list, Any] | None = None  # ids and their places
    columns: dict[str, str] = field(default_factory=dict)
    log: EventLog | None = None
    learner: LearnerThread | None = None
    limits: Limits = field(default_factory=Limits)
    stopping: Callable[[], bool] = lambda: False

    def __post_init__(self):
        self.measures = Measures()
        self._pool = ThreadPoolExecutor(2, "questions")
        self._counter: answers.Counter | None = None
        self._streams = 0
        self._residuals: tuple[int, dict] = (-1, {})

    def close(self) -> None:
        if self._counter is not None:
            self._counter.stop()
        self._pool.shutdown()

    @property
    def behind(self) -> int:
        """Accepted events that are not in the snapshot."""
        return 0 if self.learner is None else self.learner.behind

    async def _work(self, method: Callable, *given, **named) -> Any:
        """Something that takes a while, beside the others."""
        work = asyncio.get_running_loop().run_in_executor(
            self._pool, partial(method, *given, **named)
        )
        try:
            return await asyncio.wait_for(work, self.limits.seconds)
        except TimeoutError:
            raise Problem(503, "no answer was found in time", {"retry-after": "1"}) from None

    async def brief(self, method: Callable, content: bytes, *given) -> Any:
        """Something that takes as long as the content is: if that is not long, at once."""
        if len(content) < _LONG:
            return method(content, *given)
        return await self._work(method, content, *given)

    # --- Questions ----------------------------------------------------------------------------

    async def recommend_to(self, asked: Asked) -> Response:
        if self._counter is None:
            loop = asyncio.get_running_loop()
            self._counter = answers.Counter(self.live, self.titles, loop)
        if self._counter.waiting > _QUEUE:
            raise Problem(503, "too many questions at once", {"retry-after": "1"})
        given = asked.given
        told = await self._counter.ask(
            asked.path["user"], given["k"], given.get("exclude", ()), given["seen"]
        )
        if isinstance(told, Problem):
            raise told
        return Response(told, media_type="application/json")

    async def recommend(self, asked: Asked) -> Response:
        given, snapshot = asked.given, self.live.snapshot
        answers.need(snapshot.model, "recommend")
        k = given.pop("k", 10)
        found = await self._work(answers.recommend, snapshot.model, k, **given)
        return self._items(found, snapshot.number)

    async def similar(self, asked: Asked) -> Response:
        snapshot = self.live.snapshot
        answers.need(snapshot.model, "similar")
        item, k = asked.path["item"], asked.given["k"]
        found = await self._work(answers.similar, snapshot.model, item, k)
        return self._items(found, snapshot.number)

    async def explain_to(self, asked: Asked) -> Response:
        return await self._explained(asked, user=asked.path["user"], item=asked.path["item"])

    async def explain(self, asked: Asked) -> Response:
        return await self._explained(asked, items=asked.given["items"], item=asked.given["item"])

    async def _explained(self, asked: Asked, **whom) -> Response:
        snapshot = self.live.snapshot
        answers.need(snapshot.model, "explain")
        items, shares = await self._work(answers.explain, snapshot.model, **whom)
        k = asked.given.get("k", 10)
        return self._items((items[:k], shares[:k]), snapshot.number, "share")

    def _items(self, found, number: int, what: str = "score") -> Response:
        items, scores = found
        return _json(
            {"items": answers.listed(items, scores, self.titles, what), "snapshot": number}
        )

    async def predict(self, asked: Asked) -> Response:
        snapshot, given = self.live.snapshot, asked.given
        answers.need(snapshot.model, "predict")
        sure = given.pop("probabilities", False)
        found = await self._work(answers.predict, snapshot.model, given, sure)
        return _json({"predictions": found.tolist(), "snapshot": snapshot.number})

    async def points(self, asked: Asked) -> Response:
        snapshot = self.live.snapshot
        answers.need(snapshot.model, "points")
        return _json(await self._work(self._points, snapshot, asked.given["limit"]))

    def _points(self, snapshot, limit: int) -> dict:
        model = snapshot.model
        assert isinstance(model, DistanceCompleter)
        ids, places = self.anchors or ([], None)
        at = snapshot.points if not ids else model.align(ids, places)
        fixed = set(ids)
        names = (range(len(at)) if model.ids is None else model.ids[0].names().tolist())[:limit]
        found = zip(names, at[:limit].round(6).tolist(), strict=True)
        return {
            "points": [{"id": name, "at": x, "anchor": name in fixed} for name, x in found],
            "count": len(at),
            "snapshot": snapshot.number,
        }

    async def item_map(self, asked: Asked) -> Response:
        snapshot = self.live.snapshot
        answers.need(snapshot.model, "map")
        items = await self._work(answers.item_map, snapshot, asked.given["limit"], self.titles)
        count = snapshot.model.factors.shape[1]
        return _json({"items": items, "count": count, "snapshot": snapshot.number})

    async def residuals(self, asked: Asked) -> Response:
        snapshot = self.live.snapshot
        answers.need(snapshot.model, "residuals")
        if self._residuals[0] != snapshot.number:
            found = await self._work(answers.residuals, snapshot, self.known)
            self._residuals = snapshot.number, found
        return _json(self._residuals[1] | {"snapshot": self._residuals[0]})

    async def search(self, asked: Asked) -> Response:
        given = asked.given
        how = given["what"], given["q"], given["limit"], self.titles
        return _json({"found": await self._work(answers.search, self.live.snapshot, *how)})

    # --- Events -------------------------------------------------------------------------------

    async def events(self, asked: Asked) -> Response:
        if self.log is None or self.learner is None:
            raise Problem(404, "this server does not learn: start it with --learn")
        if self.live.failure:
            raise Problem(503, self.live.failure)
        if self.behind + self.log.waiting > self.limits.behind:
            raise Problem(429, "learning is too far behind", {"retry-after": "5"})
        key = asked.request.headers.get("idempotency-key", "")
        if len(key) > 200 or not key.isprintable():
            raise Problem(400, "the Idempotency-Key is longer than 200 characters, or no text")
        events = await self.brief(self._events_in, asked.body, asked.request)
        loop, told = asyncio.get_running_loop(), asyncio.get_running_loop().create_future()

        def done(why: Exception | None) -> None:
            loop.call_soon_threadsafe(lambda: told.done() or told.set_result(why))

        self.log.append(events, key, done)
        why = await told
        if why is not None:
            raise Problem(503, str(why), {"retry-after": "10"})
        return _json({"accepted": len(events)}, 202)

    def _events_in(self, body: bytes, request: Request) -> list:
        """Events with the members that the model learns by, or a problem that names the first that
        is none."""
        events, lines = _listed(body, request)
        if len(events) > self.limits.events:
            raise Problem(413, f"more than {self.limits.events:,} events in a request")
        wanted = list(self.columns)
        for number, event in enumerate(events):
            if type(event) is not dict:
                raise Problem(422, f"event {number}: not a JSON object")
            if event.keys() != self.columns.keys():
                missing = [name for name in wanted if name not in event]
                other = [name for name in event if name not in wanted]
                why = f"no {missing[0]!r}" if missing else f"{other[0]!r} is not a member"
                raise Problem(422, f"event {number}: {why}: events have {', '.join(wanted)}")
        model = self.live.snapshot.model
        cells = [[event[name] for event in events] for name in wanted]
        found = validate(roles_of(model, self.columns), cells, model.id_kinds())
        if found.refused:
            number, why = found.refused[0]
            raise Problem(422, f"event {number}: {why}")
        return lines or events

    # --- The state of things ------------------------------------------------------------------

    async def model(self, asked: Asked) -> Response:
        told = await self._work(answers.describe, self.live.snapshot)
        own = {
            "name": self.name,
            "version": __version__,
            "learning": self.learner is not None,
            "events": list(self.columns) if self.learner else [],
            "titles": bool(self.titles),
            "note": self.note,
        }
        return _json(told | own)

    def state(self) -> dict:
        """One message of the live view."""
        snapshot, live = self.live.snapshot, self.live
        rows, columns = snapshot.model.factors.shape
        return {
            "time": time.time(),
            "snapshot": snapshot.number,
            "age": max(0.0, time.time() - snapshot.made),
            "events": snapshot.learned,
            "behind": self.behind,
            "events_per_second": round(live.events_a_second(), 1),
            "loss": finite(float(snapshot.model.residual)),
            "spectrum": [finite(float(s)) for s in snapshot.spectrum[:64]],
            "refused": live.refused,
            "rows": rows,
            "columns": columns,
            "trouble": live.failure or live.trouble,
        }

    async def live_view(self) -> AsyncIterator[str]:
        self._streams += 1
        try:
            while not self.stopping():
                told = await self._work(self.state)
                yield f"data: {json.dumps(told)}\n\n"
                await asyncio.sleep(_EVERY)
        finally:
            self._streams -= 1

    async def watch(self, asked: Asked) -> Response:
        if self._streams >= self.limits.streams:
            raise Problem(503, f"{self.limits.streams} live views are open", {"retry-after": "10"})
        return StreamingResponse(self.live_view(), media_type="text/event-stream")

    async def alive(self, asked: Asked) -> Response:
        return _json({"status": "alive"})

    async def ready(self, asked: Asked) -> Response:
        if self.live.failure:
            raise Problem(503, self.live.failure)
        return _json({"status": "ready", "snapshot": self.live.snapshot.number})

    async def metrics(self, asked: Asked) -> Response:
        state = await self._work(self.state)
        name = "scaledsgd_"
        others = {
            f"{name}snapshot": ("counter", "Snapshots made.", state["snapshot"]),
            f"{name}snapshot_age_seconds": ("gauge", "Age of the snapshot.", state["age"]),
            f"{name}events_behind": ("gauge", "Accepted, not yet in it.", state["behind"]),
            f"{name}events_learned_total": ("counter", "Events in the snapshot.", state["events"]),
            f"{name}events_refused_total": ("counter", "Refused in learning.", state["refused"]),
            f"{name}rows": ("gauge", "Rows of the model.", state["rows"]),
            f"{name}columns": ("gauge", "Columns of the model.", state["columns"]),
            f"{name}live_views": ("gauge", "Live views that are open.", self._streams),
        }
        if self.log is not None:
            others |= {
                f"{name}events_accepted_total": ("counter", "Accepted.", self.log.accepted),
                f"{name}log_bytes": ("gauge", "Bytes of the log.", self.log.size),
                f"{name}log_syncs_total": ("counter", "Times it was synced.", self.log.syncs),
            }
        return Response(self.measures.text(others), media_type="text/plain; version=0.0.4")

    async def openapi(self, asked: Asked) -> Response:
        return _json(openapi(self.columns))


# --- From the wire ------------------------------------------------------------------------------


class Asked:
    """A request whose parameters and body have been checked by the route's schemas."""

    def __init__(self, request: Request, path: dict[str, str], given: dict, body: bytes = b""):
        self.request, self.path, self.given, self.body = request, path, given, body


def _json(content: dict, status: int = 200) -> Response:
    return Response(json.dumps(content), status, media_type="application/json")


def _endpoint(service: Service, route: Route) -> Callable:
    name = "watch" if route.name == "live" else route.name
    handle = getattr(service, name)
    body = Draft202012Validator(route.body) if route.body and route.name != "events" else None
    queries = {p.name: p.schema for p in route.parameters if p.where == "query"}
    checks = {name: Draft202012Validator(schema) for name, schema in queries.items()}

    async def endpoint(request: Request) -> Response:
        request.scope["measured"] = route.path
        path = {name: _decoded(text) for name, text in request.path_params.items()}
        given = _parameters(request, queries, checks) if queries else {}
        if route.body is None:
            return await handle(Asked(request, path, given))
        content = await _body(request, service.limits)
        if body is not None:
            given = await service.brief(_checked, content, body)
        return await handle(Asked(request, path, given, content))

    return endpoint


def _checked(content: bytes, body: Draft202012Validator) -> dict:
    """What a body holds, if it is what the schema asks for."""
    given = _parsed(content)
    wrong = next(iter(body.iter_errors(given)), None)
    if wrong is not None:
        place = ".".join(map(str, wrong.absolute_path))
        raise Problem(400, (f"{place}: " if place else "") + wrong.message[:200])
    return given


def _decoded(text: str) -> str:
    try:
        return unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise Problem(400, f"{text!r} is not UTF-8") from None


def _parameters(request: Request, queries: dict, checks: dict) -> dict:
    """Values of the query, each of the type that its schema asks for."""
    given = {name: schema["default"] for name, schema in queries.items() if "default" in schema}
    if not request.scope["query_string"]:
        return given
    for name in request.query_params:
        if name not in queries:
            raise Problem(400, f"{name[:50]!r} is not a parameter: there are {', '.join(queries)}")
        texts = request.query_params.getlist(name)
        kind = queries[name]["type"]
        value: Any = texts if kind == "array" else texts[-1]
        if kind == "integer":
            value = int(value) if _WHOLE.fullmatch(value) else value
        elif kind == "boolean":
            value = {"true": True, "1": True, "false": False, "0": False}.get(value, value)
        wrong = next(iter(checks[name].iter_errors(value)), None)
        if wrong is not None:
            raise Problem(400, f"{name}: {wrong.message[:200]}")
        given[name] = value
    return given


async def _body(request: Request, limits: Limits) -> bytes:
    """All of the body, unless it is too long or too slow."""
    too_long = Problem(413, f"more than {limits.body:,} bytes", {"connection": "close"})
    told = request.headers.get("content-length", "")
    if told.isdigit() and int(told) > limits.body:
        raise too_long
    parts, size = [], 0
    try:
        async with asyncio.timeout(limits.seconds):
            async for part in request.stream():
                size += len(part)
                if size > limits.body:
                    raise too_long
                parts.append(part)
    except TimeoutError:
        why = f"the request did not arrive within {limits.seconds:g} s"
        raise Problem(408, why, {"connection": "close"}) from None
    except ClientDisconnect:
        raise Problem(400, "the request broke off") from None
    return b"".join(parts)


def _parsed(content: bytes) -> Any:
    try:
        return json.loads(content, parse_constant=_no_number)
    except (ValueError, RecursionError) as why:
        raise Problem(400, f"not JSON: {why}") from None


def _no_number(text: str):
    raise ValueError(f"{text} is not a number")


def _listed(body: bytes, request: Request) -> tuple[list, list[bytes]]:
    """The events of a body: an object, a list of them, or one a line; and the lines, if it has
    any."""
    lines: list[bytes] = []
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in ("application/x-ndjson", "application/jsonl", "application/ndjson"):
        lines = [line for line in map(bytes.strip, body.split(b"\n")) if line]
        found = _parsed(b"[" + b",".join(lines) + b"]")
        # The lines go into the log as they are: none may hold half an event, or two.
        apart = all(line.startswith(b"{") and line.endswith(b"}") for line in lines)
        if len(found) != len(lines) or not apart:
            raise Problem(400, "not one JSON object a line")
    else:
        found = _parsed(body)
    found = found if isinstance(found, list) else [found]
    if not found:
        raise Problem(422, "no events")
    return found, lines


# --- The application ------------------------------------------------------------------------------


def application(
    service: Service, tokens: Tokens | None, cors: tuple[str, ...] = (), *, hosts=_LOOPBACK
) -> ASGIApp:
    """All routes and the page, behind the gate. Args: tokens, None where none is needed; cors, the
    origins of other pages that may ask; hosts, the names by which the server may be asked where
    there are no tokens."""
    routes = [
        HttpRoute(route.path, _endpoint(service, route), methods=[route.method]) for route in ROUTES
    ]
    routes += [HttpRoute(path, _static(*file)) for path, file in _PAGE.items()]
    app: ASGIApp = Starlette(
        routes=routes,
        exception_handlers={HTTPException: _refused, Problem: _problem, Exception: _failed},
    )
    app = Gate(
        app, tokens, service.limits, service.measures, _SHELL,
        frozenset() if tokens is not None else hosts,
    )  # fmt: skip
    if cors:
        app = CORSMiddleware(
            app, allow_origins=cors, allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type", "idempotency-key"],
        )  # fmt: skip
    return app


async def _refused(request: Request, why: Exception) -> Response:
    assert isinstance(why, HTTPException)
    return _told(Problem(why.status_code, why.detail, why.headers))


async def _problem(request: Request, why: Exception) -> Response:
    assert isinstance(why, Problem)
    return _told(why)


async def _failed(request: Request, why: Exception) -> Response:
    return _told(Problem(500, "an error of the server's own"))


def _told(problem: Problem) -> Response:
    return Response(
        problem.body, problem.status, problem.headers, media_type="application/problem+json"
    )


def _static(name: str, kind: str) -> Callable:
    content = resources.files("scaledsgd.serving").joinpath("page", name).read_bytes()

    async def endpoint(request: Request) -> Response:
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    return endpoint
