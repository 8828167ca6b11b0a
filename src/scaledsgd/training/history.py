"""What a run tells: its history, its progress, and why it ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..core.factors import Factors


class DivergenceError(ArithmeticError):
    """The factors are no longer finite; the trainer is back at the last state that was."""

    def __init__(self, epoch: int, sample: int, learning_rate: float, condition_number: float):
        self.epoch, self.sample = epoch, sample
        self.learning_rate, self.condition_number = learning_rate, condition_number
        super().__init__(
            f"diverged in epoch {epoch} at sample {sample}, learning rate {learning_rate:.4g}, "
            f"condition number {condition_number:.3g}: try a smaller learning_rate or damping=1"
        )


class UndeterminedWarning(UserWarning):
    """What was observed does not say what was asked for."""


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
