"""What the kernels are made of: from llvm.py or, where this Numba cannot compile that, plain.py."""

from __future__ import annotations

import os
import warnings
from typing import Any

from . import plain


def _chosen() -> Any:
    """SCALEDSGD_PLAIN=1 asks for plain bodies. Numba keeps some of what is compiled with them under
    the same name as the fast code: set a NUMBA_CACHE_DIR beside it."""
    try:
        if os.environ.get("SCALEDSGD_PLAIN"):
            raise RuntimeError("SCALEDSGD_PLAIN is set")
        from . import llvm

        llvm.check()
    except Exception as why:  # whatever a Numba that is not yet known may raise
        reason = (str(why).splitlines() or [type(why).__name__])[0]
        warnings.warn(
            f"training takes longer, in plain Numba without vector instructions: {reason}",
            RuntimeWarning, stacklevel=2,
        )  # fmt: skip
        return plain
    return llvm


bodies: Any = _chosen()
WIDTHS: tuple[int, ...] = bodies.WIDTHS
PIECE: int = bodies.PIECE
load, store, zeros = bodies.load, bodies.store, bodies.zeros
total, totals = bodies.total, bodies.totals
prefetch, move = bodies.prefetch, bodies.move
arrive, arrived, claim = bodies.arrive, bodies.arrived, bodies.claim
pause, give_way = bodies.pause, bodies.give_way
exceed, BYTES = bodies.exceed, bodies.BYTES  # BYTES: whether the machine does it in a glance
CONCURRENT: bool = bodies is not plain  # whether threads can wait for each other in compiled code
