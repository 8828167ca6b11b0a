"""Progress on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def progress_bar(text: str, total: int | None, wanted: bool = True):
    """Yields a function to call with the amount done since; draws on a terminal only.

    >>> with progress_bar("reading", 10, wanted=False) as advance:
    ...     advance(10)
    """
    if not (wanted and sys.stderr.isatty()):
        yield lambda amount: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True)) as bar:
        task = bar.add_task(text, total=total)
        yield lambda amount: bar.advance(task, amount)


@contextmanager
def epoch_bar(wanted: bool, epochs: int) -> Iterator:
    """A progress bar, on a terminal only."""
    if not (wanted and sys.stderr.isatty()):
        yield lambda told: None
        return
    from rich import progress
    from rich.console import Console

    columns = (
        progress.TextColumn("epoch {task.completed:.1f} of {task.total}"),
        progress.BarColumn(),
        progress.TextColumn("mean loss {task.fields[loss]:.3g}"),
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("training", total=epochs, loss=float("nan"))
        yield lambda told: bar.update(task, completed=told.epoch, loss=told.loss)
