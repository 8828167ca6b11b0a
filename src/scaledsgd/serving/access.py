"""Who may ask, how much and how long: tokens, limits, and the headers that every answer carries."""

from __future__ import annotations

import hmac
import json
import os
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..io.tables import InputError
from .measures import Measures

READ, WRITE = "read", "write"
_SHORTEST = 16  # characters of a token: what is shorter can be guessed
_CLIENTS = 10_000  # addresses whose rates are remembered

# Of the environment, and what a token under that name may do.
_VARIABLES = {
    "SCALEDSGD_READ_TOKEN": (READ,),
    "SCALEDSGD_WRITE_TOKEN": (WRITE,),
    "SCALEDSGD_TOKEN": (READ, WRITE),
}

# What a page may load: what this server sends, and nothing else.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = [
    (b"content-security-policy", _POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
]
_NOT_KEPT = (b"cache-control", b"no-store")


class Token(NamedTuple):
    digest: bytes
    roles: tuple[str, ...]
    expires: float  # seconds since 1970


class Tokens:
    """Tokens, of which only digests are held.

    >>> tokens = Tokens([("a" * 16, ("read",), None)])
    >>> tokens.roles("a" * 16), tokens.roles("b" * 16)
    ({'read'}, set())
    """

    def __init__(self, given: Iterable[tuple[str, tuple[str, ...], float | None]]):
        self._tokens = []
        for text, roles, expires in given:
            if len(text) < _SHORTEST or not text.isascii():
                raise InputError(f"a token needs at least {_SHORTEST} characters of ASCII")
            forever = float("inf") if expires is None else expires
            self._tokens.append(Token(_digest(text), roles, forever))

    def roles(self, text: str) -> set[str]:
        """What whoever brings this token may do. Takes as long whichever it is."""
        found, now, found_digest = set(), time.time(), _digest(text)
        for token in self._tokens:
            same = hmac.compare_digest(token.digest, found_digest)
            found |= set(token.roles) if same and now < token.expires else set()
        return found


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()


def tokens_in(path: Path) -> list[tuple[str, tuple[str, ...], float | None]]:
    """Tokens of a file with a line for each: `read TOKEN`, `write TOKEN` or `read,write TOKEN`, and
    behind it, perhaps, the day or moment from which on it is no good (UTC)."""
    found = []
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as why:
        raise InputError(f"{path}: cannot be read ({getattr(why, 'strerror', why)})") from None
    for number, line in enumerate(lines, 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        roles = tuple(words[0].split(","))
        try:
            if len(words) not in (2, 3) or not set(roles) <= {READ, WRITE}:
                raise ValueError("not `read TOKEN` or `write TOKEN`, and perhaps a date")
            until = datetime.fromisoformat(words[2]) if len(words) == 3 else None
            if until is not None and until.tzinfo is None:
                until = until.replace(tzinfo=UTC)
        except ValueError as why:
            raise InputError(f"{path}, line {number}: {why}") from None
        found.append((words[1], roles, until.timestamp() if until else None))
    if not found:
        raise InputError(f"{path}: no token in it")
    return found


def tokens_of(environment: Mapping[str, str] = os.environ):
    """Tokens of the environment."""
    return [
        (environment[name], roles, None)
        for name, roles in _VARIABLES.items()
        if environment.get(name)
    ]


def new_tokens(separate: bool) -> list[tuple[str, tuple[str, ...], float | None]]:
    """Tokens that nobody knows: one for everything, or one for each."""
    roles = [(READ,), (WRITE,)] if separate else [(READ, WRITE)]
    return [(secrets.token_urlsafe(24), role, None) for role in roles]


@dataclass(frozen=True)
class Limits:
    body: int = 1 << 20  # bytes of a request
    seconds: float = 10.0  # for a body to arrive, or an answer to be found
    rate: float = 20_000.0  # requests a second from one address
    events: int = 10_000  # in a request
    behind: int = 2_000_000  # events that may wait to be learned
    streams: int = 64  # live views at a time


class Problem(Exception):
    """What went wrong, in one line, and the status that says so."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None):
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, dict(headers or {})

    @property
    def body(self) -> bytes:
        told = {"title": HTTPStatus(self.status).phrase, "status": self.status}
        return json.dumps(told | {"detail": " ".join(self.detail.split())}).encode()


class Rates:
    """How many requests an address may still send: `rate` a second, and as many at once."""

    def __init__(self, rate: float):
        self._rate = rate
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def allows(self, client: str) -> bool:
        now = time.monotonic()
        left, before = self._left.pop(client, (self._rate, now))
        left = min(self._rate, left + (now - before) * self._rate)
        self._left[client] = max(0.0, left - 1.0), now
        if len(self._left) > _CLIENTS:
            self._left.popitem(last=False)
        return left >= 1.0


class Gate:
    """Stands before the application: nobody passes who may not, and every answer is measured and
    carries the headers above.

    shell : paths that need no token: what the page is made of, and whether the server lives.
    hosts : the names under which the server may be asked; none: any. Without tokens a page from
        elsewhere could otherwise ask in its visitor's name.
    """

    def __init__(
        self, app: ASGIApp, tokens: Tokens | None, limits: Limits, measures: Measures,
        shell: frozenset[str], hosts: frozenset[str] = frozenset(),
    ):  # fmt: skip
        self._app, self._tokens, self._limits, self._measures = app, tokens, limits, measures
        self._shell, self._hosts, self._rates = shell, hosts, Rates(limits.rate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        # Ids may hold slashes: routes see the path as it was sent.
        scope["path"] = scope["raw_path"].decode("latin-1")
        begun, sent = time.perf_counter(), 0

        async def answer(message: Message) -> None:
            nonlocal sent
            if message["type"] == "http.response.start":
                sent = message["status"]
                headers = [*message["headers"], *_HEADERS]
                if not any(name == b"cache-control" for name, _ in headers):
                    headers.append(_NOT_KEPT)
                message = {**message, "headers": headers}
            await send(message)

        try:
            self._check(scope)
            await self._app(scope, receive, answer)
        except Problem as why:
            if not sent:
                await respond(answer, why)
        except Exception:
            if not sent:
                await respond(answer, Problem(500, "an error of the server's own"))
            raise
        finally:
            self._measures.answered(
                scope.get("measured", "other"), sent, time.perf_counter() - begun
            )

    def _check(self, scope: Scope) -> None:
        headers = dict(scope["headers"])
        if self._hosts and _host(headers) not in self._hosts:
            raise Problem(403, "this server is not asked under that name")
        client = scope["client"][0] if scope["client"] else ""
        if not self._rates.allows(client):
            raise Problem(429, f"more than {self._limits.rate:g} requests a second", _LATER)
        if self._tokens is None or scope["path"] in self._shell:
            return
        kind, _, text = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        roles = self._tokens.roles(text.strip()) if kind.lower() == "bearer" else set()
        if not roles:
            why = "a token is needed" if not text else "the token is wrong or has expired"
            raise Problem(401, why, {"www-authenticate": "Bearer"})
        wanted = WRITE if scope["path"] == "/v1/events" else READ
        if wanted not in roles:
            raise Problem(403, f"this token is not for {_FOR[wanted]}")


_FOR = {READ: "reading", WRITE: "sending events"}
_LATER = {"retry-after": "1"}


def _host(headers: dict[bytes, bytes]) -> str:
    name = headers.get(b"host", b"").decode("latin-1").lower()
    return (
        name[: name.index("]") + 1] if name.startswith("[") and "]" in name else name.split(":")[0]
    )


async def respond(send: Send, problem: Problem) -> None:
    """The answer that tells of a problem."""
    body = problem.body
    headers = {"content-type": "application/problem+json", "content-length": str(len(body))}
    pairs = [(k.encode(), v.encode()) for k, v in (headers | problem.headers).items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
