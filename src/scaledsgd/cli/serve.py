"""The command that answers over HTTP while it learns."""

from __future__ import annotations

import json
import sys
import tempfile
import threading
from contextlib import ExitStack, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import (
    Encoding,
    Json,
    NoHeader,
    Separator,
    TitlesFile,
    file,
    flag,
    folder,
    number,
    whole,
)

if TYPE_CHECKING:
    import numpy as np

    from ..estimators.base import Learner
    from ..io.text_format import TextFormat
    from ..serving.access import Tokens
    from ..serving.answers import Known
    from ..serving.app import Service

_PORT = 8421


World = StrEnum("World", "recommender ranking matrix distance")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(serve)


def serve(
    model: Annotated[
        Path | None, typer.Argument(help="A model that fit wrote.", metavar="MODEL")
    ] = None,
    titles: TitlesFile = None,
    learn: Annotated[bool, flag("--learn", "Learn from events that are sent.")] = False,
    log: Annotated[Path | None, folder("Where events are kept (else MODEL.log).")] = None,
    weight: Annotated[bool, flag("--weight", "Recommender: events have a weight.")] = False,
    watch: Annotated[bool, flag("--watch", "Take up MODEL when it is replaced.")] = False,
    known: Annotated[
        Path | None, file("Known entries (row, column, value) to compare the model with.")
    ] = None,
    anchors: Annotated[
        Path | None, file("Distances: ids and places of points that lie fixed.")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen at.", metavar="HOST")] = "127.0.0.1",
    port: Annotated[int, whole("Port to listen at; 0 for any.")] = _PORT,
    tokens: Annotated[Path | None, file("File of tokens: `read TOKEN [UNTIL]` a line.")] = None,
    no_token: Annotated[bool, flag("--no-token", "Ask for no token; on loopback alone.")] = False,
    cors: Annotated[
        list[str] | None,
        typer.Option(help="Origin of another page that may ask.", metavar="ORIGIN"),
    ] = None,
    rate: Annotated[float | None, number("Requests a second from one address.")] = None,
    checkpoint: Annotated[float | None, number("Seconds between checkpoints (30).")] = None,
    behind_proxy: Annotated[
        bool, flag("--behind-proxy", "A proxy on this machine tells who asks.")
    ] = False,
    playground: Annotated[
        bool, flag("--playground", "Train a small model, serve it, open a browser.")
    ] = False,
    world: Annotated[
        World, typer.Option(help="Of the playground: recommender, ranking, matrix, distance.",
                            metavar="WORD")
    ] = World.recommender,
    no_browser: Annotated[bool, flag("--no-browser", "Open no browser.")] = False,
    separator: Separator = None,
    encoding: Encoding = None,
    no_header: NoHeader = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Answer over HTTP, learn from events, and show a page.

    Listens on this machine alone, and asks for the token that it prints.
    Tokens may also come from a file, or from SCALEDSGD_READ_TOKEN and
    SCALEDSGD_WRITE_TOKEN in the environment.
    """
    from ..io.tables import InputError
    from ..io.text_format import text_format
    from ..serving.access import Limits
    from ..serving.server import is_loopback, listen, run

    if (model is None) == (not playground):
        raise InputError("serve needs a MODEL or --playground, and not both")
    if watch and (learn or playground):
        raise InputError("--watch is for a server that does not learn: it writes MODEL itself")
    for name, value in (("--rate", rate), ("--checkpoint", checkpoint)):
        if isinstance(value, str) or (value is not None and not value > 0):
            raise InputError(f"{name} {value}: not a number above 0")
    allowed, shown = _tokens(tokens, no_token, local=is_loopback(host))
    limits = Limits() if rate is None else Limits(rate=rate)
    with ExitStack() as stack:
        place = stack.enter_context(listen(host, port))
        if playground:
            service = _world(str(world), stack, limits)
        else:
            assert model is not None
            text = text_format(separator, encoding, no_header)
            service = _service(model, titles, known, anchors, text, limits)
            if learn:
                _learn(service, model, log, stack, checkpoint, weight)
            elif watch:
                _watch(service, model, stack)
        name, real = place.getsockname()[:2]
        name = f"[{name}]" if ":" in name else name
        url = f"http://{'127.0.0.1' if name in ('0.0.0.0', '[::]') else name}:{real}"
        own = next((text for text, roles in shown if "read" in roles), "")

        def started() -> None:
            _announce(service, url, own, shown, as_json)
            if playground and not no_browser:
                threading.Thread(target=_open, args=(_link(url, own),), daemon=True).start()

        how = {"cors": tuple(cors or ()), "behind_proxy": behind_proxy, "started": started}
        ended = run(service, allowed, place, **how)
    print(f"stopped: {ended}", file=sys.stderr)
    raise typer.Exit({"SIGTERM": 0, "SIGINT": 130}.get(ended, 1))


def _tokens(
    path: Path | None, none: bool, *, local: bool
) -> tuple[Tokens | None, list[tuple[str, tuple[str, ...]]]]:
    """Tokens that are good, and those that were made and have to be shown."""
    from ..io.tables import InputError
    from ..serving.access import Tokens, new_tokens, tokens_in, tokens_of

    if none:
        if not local or path is not None:
            raise InputError("--no-token is for 127.0.0.1 alone, and not beside --tokens")
        return None, []
    given = tokens_in(path) if path is not None else tokens_of()
    if given:
        return Tokens(given), []
    made = new_tokens(separate=not local)
    return Tokens(made), [(text, roles) for text, roles, _ in made]


def _link(url: str, token: str) -> str:
    return f"{url}/#token={token}" if token else f"{url}/"


def _announce(service: Service, url: str, token: str, shown: list, as_json: bool) -> None:
    """Where to look and with what; the tokens that were made are told here and nowhere else."""
    from .screen import show

    told = {"model": service.name, "page": _link(url, token), "url": url}
    for text, roles in shown:
        told["token" if len(roles) > 1 else f"{roles[0]}_token"] = text
    if service.log is not None:
        told["log"] = str(service.log.folder)
    if as_json:
        print(json.dumps(told))
    else:
        show(told)
    sys.stdout.flush()


def _open(link: str) -> None:
    import webbrowser

    with suppress(webbrowser.Error):  # the link is on the screen
        webbrowser.open(link)


def _service(
    path: Path, titles: Path | None, known: Path | None, anchors: Path | None, text: TextFormat,
    limits,
) -> Service:  # fmt: skip
    from .. import load
    from ..serving.app import Service
    from ..serving.learner import Live, Snapshot
    from .titles import Titles

    model = load(path)
    return Service(
        Live(Snapshot(model).ready()),
        path.name,
        Titles(model, titles, text).by_item if titles else {},
        known=_known(known, text) if known else None,
        anchors=_anchors(anchors, model, text) if anchors else None,
        limits=limits,
    )


def _known(path: Path, text: TextFormat) -> Known:
    import numpy as np

    from ..io.readers import open_file
    from ..serving.answers import Known

    source = open_file(path, text)
    row, column, value = source.first(3)
    table = source.table([row, column], [value])
    return Known(table[row], table[column], np.asarray(table[value]))


def _anchors(path: Path, model: Learner, text: TextFormat) -> tuple[list, np.ndarray]:
    from ..estimators.completers import DistanceCompleter
    from ..io.readers import open_file
    from ..io.tables import InputError
    from .tasks import anchored

    if not isinstance(model, DistanceCompleter):
        raise InputError("--anchors are points of a model of distances")
    return anchored(model, open_file(path, text))


def _learn(
    service: Service, path: Path, log: Path | None, stack: ExitStack, checkpoint, weight: bool
) -> None:
    from ..io.atomic import alone
    from ..io.tables import InputError
    from ..serving.event_log import EventLog
    from ..serving.learner import LearnerThread, columns_of

    model = service.live.snapshot.model
    columns = columns_of(model)
    if weight:
        if "weight" not in [role.key for role in model.roles({})[0]]:
            raise InputError("--weight: events of this model have no weight")
        columns |= {"weight": "weight"}
    folder = log or path.with_name(path.name + ".log")
    service.log = stack.enter_context(EventLog(folder))
    how = {} if checkpoint is None else {"checkpoint": checkpoint}
    with alone(path):  # or somebody else would be told of it by the learner, when it is too late
        service.learner = LearnerThread(model, service.log, path, columns, **how)
    service.live, service.columns = service.learner.live, columns


def _watch(service: Service, path: Path, stack: ExitStack) -> None:
    from .. import load
    from ..serving.learner import WatcherThread

    watcher = WatcherThread(path, load, service.live)
    watcher.start()
    stack.callback(watcher.stop)


def _world(name: str, stack: ExitStack, limits) -> Service:
    """A small world in a folder that goes with it."""
    from ..serving.app import Service
    from ..serving.event_log import EventLog
    from ..serving.learner import LearnerThread, columns_of
    from ..serving.playground import WORLDS, go_on

    print("scaledsgd: training a small model ...", file=sys.stderr)
    world = WORLDS[name]()
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    log = stack.enter_context(EventLog(folder / "log"))
    columns = columns_of(world.model)
    learner = LearnerThread(world.model, log, folder / "playground.model", columns)
    stopped = threading.Event()
    thread = go_on(world, log, stopped)
    stack.callback(thread.join)
    stack.callback(stopped.set)
    return Service(
        learner.live, "playground", world.titles, world.note, world.known, world.anchors, columns,
        log, learner, limits,
    )  # fmt: skip
