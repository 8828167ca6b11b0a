"""A state to come back to."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .engines import Engine


class Kept(NamedTuple):
    """The factors of one moment. Rows that were added since begin anew."""

    sides: list[Any]
    spectrum: np.ndarray
    columns: int

    def packed(self, engine: Engine) -> dict[str, np.ndarray]:
        """As arrays for a file."""
        sides = {f"kept{n}": engine.get(side) for n, side in enumerate(self.sides)}
        return {**sides, "kept_spectrum": self.spectrum, "kept_columns": np.array([self.columns])}

    @classmethod
    def unpacked(cls, arrays: dict[str, np.ndarray]) -> Kept | None:
        """From the arrays of a file, if it holds one."""
        sides = [arrays[name] for name in ("kept0", "kept1") if name in arrays]
        if not sides:
            return None
        return cls(sides, arrays["kept_spectrum"], int(arrays["kept_columns"][0]))
