"""What a run tells: its history, its progress, and why it ended."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ..core.factors import Factors


class DivergenceError(ArithmeticError):
    """The factors are no longer finite; the model is back at the last state that was.

    >>> from scaledsgd import DivergenceError, MatrixCompleter
    >>> try:
    ...     MatrixCompleter(rank=1, learning_rate=1e6, random_state=0).fit(np.ones((9, 9)))
    ... except DivergenceError as why:
    ...     print(why.epoch, why.learning_rate)
    1 1000000.0
    """

    def __init__(
        self, epoch: int, sample: int, learning_rate: float | None, condition_number: float,
        advice: str = "try a smaller learning_rate or damping=1",
    ):  # fmt: skip
        self.epoch, self.sample = epoch, sample
        self.learning_rate, self.condition_number = learning_rate, condition_number
        step = "" if learning_rate is None else f"learning rate {learning_rate:.4g}, "
        super().__init__(
            f"diverged in epoch {epoch} at sample {sample}, {step}"
            f"condition number {condition_number:.3g}: {advice}"
        )


class UndeterminedWarning(UserWarning):
    """What was observed does not say what was asked for.

    >>> import warnings
    >>> from scaledsgd import MatrixCompleter, UndeterminedWarning
    >>> rng = np.random.default_rng(0)
    >>> M = rng.standard_normal((40, 3)) @ rng.standard_normal((3, 40))
    >>> M[0, 2:] = np.nan  # two entries, which leave one of three directions open
    >>> with warnings.catch_warnings(record=True, action="always") as told:
    ...     model = MatrixCompleter(rank=3, random_state=0).fit(M)
    >>> told[0].category is UndeterminedWarning, model.history_.stopped
    (True, 'undetermined')
    """


def warn(message: str, category: type[Warning]) -> None:
    """Warn at the line that called the package, however deep inside it we are."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and frame.f_globals.get("__name__", "").startswith("scaledsgd."):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


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
