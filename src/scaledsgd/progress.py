"""What a run tells: its history, its progress, and why it ended."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np

from .factors import Factors


class DivergenceError(ArithmeticError):
    """The factors are no longer finite; the trainer is back at the last state that was."""

    def __init__(self, epoch: int, sample: int, learning_rate: float, condition_number: float):
        self.epoch, self.sample = epoch, sample
        self.learning_rate, self.condition_number = learning_rate, condition_number
        super().__init__(
            f"diverged in epoch {epoch} at sample {sample}, learning rate {learning_rate:.4g}, "
            f"condition number {condition_number:.3g}: try a smaller learning_rate or damping=1"
        )


@dataclass
class History:
    """What happened: a record an evaluation, and what P cost.

    >>> history = History([{"epoch": 1.0, "loss": 0.5}])
    >>> history["loss"]
    array([0.5])
    """

    records: list[dict[str, float]] = field(default_factory=list)
    refreshes: int = 0
    repairs: int = 0  # times that a broken or singular P was rebuilt from X
    rollbacks: int = 0  # times that the factors blew up and were taken back
    stopped: str = ""

    def __getitem__(self, name: str) -> np.ndarray:
        return np.array([record[name] for record in self.records])

    def __len__(self) -> int:
        return len(self.records)


@dataclass(frozen=True)
class Progress:
    """What a callback is told. Returning True from a callback ends the run."""

    epoch: float
    samples: int
    loss: float
    factors: Factors


Callback = Callable[[Progress], object]


@contextmanager
def progress_bar(wanted: bool, epochs: int) -> Iterator[Callable[[Progress], None]]:
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
