"""The command that learns while events arrive."""

from __future__ import annotations

import json
import math
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..io.progress_bar import progress_bar
from .options import (
    Column,
    Encoding,
    First,
    Item,
    Json,
    Kind,
    Loss,
    MaxMemory,
    Mode,
    NoHeader,
    Quiet,
    Row,
    Second,
    Separator,
    Target,
    Third,
    User,
    Value,
    Weight,
    choice,
    flag,
    job_count,
    number,
    whole,
)
from .screen import printable, show

if TYPE_CHECKING:
    from ..estimators.base import Learner
    from ..streaming.stream import Stream

_SHOWN = 10  # refused lines that are shown; the rest are counted

_SEED = 0  # of a new model, so that one killed before its first checkpoint begins as it had begun

_STATUS = {signal.SIGTERM: 0, signal.SIGINT: 130}  # what whoever sent the signal expects

_MODEL = typer.Argument(help="The model to begin with.", metavar="MODEL")
_FROM = typer.Option(
    "--from",
    metavar="SOURCE",
    help="FILE.jsonl, FILE.csv, FOLDER/*.parquet, redis://host:port/db/STREAM, or - for stdin.",
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(stream)


def stream(
    model: Annotated[Path, _MODEL],
    source: Annotated[str, _FROM],
    out: Annotated[
        Path | None, typer.Option(help="Where checkpoints go (else MODEL).", metavar="MODEL")
    ] = None,
    row: Row = None,
    column: Column = None,
    value: Value = None,
    i: First = None,
    j: Second = None,
    k: Third = None,
    target: Target = None,
    user: User = None,
    item: Item = None,
    weight: Weight = None,
    batch: Annotated[int | None, whole("Lines learned at a time.")] = None,
    every: Annotated[int | None, whole("Lines between checkpoints.")] = None,
    seconds: Annotated[float | None, number("Seconds between checkpoints.")] = None,
    idle: Annotated[float | None, number("End after so many seconds without an event.")] = None,
    restart: Annotated[bool, flag("--restart", "Read the source from its beginning.")] = False,
    final: Annotated[bool, flag("--final", "The last line is complete without its end.")] = False,
    skip_lost: Annotated[bool, flag("--skip-lost", "Go on where Redis lost entries.")] = False,
    jobs: Annotated[int | None, job_count("Threads")] = None,
    new: Annotated[Kind | None, choice("matrix, distance, ranking or recommender.")] = None,
    rank: Annotated[int | None, whole("New: how many directions to learn.")] = None,
    symmetric: Annotated[bool, flag("--symmetric", "New: a symmetric matrix.")] = False,
    loss: Annotated[Loss | None, choice("New: squared, huber, logistic, softmax or bpr.")] = None,
    mode: Annotated[Mode | None, choice("New: item-item or user-item.")] = None,
    seed: Annotated[int, whole("New: of the start and the order.")] = _SEED,
    separator: Separator = None,
    encoding: Encoding = None,
    no_header: NoHeader = False,
    max_memory: MaxMemory = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Learn from events as they arrive, and survive a kill.

    The checkpoint is a model like any other. It also tells how far the
    source was read: the same command goes on from there, and every event
    counts once. What came by stdin cannot be read again: there, as many
    lines are skipped as were counted, so pipe the same input in again.
    Lines that are no events are counted, and the first ten are shown.
    """
    from ..io.atomic import alone
    from ..io.model_file import check_place
    from ..io.tables import InputError
    from ..io.text_format import text_format
    from ..streaming.sources import open_feed
    from ..streaming.stream import EVERY, SECONDS, Stream

    for text, given in (("--batch", batch), ("--every", every)):
        if given is not None and given < 1:
            raise InputError(f"{text} {given}: not a whole number from 1 up")
    for text, given in (("--seconds", seconds), ("--idle", idle)):
        if isinstance(given, str) or (given is not None and not given > 0):
            raise InputError(f"{text} {given}: not a number above 0")
    out = out or model
    check_place(out, [source], force=True)
    settings = {"rank": rank, "symmetric": symmetric or None, "loss": loss, "mode": mode}
    names = {
        "row": row, "column": column, "value": value, "i": i, "j": j, "k": k, "target": target,
        "user": user, "item": item, "weight": weight,
    }  # fmt: skip
    text = text_format(separator, encoding, no_header)
    # The lock comes first: what is loaded before it may be old when it is ours.
    with alone(out):
        learner = _begin(out if out.exists() else model, new, settings, seed)
        if jobs:
            learner.set_threads(jobs)
        feed = open_feed(source, idle or math.inf, text, final=final, skip_lost=skip_lost)
        limits = batch, every or EVERY, seconds or SECONDS
        run = Stream(learner, feed, out, names, *limits, locked=True)
        if not restart:
            run.resume()
        with _signals() as caught, _screen(run, as_json) as told:
            run.stopped = lambda: bool(caught)
            begun, before = time.monotonic(), run.lines
            for _ in run.checkpoints():
                told(_facts(run, begun, before))
    if feed.unfinished and not caught:
        print(feed.unfinished, file=sys.stderr)
    refused = run.refused - _SHOWN
    if refused > 0:
        print(f"refused: {run.refused} lines in all", file=sys.stderr)
    if caught:
        print(f"stopped by {caught[0].name}: {out} holds {run.events} events", file=sys.stderr)
        raise typer.Exit(_STATUS[caught[0]])


def _begin(path: Path, new: Kind | None, settings: dict, seed: int) -> Learner:
    from .. import load
    from .tasks import estimator

    if new is None or path.exists():
        return load(path)
    given = {name: getattr(v, "value", v) for name, v in settings.items() if v is not None}
    return estimator(new, given | {"random_state": seed})


def _facts(run: Stream, begun: float, before: int) -> dict:
    spent = time.monotonic() - begun
    rows, columns = run.model.factors.shape
    residual = run.residual
    return {
        "checkpoint": str(run.out),
        "lines": run.lines,
        "events": run.events,
        "refused": run.refused,
        "rows": rows,
        "columns": columns,
        "residual": residual if math.isfinite(residual) else None,
        "events_per_second": round((run.lines - before) / spent),
    }


@contextmanager
def _signals() -> Iterator[list[signal.Signals]]:
    """The signals that asked to stop. A second one does not wait."""
    caught: list[signal.Signals] = []

    def note(number, frame):
        if caught:
            raise KeyboardInterrupt
        caught.append(signal.Signals(number))

    before = {number: signal.signal(number, note) for number in _STATUS}
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _screen(run: Stream, as_json: bool) -> Iterator[Callable[[dict], object]]:
    """Refused lines and progress on stderr; yields what to call with the facts of a checkpoint."""
    shown = 0

    def refuse(place: str, why: str) -> None:
        nonlocal shown
        shown += 1
        if shown <= _SHOWN:
            print("refused:", printable(f"{place}: {why}"), file=sys.stderr)

    run.refuse = refuse
    last: dict = {}

    def told(facts: dict) -> None:
        last.update(facts)
        if as_json:
            print(json.dumps(facts), flush=True)

    with progress_bar("", total=None) as advance:
        begun, before = time.monotonic(), run.lines

        def learned(run: Stream) -> None:
            now = time.monotonic()
            text = (
                f"{run.lines:,} lines, {(run.lines - before) / (now - begun):,.0f}/s, residual "
                f"{run.residual:.3g}, checkpoint {now - run.written:.0f} s ago"
            )
            advance(0, text)

        run.learned = learned
        yield told
    if last and not as_json:
        show(last)
