"""From files to the first step, with workers in this process: how often a file is read, and what
ends up where."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest

from scaledsgd.core.losses import LOSSES
from scaledsgd.engines import schedule
from scaledsgd.engines.cluster import engine as cluster
from scaledsgd.engines.cluster import worker as workers
from scaledsgd.engines.cluster.splits import ParquetFile
from scaledsgd.engines.cluster.worker_pool import WorkerPool
from scaledsgd.training.holdout import hold_out

pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")


class Here:
    """A worker whose methods answer at once."""

    def __init__(self, number: int):
        self._worker = workers.Worker(number, 1, gpu=False)

    def __getattr__(self, name):
        method = getattr(self._worker, name)

        class Call:
            remote = staticmethod(method)

            @staticmethod
            def options(**_):
                return Call

        return Call


class HerePool(WorkerPool):
    verbose = False

    def __init__(self, count: int):
        self.workers = [Here(number) for number in range(count)]

    def get(self, refs):
        return refs


@pytest.fixture
def engine(monkeypatch, tmp_path):
    # In the place of Ray, which would have to be told where to listen before it is loaded.
    node = SimpleNamespace(get_node_id=lambda: "here")
    same = {"put": lambda value: value, "get": lambda value: value}
    ray = SimpleNamespace(get_runtime_context=lambda: node, **same)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(workers.tempfile, "tempdir", str(tmp_path))
    engine = cluster.RayEngine("local", workers=2)
    engine._pool = HerePool(2)
    return engine


def test_a_file_is_read_once_for_its_ids_and_once_for_its_samples(engine, tmp_path, monkeypatch):
    rng, reads = np.random.default_rng(0), []
    i, j = rng.integers(0, 300, (2, 9000))
    table = pa.table(
        {"who": 7 * i + 5, "what": np.char.add("w", j.astype(str)), "y": 1000.0 * i + j}
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1000)
    read = ParquetFile.table

    def counted(self, *given, **how):
        reads.append(how["group"])
        return read(self, *given, **how)

    monkeypatch.setattr(ParquetFile, "table", counted)
    loss = LOSSES["squared"]
    seen = engine.open_files(str(tmp_path / "a.parquet"), ("who", "what"), "y", loss, False)
    rest, held = hold_out(seen, rng)
    shift = [0, seen.shape[0]]
    data = engine.samples(rest, shift, np.dtype("float64"), rng)
    assert sorted(reads) == sorted([*range(9)] * 2)
    assert held is not None and len(held) + len(data) == 9000
    # Every sample is in one bucket, by the rows that it names.
    names = [np.unique(7 * i + 5), np.unique(np.char.add("w", j.astype(str)))]
    told = []
    for bucket, rows in data.buckets():
        shard = engine.pool[data.plan.owner(bucket)]._worker._plan(data.box).open(bucket, 1.0)
        stacked = rows[shard.index] - shift
        who, what = names[0][stacked[:, 0]] // 7, [int(w[1:]) for w in names[1][stacked[:, 1]]]
        assert np.array_equal(1000.0 * who + what, shard.targets)
        told.append(shard.targets)
    everything = np.concatenate([*told, held.targets])
    assert np.array_equal(np.sort(everything), np.sort(1000.0 * i + j))
    left = {path.name for path in tmp_path.iterdir() if path.name.startswith("scaledsgd-")}
    assert left == {f"scaledsgd-{data.plan.name}"}  # the copies are gone


@pytest.mark.parametrize(("arity", "symmetric"), [(2, True), (2, False), (3, True)])
@pytest.mark.parametrize("groups", [2, 3])
def test_samples_go_where_the_schedule_says(arity, symmetric, groups):
    """The compiled way against the schedule's own table, blocks named twice included."""
    meetings, rng = schedule.schedule(arity, groups, symmetric), np.random.default_rng(0)
    sides = 1 if symmetric else 2
    cuts = np.unique(np.linspace(0, 40 * sides, meetings.blocks + 1).astype(int))
    index = rng.integers(0, 40, (2000, arity)).astype(np.int32)
    shift, y = [0] * arity if symmetric else [0, 40], rng.random(2000)
    without = np.array([3, 500])
    plan = cluster.Plan("x", [None], [without], meetings, cuts, shift, "float64", 7, groups)
    pieces = plan.cut(0, (index, y))
    rows = np.delete(index, without, axis=0) + shift
    blocks = np.searchsorted(cuts, rows, side="right") - 1
    chance = np.random.default_rng([7, 0]).integers(2**31, size=len(rows))
    bucket = meetings.buckets(blocks, chance)
    for worker, piece in enumerate(pieces):
        own = np.flatnonzero(plan.owner(bucket) == worker)
        own = own[np.argsort(bucket[own], kind="stable")]
        assert np.array_equal(np.repeat(piece.buckets, piece.counts), bucket[own])
        assert np.array_equal(piece.targets, np.delete(y, without)[own])
        spans = [
            np.concatenate([np.arange(cuts[b], cuts[b + 1]) for b in plan.groups[one]])
            for one in bucket[own]
        ]
        back = [span[row] for span, row in zip(spans, piece.index, strict=True)]
        assert np.array_equal(back, rows[own])


def test_counts_are_those_of_the_samples(tmp_path):
    index = np.random.default_rng(0).integers(0, 50, (500, 2)).astype(np.int32)

    class Split:
        copied, count = "", 500

        def read(self):
            return index, np.zeros(500)

    rows, without = np.array([0, 3, 17, 49, 60]), np.array([4, 5])
    kept = np.delete(index, without, axis=0)
    expected = [[(kept[:, c] == row).sum() for row in rows] for c in (0, 1)]
    for listed in (workers._LISTED, 0):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(workers, "_LISTED", listed)
            found = workers._counted(Split(), [([0], rows), ([1], rows)], without)
        assert np.array_equal(found, expected)
