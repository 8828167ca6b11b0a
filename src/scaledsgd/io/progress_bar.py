"""Progress on a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def progress_bar(text: str, total: int | None, wanted: bool = True) -> Iterator[Callable]:
    """Yields a function to call with the amount done since, and with a new text where that changes.
    Without a total it is a line, which goes at the end. Draws on a terminal only.

    >>> with progress_bar("reading", 10, wanted=False) as advance:
    ...     advance(10)
    """
    if not (wanted and sys.stderr.isatty()):
        yield lambda amount, text=None: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn

    line: Any = (SpinnerColumn(), "{task.description}")
    columns = line if total is None else Progress.get_default_columns()
    with Progress(*columns, console=Console(stderr=True), transient=total is None) as bar:
        task = bar.add_task(text, total=total)
        yield lambda amount, text=None: bar.update(task, advance=amount, description=text)


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
