"""The samples of a worker on its disk: a file a bucket, mapped into memory while it is run."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ...io.atomic import whole_file
from ..cpu.sample_order import Shard
from ..cpu.thread_blocks import WIDE, in_turn
from .splits import Piece, Plan

try:
    import fcntl
except ImportError:  # on Windows
    fcntl: Any = None

_ALIVE = "alive"  # a file on which whoever uses a folder holds a lock


class Buckets:
    """What one worker runs of a plan. Everything is written as a whole or not at all, and made
    again from the plan where it is missing: on another machine, after this one was lost."""

    def __init__(self, plan: Plan, worker: int, place: str):
        self.plan, self.worker = plan, worker
        self.folder = _claimed(plan.name) / place / str(worker)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._opened: tuple[int, Shard] | None = None  # one: pages of the others are given back

    def add(self, number: int, piece: Piece) -> None:
        """Keep what a split holds for this worker."""
        counts = np.stack([piece.buckets, piece.counts], axis=1)
        _write(self._piece(number), piece.index, piece.targets, counts)

    def sizes(self) -> dict[int, int]:
        """Samples of every bucket, which is on the disk then."""
        done = self.folder / "sizes.npy"
        if not done.exists():
            sizes = np.array(self._sort(), np.int64)
            with whole_file(done, durable=False) as file:
                np.save(file, sizes)
            for number in range(len(self.plan.splits)):
                self._piece(number).unlink(missing_ok=True)
        return dict(np.load(done).reshape(-1, 2).tolist())

    def open(self, bucket: int) -> Shard:
        """The samples of a bucket, in the order in which they are dealt from."""
        if self._opened is None or self._opened[0] != bucket:
            self.sizes()
            self._opened = None
            index, targets, _ = _mapped(self._bucket(bucket))
            rows = np.diff(self.plan.cuts)[self.plan.groups[bucket]].sum()
            self._opened = bucket, Shard(index, targets, None, in_turn, wide=rows >= WIDE)
        return self._opened[1]

    def _sort(self) -> list[tuple[int, int]]:
        """A file for every bucket. Returns how many samples each has."""
        plan, pieces = self.plan, []
        for number in range(len(plan.splits)):
            if not self._piece(number).exists():
                self.add(number, plan.cut(number)[self.worker])
            pieces.append(_mapped(self._piece(number)))
        sizes = []
        own = sorted({int(bucket) for *_, counts in pieces for bucket in counts[:, 0]})
        at = [0] * len(pieces)
        for bucket in own:
            parts = []
            for number, (index, targets, counts) in enumerate(pieces):
                count = int(counts[counts[:, 0] == bucket, 1].sum())
                part = slice(at[number], at[number] + count)
                at[number] += count
                parts.append((index[part], targets[part]))
            index, targets = (np.concatenate(column) for column in zip(*parts, strict=True))
            # Samples that lie side by side in the input are parted.
            rng = np.random.default_rng([plan.seed, len(plan.splits), bucket])
            Shard(index, targets, rng, in_turn)
            _write(self._bucket(bucket), index, targets, np.zeros((0, 2), np.int64))
            sizes.append((bucket, len(targets)))
        return sizes

    def _piece(self, number: int) -> Path:
        return self.folder / f"piece{number}.arrow"

    def _bucket(self, bucket: int) -> Path:
        return self.folder / f"bucket{bucket}.arrow"


def folder(name: str) -> Path:
    """Where a plan is kept on a machine."""
    return Path(tempfile.gettempdir(), f"scaledsgd-{name}")


# Folders that this process uses, each by a file on which it holds a lock while it lives.
_claims: dict[str, BinaryIO] = {}


def _claimed(name: str) -> Path:
    """The folder of a plan, for nobody else's eyes. Those whose workers are all gone are removed: a
    driver that was killed has not done it."""
    home = folder(name)
    if name not in _claims and fcntl is not None:
        home.mkdir(mode=0o700, exist_ok=True)
        _claims[name] = (home / _ALIVE).open("ab")
        fcntl.flock(_claims[name], fcntl.LOCK_SH)
        for other in home.parent.glob("scaledsgd-*"):
            if other != home and not other.is_symlink() and other.stat().st_uid == os.getuid():
                _sweep(other)
    return home


def _sweep(other: Path) -> None:
    """Remove a folder that nobody holds a lock on."""
    try:
        with (other / _ALIVE).open("rb") as claim:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(other, ignore_errors=True)
    except OSError:  # it is held, or none of ours, or gone by now
        pass


def forget(name: str) -> None:
    """Remove what this machine holds of a plan."""
    if name in _claims:
        _claims.pop(name).close()
    shutil.rmtree(folder(name), ignore_errors=True)


def _write(path: Path, index: np.ndarray, targets: np.ndarray, counts: np.ndarray) -> None:
    import pyarrow as pa

    arity = index.shape[1]
    rows = pa.FixedSizeListArray.from_arrays(pa.array(index.reshape(-1)), arity)
    schema = pa.schema(
        [("rows", rows.type), ("targets", pa.from_numpy_dtype(targets.dtype))],
        metadata={"counts": counts.astype(np.int64).tobytes()},
    )
    with whole_file(path, durable=False) as file, pa.ipc.new_file(file, schema) as out:
        out.write(pa.record_batch([rows, pa.array(targets)], schema=schema))


def _mapped(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Index, targets and counts of a file, without reading it."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as file:
        reader = pa.ipc.open_file(file)
        batch = reader.get_batch(0)
        counts = np.frombuffer(reader.schema.metadata[b"counts"], np.int64).reshape(-1, 2)
    rows = batch.column(0)
    index = rows.flatten().to_numpy(zero_copy_only=True).reshape(-1, rows.type.list_size)
    return index, batch.column(1).to_numpy(zero_copy_only=True), counts
