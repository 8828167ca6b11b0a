"""The state of training: what a file remembers of it, and a folder from which a run goes on."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..engines.base import Engine
from ..io import model_file

if TYPE_CHECKING:
    from .choice_trainer import ChoiceTrainer
    from .trainer import Trainer

_COUNTERS = ("samples", "seconds", "left", "began")
_STATE = "state.safetensors"


class Snapshot(NamedTuple):
    """The factors of one moment. Rows that were added since begin anew."""

    sides: list[Any]
    spectrum: np.ndarray
    columns: int

    def packed(self, engine: Engine) -> dict[str, np.ndarray]:
        """As arrays for a file."""
        sides = {f"kept{n}": engine.get(side) for n, side in enumerate(self.sides)}
        return {**sides, "kept_spectrum": self.spectrum, "kept_columns": np.array([self.columns])}

    @classmethod
    def unpacked(cls, arrays: dict[str, np.ndarray]) -> Snapshot | None:
        """From the arrays of a file, if it holds one."""
        sides = [arrays[name] for name in ("kept0", "kept1") if name in arrays]
        if not sides:
            return None
        return cls(sides, arrays["kept_spectrum"], int(arrays["kept_columns"][0]))


def facts_of(trainer: Trainer | ChoiceTrainer) -> dict:
    """All but the arrays, as JSON can hold it."""
    return {
        "policy": asdict(trainer.policy),
        "history": asdict(trainer.history),
        **{name: getattr(trainer, name) for name in _COUNTERS},
        "random": trainer.rng.bit_generator.state,
    }


def take_up(trainer: Any, facts: dict, P: np.ndarray | None) -> None:
    """Bring a trainer to the state that a file remembers."""
    trainer.policy = type(trainer.policy)(**facts["policy"])
    vars(trainer.history).update(facts["history"])
    for name in _COUNTERS:
        setattr(trainer, name, facts.get(name, 0))
    trainer.P = P
    trainer.rng.bit_generator.state = facts["random"]


def digest(*arrays: np.ndarray) -> str:
    """By which arrays of numbers are known."""
    told = hashlib.sha256()
    for array in arrays:
        told.update(np.ascontiguousarray(array, np.result_type(array, np.float64)).tobytes())
    return told.hexdigest()


class Checkpoint:
    """A run on a cluster, as it was after its last epoch. One file, replaced as a whole, names the
    blocks that belong to it; the workers write those."""

    def __init__(self, folder: str | Path, settings: dict):
        self.folder, self.settings = Path(folder), settings
        self.folder.mkdir(parents=True, exist_ok=True)
        self._facts: dict = {}
        if (self.folder / _STATE).exists():
            self._arrays, self._facts = model_file.read(self.folder / _STATE)
            if self._facts.get("settings") != settings:
                raise ValueError(
                    f"{self.folder}: the checkpoint is of a run with other settings: give another "
                    "folder, or remove it"
                )
        self.own: dict = self._facts.get("own", {})  # what an estimator found before the first

    def seed(self, drawn: int) -> int:
        """That of the run that goes on, or the one drawn for a new run."""
        return self._facts.get("seed", drawn)

    def resume(self, trainer: Any, data: list) -> int:
        """How many epochs are done, with the trainer as it was then. Args: data, by which the data
        is known."""
        self._data = data
        if not self._facts:
            return 0
        facts, arrays, factors = self._facts, self._arrays, trainer.factors
        if facts.get("data") != self._data:
            raise ValueError(f"{self.folder}: the checkpoint is of a run on other data")
        take_up(trainer, facts, arrays.get("P"))
        factors.spectrum = arrays["spectrum"]
        read = trainer.engine.read
        factors.X[:] = read(self.folder, facts["blocks"], factors.X)
        if facts["kept"]:
            kept = read(self.folder, facts["kept"], factors.X)
            sides = [kept[: len(factors.left)], kept[len(factors.left) :]]
            spectrum, columns = arrays["kept_spectrum"], int(arrays["kept_columns"][0])
            trainer.snapshot = Snapshot(sides[: len(factors.sides)], spectrum, columns)
        return facts["epoch"]

    def save(self, trainer: Trainer | ChoiceTrainer, epoch: int) -> None:
        """Write the state, and remove what no longer belongs to it."""
        snapshot = trainer.snapshot
        arrays_of_state = [trainer.factors.X, *(snapshot.sides if snapshot else ())]
        blocks, *kept = trainer.engine.write(self.folder, arrays_of_state, f"epoch{epoch}")
        kept = [name for side in kept for name in side]
        facts = facts_of(trainer) | {
            "settings": self.settings,
            "seed": trainer.factors.seed,
            "data": self._data,
            "epoch": epoch,
            "blocks": blocks,
            "kept": kept,
            "own": self.own,
        }
        arrays = {"spectrum": trainer.factors.spectrum}
        if snapshot:
            arrays |= {
                "kept_spectrum": snapshot.spectrum,
                "kept_columns": np.array([snapshot.columns]),
            }
        if trainer.P is not None:
            arrays["P"] = trainer.P
        model_file.write(self.folder / _STATE, arrays, facts)
        for path in self.folder.glob("epoch*.npy"):
            if path.name not in {*blocks, *kept}:
                path.unlink()

    def clear(self) -> None:
        """Remove the checkpoint, and its folder if nothing else is there."""
        for path in [*self.folder.glob("epoch*.npy"), self.folder / _STATE]:
            path.unlink(missing_ok=True)
        if not any(self.folder.iterdir()):
            self.folder.rmdir()
