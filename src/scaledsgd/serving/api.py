"""The routes as data: what may be sent, what comes back, and the page that says so to programs
(`/openapi.json`). The server is built from this table and checks requests by its schemas."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from .. import __version__
from .access import Limits

LARGEST_K = 1000
_LONGEST_LIST = 10_000

_ID = {"type": ["integer", "string"], "description": "An id: a whole number or a word."}
_IDS = {"type": "array", "items": _ID, "minItems": 1, "maxItems": _LONGEST_LIST}
_K = {"type": "integer", "minimum": 1, "maximum": LARGEST_K, "default": 10}
_FLAG = {"type": "boolean", "default": False}
_TEXT = {"type": "string"}
_NUMBER = {"type": "number"}
_MAYBE = {"type": ["number", "null"]}
_COUNT = {"type": "integer", "minimum": 0}


def _object(properties: dict, optional: tuple = (), **more) -> dict:
    required = [name for name in properties if name not in optional]
    told = {"type": "object", "properties": properties, "additionalProperties": False}
    return told | ({"required": required} if required else {}) | more


def _list(of: dict) -> dict:
    return {"type": "array", "items": of}


def _items(what: str) -> dict:
    one = _object({"item": _ID, what: _NUMBER, "title": _TEXT}, ("title",))
    return _object({"items": _list(one), "snapshot": _COUNT})


_PROBLEM = _object({"title": _TEXT, "status": {"type": "integer"}, "detail": _TEXT})
_MEMBERS = {"type": "object", "additionalProperties": {}}

_MODEL = _object(
    {
        "kind": _TEXT,
        "rows": _COUNT,
        "columns": _COUNT,
        "users": _COUNT,
        "rank": _COUNT,
        "loss": _TEXT,
        "abilities": _list(_TEXT),
        "settings": _MEMBERS,
        "spectrum": _list(_MAYBE),
        "history": _list({"type": "object", "additionalProperties": _MAYBE}),
        "stopped": _TEXT,
        "quality": {"type": "object", "additionalProperties": _NUMBER},
        "snapshot": _COUNT,
        "name": _TEXT,
        "version": _TEXT,
        "learning": {"type": "boolean"},
        "events": _list(_TEXT),
        "titles": {"type": "boolean"},
        "note": _TEXT,
    }
)

LIVE = _object(
    {
        "time": _NUMBER,
        "snapshot": _COUNT,
        "age": {"type": "number", "description": "Seconds since the snapshot was made."},
        "events": {"type": "integer", "description": "Events in the snapshot."},
        "behind": {"type": "integer", "description": "Accepted events that are not in it yet."},
        "events_per_second": _NUMBER,
        "loss": _MAYBE,
        "spectrum": _list(_MAYBE),
        "refused": _COUNT,
        "rows": _COUNT,
        "columns": _COUNT,
        "trouble": _TEXT,
    }
)


class Parameter(NamedTuple):
    name: str
    schema: dict
    where: str = "query"


class Route(NamedTuple):
    method: str
    path: str
    name: str  # of the handler
    summary: str
    parameters: tuple[Parameter, ...] = ()
    body: dict | None = None
    answer: dict | None = None  # schema of a JSON answer
    status: int = 200
    media: str = "application/json"
    problems: tuple[int, ...] = (400, 401, 403, 429, 503)


def _in_path(*names: str) -> tuple[Parameter, ...]:
    return tuple(Parameter(name, {"type": "string", "minLength": 1}, "path") for name in names)


def _events(members: Iterable[str] = ()) -> dict:
    """One event with these members, or a list of them."""
    event: dict[str, Any] = {"type": "object"}
    if members:
        known = {name: {"type": ["number", "string"]} for name in members}
        event |= {"properties": known, "required": list(known), "additionalProperties": False}
    several = {"type": "array", "items": event, "minItems": 1, "maxItems": Limits.events}
    return {"oneOf": [event, several]}


_HOW_MANY = Parameter("k", _K)
_MANY = Parameter("limit", {"type": "integer", "minimum": 1, "maximum": 5000, "default": 2000})
_FEW = Parameter("limit", {"type": "integer", "minimum": 1, "maximum": 100, "default": 10})
_EXCLUDE = Parameter("exclude", {"type": "array", "items": _TEXT, "maxItems": LARGEST_K})
_SEEN = Parameter("seen", _FLAG)
_WHAT = Parameter("what", {"type": "string", "enum": ["items", "users"], "default": "items"})
_ASKED = (400, 401, 403, 404, 429, 503)
_SENT = (400, 401, 403, 404, 408, 413, 429, 503)

ROUTES = (
    Route(
        "GET", "/v1/recommend/{user}", "recommend_to", "The items that suit a user best.",
        (*_in_path("user"), _HOW_MANY, _EXCLUDE, _SEEN), answer=_items("score"), problems=_ASKED,
    ),
    Route(
        "POST", "/v1/recommend", "recommend",
        "The items that suit whoever likes some items, or a user, among candidates.",
        body=_object(
            {
                "user": _ID, "items": _IDS, "k": _K, "candidates": _IDS,
                "exclude": {"type": "array", "items": _ID, "maxItems": _LONGEST_LIST},
                "seen": _FLAG,
            },
            ("user", "items", "k", "candidates", "exclude", "seen"),
            oneOf=[{"required": ["user"]}, {"required": ["items"]}],
        ),
        answer=_items("score"), problems=_SENT,
    ),
    Route(
        "GET", "/v1/similar/{item}", "similar", "The items most similar to one.",
        (*_in_path("item"), _HOW_MANY), answer=_items("score"), problems=_ASKED,
    ),
    Route(
        "POST", "/v1/predict", "predict",
        "Entries or squared distances by row and column, comparisons by i, j and k.",
        body=_object(
            {"row": _IDS, "column": _IDS, "i": _IDS, "j": _IDS, "k": _IDS, "probabilities": _FLAG},
            ("row", "column", "i", "j", "k", "probabilities"),
        ),
        answer=_object({"predictions": _list(_NUMBER), "snapshot": _COUNT}), problems=_SENT,
    ),
    Route(
        "GET", "/v1/explain/{user}/{item}", "explain_to",
        "Which of a user's items speak for an item.", (*_in_path("user", "item"), _HOW_MANY),
        answer=_items("share"), problems=_ASKED,
    ),
    Route(
        "POST", "/v1/explain", "explain", "Which of some items speak for an item.",
        body=_object({"items": _IDS, "item": _ID, "k": _K}, ("k",)),
        answer=_items("share"), problems=_SENT,
    ),
    Route(
        "GET", "/v1/points", "points", "Points found from distances, anchors where they belong.",
        (_MANY,),
        answer=_object(
            {
                "points": _list(
                    _object({"id": _ID, "at": _list(_NUMBER), "anchor": {"type": "boolean"}})
                ),
                "count": _COUNT,
                "snapshot": _COUNT,
            }
        ),
        problems=_ASKED,
    ),
    Route(
        "GET", "/v1/map", "item_map", "The best-known items along two principal directions.",
        (_MANY,),
        answer=_object(
            {
                "items": _list(
                    _object(
                        {"item": _ID, "x": _NUMBER, "y": _NUMBER, "count": _COUNT, "title": _TEXT}
                    )
                ),
                "count": _COUNT,
                "snapshot": _COUNT,
            }
        ),
        problems=_ASKED,
    ),
    Route(
        "GET", "/v1/residuals", "residuals", "Known entries against what the model says of them.",
        answer=_object(
            {
                "count": _COUNT,
                "rms": _MAYBE,
                "worst_rows": _list(_object({"row": _ID, "rms": _NUMBER, "count": _COUNT})),
                "worst": _list(
                    _object({"row": _ID, "column": _ID, "value": _NUMBER, "predicted": _NUMBER})
                ),
                "shown": _list(_list(_NUMBER)),
                "snapshot": _COUNT,
            }
        ),
        problems=_ASKED,
    ),
    Route(
        "GET", "/v1/search", "search", "Items or users by what is in their titles or ids.",
        (Parameter("q", {"type": "string", "maxLength": 200, "default": ""}), _WHAT, _FEW),
        answer=_object({"found": _list(_object({"id": _ID, "title": _TEXT}))}), problems=_ASKED,
    ),
    Route(
        "POST", "/v1/events", "events",
        "Events to learn from: one, a list, or one a line. Answered once they are on disk.",
        (Parameter("idempotency-key", {"type": "string", "maxLength": 200}, "header"),),
        body=_events(),
        answer=_object({"accepted": _COUNT}), status=202, problems=(*_SENT, 422),
    ),
    Route("GET", "/v1/model", "model", "What the model is.", answer=_MODEL),
    Route(
        "GET", "/v1/live", "live", "The state of learning, twice a second, as server-sent events.",
        media="text/event-stream",
    ),
    Route(
        "GET", "/health/live", "alive", "Whether the server runs.",
        answer=_object({"status": _TEXT}), problems=(429,),
    ),
    Route(
        "GET", "/health/ready", "ready", "Whether it can answer, and learn if it should.",
        answer=_object({"status": _TEXT, "snapshot": _COUNT}),
    ),
    Route("GET", "/metrics", "metrics", "Counters for Prometheus.", media="text/plain"),
    Route("GET", "/openapi.json", "openapi", "This description.", answer={"type": "object"}),
)  # fmt: skip


def openapi(members: Iterable[str] = ()) -> dict[str, Any]:
    """The description of all routes in OpenAPI 3.1. `members` are those of an event that the model
    learns by."""
    paths: dict[str, dict] = {}
    for route in ROUTES:
        route = route._replace(body=_events(members)) if route.name == "events" else route
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "scaledsgd", "version": __version__},
        "paths": paths,
        "components": {
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
            "schemas": {"Problem": _PROBLEM, "Live": LIVE},
        },
    }


def _operation(route: Route) -> dict:
    told: dict[str, Any] = {
        "summary": route.summary,
        "operationId": route.name,
        "security": [] if route.path == "/health/live" else [{"token": []}],
        "responses": {str(route.status): {"description": "As asked.", "content": _content(route)}},
    }
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    for status in route.problems:
        told["responses"][str(status)] = {"description": "A problem.", "content": problem}
    if route.parameters:
        told["parameters"] = [
            {"name": p.name, "in": p.where, "required": p.where == "path", "schema": p.schema}
            for p in route.parameters
        ]
    if route.body is not None:
        content = {"application/json": {"schema": route.body}}
        if route.name == "events":
            content["application/x-ndjson"] = {"schema": {"type": "string"}}
        told["requestBody"] = {"required": True, "content": content}
    return told


def _content(route: Route) -> dict:
    return {route.media: {"schema": route.answer or {"type": "string"}}}
