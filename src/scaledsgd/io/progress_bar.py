"""Progress on stderr: a bar on a terminal, and in a pipe a line every few seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

EVERY = 5.0  # seconds between lines in a pipe: what is done sooner says nothing
_SOON = 1.0  # seconds until a terminal is told of work whose end is not known

_quiet = False  # whether the command line asked for silence
_open: list[Any] = []  # who tells now, innermost last: only that one does


def silence(quiet: bool) -> None:
    """Whether nothing is to be told, from now on."""
    global _quiet
    _quiet = quiet


@contextmanager
def progress_bar(text: str, total: float | None, wanted: bool = True) -> Iterator[Callable]:
    """Yields a function to call with the amount done since, and with a new text where that changes.
    Without a total there is no share to tell. One within another takes its place for a while.

    >>> with progress_bar("reading", 10, wanted=False) as advance:
    ...     advance(10)
    """
    if not wanted or _quiet:
        yield lambda amount, text=None: None
        return
    with (_bar if sys.stderr.isatty() else _lines)(text, total) as advance:
        yield advance


@contextmanager
def _bar(text: str, total: float | None) -> Iterator[Callable]:
    """On a terminal. Without a total it is a line, which comes late and goes at the end."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn

    line: Any = (SpinnerColumn(), "{task.description}")
    columns = line if total is None else Progress.get_default_columns()
    bar = Progress(*columns, console=Console(stderr=True), transient=total is None)
    if _open:
        _open[-1].stop()
    _open.append(bar)
    task, later = bar.add_task(text, total=total), threading.Timer(_SOON, bar.start)
    later.start() if total is None else bar.start()
    try:
        yield lambda amount, text=None: bar.update(task, advance=amount, description=text)
    finally:
        later.cancel()
        bar.stop()
        _open.pop()
        if _open:
            _open[-1].start()


@contextmanager
def _lines(text: str, total: float | None) -> Iterator[Callable]:
    """In a pipe."""
    told, done, begun, ended = text, 0.0, time.monotonic(), threading.Event()

    def advance(amount: float, text: str | None = None) -> None:
        nonlocal told, done
        told, done = text or told, done + amount

    def tell() -> None:
        while not ended.wait(EVERY):
            if told and _open[-1] is ended:
                share = f", {min(done / total, 1):.0%}" if total else ""
                spent = time.monotonic() - begun
                print(f"{told}{share}, {spent:.0f} s", file=sys.stderr, flush=True)

    teller = threading.Thread(target=tell, daemon=True)
    _open.append(ended)
    teller.start()
    try:
        yield advance
    finally:
        ended.set()
        teller.join()
        _open.remove(ended)


@contextmanager
def epoch_bar(wanted: bool, epochs: int) -> Iterator[Callable[[Any], object]]:
    """A bar to call with the progress of a training (its `epoch` and mean `loss`)."""
    done = 0.0
    with progress_bar("training", epochs, wanted) as advance:

        def told(progress) -> None:
            nonlocal done
            text = f"epoch {progress.epoch:.1f} of {epochs}, mean loss {progress.loss:.3g}"
            advance(progress.epoch - done, text)
            done = progress.epoch

        yield told
