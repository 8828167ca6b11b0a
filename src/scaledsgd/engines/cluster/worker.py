"""What a worker of a cluster does: pure functions of the blocks it is given, and of files it can
make again. So it may die at any moment, and whoever takes its place gives the same answers."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ...core.factors import Factors
from ...core.linalg import NumpyAlgebra, aligned
from ...core.losses import LOSSES
from ...core.observations import Chunk
from ...core.validation import bad_target
from ...io.atomic import clear_parts, whole_file
from ..base import Engine, open_engine
from ..cpu.sample_order import Shard, riffle, share
from ..cpu.thread_blocks import WIDE
from .choice_shard import ChoiceJob, ChoicePlan, ChoiceShard, found
from .splits import Piece, Plan, distinct

try:
    import fcntl
except ImportError:  # on Windows
    fcntl: Any = None

_ALIVE = "alive"  # a file on which whoever uses a folder holds a lock
_FEW = 1 << 14  # rows of which the whole Gram is told unasked: it takes a millisecond or two

_DRAWN = 1 << 16  # rows drawn at a time: in float64, and twice
_LISTED = 1 << 25  # rows, of which a list is no burden: 128 MB


class Job(NamedTuple):
    """One worker's part in a sub-round."""

    plan: list  # a box with the plan
    bucket: int
    key: int  # of the order of samples in this epoch
    part: tuple[int, int, int]  # from, to and of how many: which share of the bucket it is
    loss: str
    P: np.ndarray
    rates: np.ndarray
    cap: float
    rotations: list[np.ndarray | None]  # to the basis of this round, for each block
    unit: float = 1.0  # by what targets are multiplied


class Told(NamedTuple):
    """What comes back beside the blocks: numbers for the driver."""

    squares: float
    grams: list[np.ndarray]  # of each block, or about so


class Worker:
    """A Ray actor. `number` is its place among the workers."""

    def __init__(self, number: int, threads: int, gpu: bool):
        self.number, self.gpu = number, gpu
        self.engine: Engine = open_engine("cuda" if gpu else "cpu", threads)
        self.algebra = NumpyAlgebra()
        self._buckets: dict[str, Buckets | ChoiceShard] = {}
        self._held = aligned(0, 1, np.float64)

    def ready(self) -> None:
        """Answers once the worker is there."""

    def where(self) -> tuple[str, int]:
        """The node and the process."""
        import ray

        return ray.get_runtime_context().get_node_id(), os.getpid()

    def call(self, split, method: str, *arguments) -> Any:
        """One of the functions below, of the samples of a split."""
        return _OF_SAMPLES[method](split, *arguments)

    def cut(self, box: list, number: int) -> Any:
        """A split as pieces, one for each worker."""
        pieces = self._plan(box).cut(number)
        return tuple(pieces) if len(pieces) > 1 else pieces[0]

    def add(self, box: list, number: int, piece: Piece) -> None:
        self._plan(box).add(number, piece)

    def sizes(self, box: list) -> dict[int, int]:
        return self._plan(box).sizes()

    def forget(self, name: str) -> None:
        self._buckets.pop(name, None)
        forget(name)

    def run(self, job: Job, *blocks: np.ndarray) -> tuple:
        """The blocks after a part of a bucket was run on them, and what the driver is told."""
        loss, engine = LOSSES[job.loss], self.engine
        X, ends = self._joined(blocks, job.rotations)
        samples = self._plan(job.plan).open(job.bucket, job.unit)
        seed = np.random.SeedSequence([job.key, job.bucket]).generate_state(1, np.uint64)[0]
        factors, squares = Factors(engine.put(X)), 0.0
        dealt: Any = samples.dealt if self.gpu else samples.mini_batches
        for chunk in dealt(seed >> np.uint64(1), *share(job.part, len(samples))):
            squares += engine.run(factors, job.P, job.rates, loss, chunk, job.cap)
        places = self._parted(factors.X, ends)
        return (*places, Told(squares, [self._about(place) for place in places]))

    def choices(self, box: list, method: str, *arguments) -> Any:
        """What a method of its shard of the choices says."""
        return getattr(self._plan(box), method)(*arguments)

    def run_choices(self, job: ChoiceJob, *blocks: np.ndarray) -> tuple:
        """The blocks after choices of its users were run on them, of whom the first block is; what
        they sum to, how many they are and, if asked for, the Grams of the blocks."""
        X, ends = self._joined(blocks, job.rotations)
        factors = Factors(self.engine.put(X), rows=len(blocks[0]))
        shard: Any = self._plan(job.plan)
        total, count = shard.run(job, self.engine, factors)
        places = self._parted(factors.X, ends)
        grams = [self.algebra.gram(place) for place in places] if job.grams else []
        return (*places, (total, count, grams))

    def squares(self, block: np.ndarray, rotation, weights: np.ndarray) -> np.ndarray:
        """x_q^2 of the block in another basis, summed over its rows with each of the weights."""
        out = np.zeros((len(weights), block.shape[1]))
        for first in range(0, len(block), _DRAWN):
            part = slice(first, first + _DRAWN)
            out += weights[:, part] @ np.square(self.turned(block[part], rotation), dtype=float)
        return out

    def set_lengths(self, block: np.ndarray, rotation, length: float, key) -> np.ndarray:
        """The block with rows of one length."""
        X = self.engine.put(self.turned(block, rotation))
        self.engine.set_lengths(X, length, np.random.default_rng(key))
        return np.ascontiguousarray(self.engine.local(self.engine.get(X)))

    def clear(self, block: np.ndarray, rotation, rows: np.ndarray) -> np.ndarray:
        """The block without some of its rows."""
        block = self.turned(block, rotation)
        block[rows] = 0
        return block

    def tally(self, job: Job, without: np.ndarray | None, *blocks: np.ndarray) -> tuple:
        """As an engine's, of the samples of a bucket."""
        X, _ = self._joined(blocks, job.rotations)
        samples = self._plan(job.plan).open(job.bucket, job.unit)
        return self.engine.tally(Factors(X), LOSSES[job.loss], samples, without)

    def naming(self, box: list, bucket: int, unit: float, rows: np.ndarray) -> Chunk:
        """As an engine's, of the samples of a bucket."""
        return self.engine.naming(self._plan(box).open(bucket, unit), rows)

    def place(self, block: np.ndarray, rotation, index: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """The block with other rows, in the basis of now."""
        block = self.turned(block, rotation)
        block[index] = rows
        return block

    def gram(self, block: np.ndarray) -> np.ndarray:
        return self.algebra.gram(block)

    def take(self, block: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return block[rows]

    def fresh(self, empty: Factors, side: int, start: int, stop: int) -> np.ndarray:
        """Rows of a side before anything is learned."""
        rows = np.empty((stop - start, empty.rank), empty.X.dtype)
        for first in range(start, stop, _DRAWN):
            last = min(first + _DRAWN, stop)
            rows[first - start : last - start] = empty.fresh(side, first, last)
        return rows

    def sow(
        self, block: np.ndarray, rotation, start: int, stop: int, scale: float, key
    ) -> np.ndarray:
        """The block with fresh columns."""
        block = self.turned(block, rotation)
        block[:, start:] = 0
        rng = np.random.default_rng(key)
        block[:, start:stop] = scale * rng.standard_normal((len(block), stop - start))
        return block

    def turned(self, block: np.ndarray, rotation: np.ndarray | None) -> np.ndarray:
        """A copy, in another basis."""
        out = np.empty_like(block)
        self._into(out, block, rotation)
        return out

    def write(self, block: np.ndarray, rotation: np.ndarray | None, path: str) -> None:
        """To a file, which is there as a whole or not at all."""
        block = self.turned(block, rotation)
        clear_parts(Path(path))
        with whole_file(path) as file:
            np.save(file, block)

    def read(self, path: str) -> np.ndarray:
        return np.load(path, allow_pickle=False)

    def _joined(self, blocks: tuple, rotations: list) -> tuple[np.ndarray, np.ndarray]:
        """Blocks in one table, in the basis of now, and where each ends."""
        ends = np.cumsum([len(block) for block in blocks])
        X = self._room(int(ends[-1]), blocks[0].shape[1], blocks[0].dtype)
        for place, block, rotation in zip(np.split(X, ends[:-1]), blocks, rotations, strict=True):
            self._into(place, block, rotation)
        return X, ends

    def _parted(self, X: Any, ends: np.ndarray) -> list[np.ndarray]:
        """The blocks again, rows without the room between them, should there be any."""
        X = self.engine.get(X)
        return [np.ascontiguousarray(place) for place in np.split(X, ends[:-1])]

    def _room(self, rows: int, rank: int, dtype) -> np.ndarray:
        """A place for blocks, the same again and again: memory that is new has to be cleared."""
        if self._held.shape[1] != rank or self._held.dtype != dtype or len(self._held) < rows:
            self._held = aligned(rows, rank, dtype)
        return self._held[:rows]

    def _into(self, place: np.ndarray, block: np.ndarray, rotation: np.ndarray | None) -> None:
        if rotation is None:
            place[...] = block
        else:
            self.algebra.transform(block, rotation, place)

    def _about(self, block: np.ndarray) -> np.ndarray:
        few = len(block) <= _FEW
        return self.algebra.gram(block) if few else self.algebra.sketch(block)

    def _plan(self, box: list) -> Any:
        """What this worker holds of a plan: its `Buckets`, or its `ChoiceShard`."""
        import ray

        plan: Any = ray.get(box[0])
        if plan.name not in self._buckets:
            place = ray.get_runtime_context().get_node_id()
            folder = _claimed(plan.name) / place / str(self.number)
            folder.mkdir(parents=True, exist_ok=True)
            kind: Any = ChoiceShard if isinstance(plan, ChoicePlan) else Buckets
            self._buckets[plan.name] = kind(plan, self.number, folder)
        return self._buckets[plan.name]


# --- Its samples on its disk: a file a bucket, mapped into memory while it is run -----------------


class Buckets:
    """What one worker runs of a plan. Everything is written as a whole or not at all, and made
    again from the plan where it is missing: on another machine, after this one was lost."""

    def __init__(self, plan: Plan, worker: int, folder: Path):
        self.plan, self.worker, self.folder = plan, worker, folder
        # One: pages of the others are given back.
        self._opened: tuple[tuple[int, float], Shard] | None = None

    def cut(self, number: int) -> list[Piece]:
        """A split as pieces, one for each worker."""
        return self.plan.cut(number, _read(self.plan.splits[number]))

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

    def open(self, bucket: int, unit: float) -> Shard:
        """The samples of a bucket, in the order in which they are dealt from, targets times a
        number."""
        if self._opened is None or self._opened[0] != (bucket, unit):
            self.sizes()
            self._opened = None
            index, targets, _ = _mapped(self._bucket(bucket))
            rows = np.diff(self.plan.cuts)[self.plan.groups[bucket]].sum()
            if unit != 1.0:
                whole: Any = targets.copy()
                whole.real *= unit
                targets = whole
            self._opened = (bucket, unit), Shard(index, targets, None, wide=rows >= WIDE)
        return self._opened[1]

    def _sort(self) -> list[tuple[int, int]]:
        """A file for every bucket. Returns how many samples each has."""
        plan, pieces = self.plan, []
        for number in range(len(plan.splits)):
            if not self._piece(number).exists():
                self.add(number, self.cut(number)[self.worker])
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
            riffle(index, targets, rng)
            _write(self._bucket(bucket), index, targets, np.zeros((0, 2), np.int64))
            sizes.append((bucket, len(targets)))
        return sizes

    def _piece(self, number: int) -> Path:
        return self.folder / f"piece{number}.arrow"

    def _bucket(self, bucket: int) -> Path:
        return self.folder / f"bucket{bucket}.arrow"


def _folder(name: str) -> Path:
    """Where a plan is kept on a machine."""
    return Path(tempfile.gettempdir(), f"scaledsgd-{name}")


# Folders that this process uses, each by a file on which it holds a lock while it lives.
_claims: dict[str, BinaryIO] = {}


def _claimed(name: str) -> Path:
    """The folder of a plan, for nobody else's eyes. Those whose workers are all gone are removed: a
    driver that was killed has not done it."""
    home = _folder(name)
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
    shutil.rmtree(_folder(name), ignore_errors=True)


def _write(path: Path, index: np.ndarray, targets: Any, counts: np.ndarray) -> None:
    import pyarrow as pa

    def table(numbers: np.ndarray) -> Any:
        return pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), numbers.shape[1])

    # A target that has a weight is two numbers.
    parts = targets.view(targets.real.dtype).reshape(len(targets), -1)
    columns = [table(index), table(parts)]
    schema = pa.schema(
        [("rows", columns[0].type), ("targets", columns[1].type)],
        metadata={"counts": counts.astype(np.int64).tobytes()},
    )
    with whole_file(path, durable=False) as file, pa.ipc.new_file(file, schema) as out:
        out.write(pa.record_batch(columns, schema=schema))


def _mapped(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Index, targets and counts of a file, without reading it."""
    import pyarrow as pa

    with pa.memory_map(str(path)) as file:
        reader = pa.ipc.open_file(file)
        batch = reader.get_batch(0)
        counts = np.frombuffer(reader.schema.metadata[b"counts"], np.int64).reshape(-1, 2)
    index, targets = (
        column.flatten().to_numpy(zero_copy_only=True).reshape(-1, column.type.list_size)
        for column in batch.columns
    )
    if targets.shape[1] == 2:
        targets = targets.view(np.result_type(targets, np.complex64))
    return index, targets[:, 0], counts


# --- What is asked of samples where they lie ------------------------------------------------------


def _found(split, loss: str, named: bool) -> tuple[list[np.ndarray], float, float]:
    """The ids of every column (the largest, of row numbers), the sum of the squared targets, and
    the largest of them."""
    columns, y = split.ids()
    for name, ids in zip(split.columns, columns, strict=True):
        if not named and not (ids.dtype.kind == "i" and ids.min() >= 0):
            raise split.refused(name, "row numbers are whole and not negative")
    if bad := bad_target(y, LOSSES[loss]):
        raise split.refused(split.target, bad[1])
    if len(columns) == 3 and (columns[0] == columns[1]).any():
        twice = columns[0][columns[0] == columns[1]][0]
        raise split.refused(split.columns[0], f"a triplet compares item {twice} with itself")
    held = [distinct(ids) if named else ids.max(keepdims=True) for ids in columns]
    return held, float(y @ y), float(np.abs(y).max())


def _read(split) -> tuple[np.ndarray, np.ndarray]:
    """Index and targets of a split; of a file's, from a copy on this machine's disk, which is made
    when they are first asked for."""
    if not split.copied:
        return split.read()
    folder, name = split.copied.split("/")
    path = _claimed(folder) / f"{name}.arrow"
    if not path.exists():
        index, targets = split.read()
        _write(path, index, targets, np.zeros((0, 2), np.int64))
    return _mapped(path)[:2]


def _picked(split, positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    index, targets = _read(split)
    return index[positions], targets[positions]


def _counted(split, asked: list, without: np.ndarray) -> list[np.ndarray]:
    """How often each of some rows is named in some columns. Args: asked, columns and rows, which
    are sorted, of each side."""
    kept, counts = np.ones(split.count, bool), []
    kept[without] = False
    index = _read(split)[0][kept]
    for columns, rows in asked:
        counted = np.zeros(len(rows) + 1, np.int64)
        place = None
        if rows[-1] < _LISTED:
            place = np.full(int(rows[-1]) + 2, len(rows), np.int32)
            place[rows] = np.arange(len(rows))
        for c in columns:
            if place is not None:
                at = place[np.minimum(index[:, c], len(place) - 1)]
            else:
                at = np.searchsorted(rows[:-1], index[:, c])
                at[rows[at] != index[:, c]] = len(rows)
            counted += np.bincount(at, minlength=len(counted))
        counts.append(counted[:-1].astype(np.int32))
    return counts


_OF_SAMPLES = {
    "found": _found, "picked": _picked, "counted": _counted, "read": _read, "events": found,
}  # fmt: skip
