"""Streams: every event once, whatever happens on the way."""

import json
import random
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from streams import COMMAND, EVENTS, PAIRS, events, same, write

from scaledsgd import DistanceCompleter, ItemRanker, MatrixCompleter, Recommender, load
from scaledsgd.cli.main import main
from scaledsgd.core.factors import Factors
from scaledsgd.io.tables import InputError
from scaledsgd.streaming.sources import open_feed
from scaledsgd.streaming.stream import Stream, learn_many
from scaledsgd.training.auto_policy import AutoPolicy

BATCH = 500


def run(model, source: str, out: Path, columns: dict, checkpoints: int | None = None) -> None:
    """A stream from its checkpoint on, and no more of it than so many checkpoints."""
    model = load(out) if out.exists() else model
    stream = Stream(model, open_feed(source), out, columns, BATCH, every=2 * BATCH)
    stream.resume()
    for number, _ in enumerate(stream.checkpoints(), 1):
        if number == checkpoints:
            return


SAME_SIDE = {"row": "i", "column": "j", "value": "value"}
TRIPLETS = {name: name for name in "ijk"} | {"target": "target"}
CASES = {
    "matrix": (lambda: MatrixCompleter(rank=2, random_state=0), PAIRS, "a.csv"),
    "alpha": (lambda: MatrixCompleter(rank=2, learning_rate=0.1, random_state=0), PAIRS, "a.csv"),
    "sample": (
        lambda: MatrixCompleter(rank=2, learning_rate=0.1, refresh="sample", random_state=0),
        PAIRS,
        "a.csv",
    ),
    "symmetric": (
        lambda: MatrixCompleter(rank=2, symmetric=True, random_state=0),
        SAME_SIDE,
        "a.jsonl",
    ),
    "distance": (lambda: DistanceCompleter(rank=2, random_state=0), SAME_SIDE, "a.parquet"),
    "triplets": (lambda: ItemRanker(rank=3, random_state=0), TRIPLETS, "a.parquet"),
    "items": (lambda: ItemRanker(rank=3, random_state=0), EVENTS, "a.jsonl"),
    "users": (lambda: Recommender(rank=3, random_state=0), EVENTS, "a.parquet"),
}


@pytest.mark.parametrize("blown", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_a_stream_that_was_broken_off_ends_as_one_that_was_not(case, blown, tmp_path, monkeypatch):
    make, columns, name = CASES[case]
    if blown and case in ("alpha", "sample", "users"):
        pytest.skip("steps that are not AutoPolicy's are not taken back")
    source = write(tmp_path / name, events(9 * BATCH + 77))
    saw = AutoPolicy.saw
    if blown:  # now and then the factors are taken back to a state that the file has to hold
        monkeypatch.setattr(
            AutoPolicy, "saw", lambda self, *a: saw(self, *a) and self.total % 7 != 3
        )
    run(make(), source, tmp_path / "whole", columns)
    for checkpoints in (1, 2, 1, None):
        run(make(), source, tmp_path / "broken", columns, checkpoints)
    assert same(tmp_path / "whole", tmp_path / "broken")
    model = load(tmp_path / "whole")
    assert model._streams[open_feed(source).key]["events"] == 9 * BATCH + 77
    assert bool(model.history_.rollbacks) == blown


def test_the_same_stream_again_teaches_nothing(tmp_path):
    source = write(tmp_path / "a.csv", events(2000))
    run(MatrixCompleter(rank=2, random_state=0), source, tmp_path / "m", PAIRS)
    before = (tmp_path / "m").read_bytes()
    run(None, source, tmp_path / "m", PAIRS)
    assert (tmp_path / "m").read_bytes() == before
    more = write(tmp_path / "b.csv", events(1000, seed=1))
    run(None, more, tmp_path / "m", PAIRS)
    assert load(tmp_path / "m")._trainer.samples == 3000


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_kill_dash_nine(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source = write(tmp_path / name, events(40_000))
    wanted = ["--new", "ranking", "--rank", "4", "--user", "user", "--item", "item"]
    wanted += ["--batch", "500", "--every", "500", "--json"]

    def words(out: str) -> list[str]:
        return ["stream", out, "--from", source, *wanted]

    assert main(words("whole")) == 0
    rng, killed = random.Random(0), 0
    for _ in range(3):
        process = subprocess.Popen([*COMMAND, *words("broken")], stdout=subprocess.PIPE)
        for _ in range(rng.randrange(1, 5)):  # that many checkpoints, and a little more
            process.stdout.readline()
        time.sleep(rng.random() * 0.02)
        process.kill()
        killed += process.wait() == -signal.SIGKILL  # on a busy machine one may be done by then
    assert killed
    assert main(words("broken")) == 0
    assert same(tmp_path / "whole", tmp_path / "broken")
    hidden = {path.name for path in tmp_path.glob(".*")}
    assert hidden == {".whole.lock", ".broken.lock"}  # nor is anything else left lying about


@pytest.mark.slow
def test_stdin_goes_on_after_the_lines_that_were_counted(tmp_path):
    write(tmp_path / "a.jsonl", events(3000))
    text = (tmp_path / "a.jsonl").read_bytes()
    wanted = ["--new", "matrix", "--row", "user", "--column", "item", "--batch", "500"]

    def pipe(out: str, content: bytes) -> dict:
        command = [*COMMAND, "stream", out, "--from", "-", *wanted, "--json"]
        done = subprocess.run(command, input=content, cwd=tmp_path, capture_output=True)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    assert pipe("whole", text)["events"] == 3000
    half = b"\n".join(text.split(b"\n")[:1500]) + b"\n"
    assert pipe("parts", half)["events"] == 1500
    assert pipe("parts", text)["events"] == 3000
    assert same(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_it_with_a_checkpoint(number, status, tmp_path):
    command = [*COMMAND, "stream", "m", "--from", "-", "--new", "matrix", "--batch", "20"]
    process = subprocess.Popen(
        [*command, "--every", "20", "--json"], cwd=tmp_path, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    for n in range(50):
        process.stdin.write(b'{"row": %d, "column": %d, "value": 1.5}\n' % (n % 7, n % 5))
    process.stdin.flush()
    assert json.loads(process.stdout.readline())["events"] == 20
    assert json.loads(process.stdout.readline())["events"] == 40
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert process.returncode == status
    assert json.loads(out)["events"] == 50  # what came by a pipe does not come again
    assert err.decode() == f"stopped by {number.name}: m holds 50 events\n"


@pytest.mark.parametrize("symmetric", [True, False])
def test_growing_row_by_row_rarely_moves_anything(symmetric):
    factors = Factors.start((4, 4), 3, seed=1, symmetric=symmetric)
    rooms = []
    for n in range(5, 3000):
        factors = factors.grow((n, n))
        if not rooms or factors.room is not rooms[-1]:
            rooms.append(factors.room)
    assert len(rooms) <= 2 * np.log(3000 / 4) / np.log(1.5)
    direct = Factors.start((2999, 2999), 3, seed=1, symmetric=symmetric)
    assert np.array_equal(factors.compact(), direct.X)


def test_what_a_stream_learns_after_a_fit_is_kept():
    """A fit that ends in a state worse than its best one goes back to that; a stream does not."""
    rng = np.random.default_rng(0)
    M = rng.standard_normal((40, 3)) @ rng.standard_normal((3, 40)) + rng.standard_normal((40, 40))
    model = MatrixCompleter(rank=3, epochs=30, random_state=0).fit(M)
    model._trainer.policy.last = 2 * model._trainer.policy.held
    before = model.factors.X.copy()
    M[5:] = np.nan  # too few for the policy to look back
    model.partial_fit(M + 1)
    assert np.abs(model.factors.X - before).max() > 1e-3


@pytest.mark.parametrize("symmetric", [True, False])
def test_rows_added_since_begin_anew_when_a_state_is_taken_back(symmetric):
    table = {"u": list(range(9)), "v": list(range(9)), "y": [1.0] * 9}
    names = {"row": "u", "column": "v", "value": "y"}
    model = MatrixCompleter(rank=2, symmetric=symmetric, random_state=0).partial_fit(table, **names)
    trainer = model._trainer
    old = trainer.snapshot.sides
    model.partial_fit({"u": [0, 20, 21], "v": [30, 31, 0], "y": [5.0, 5.0, 5.0]}, **names)
    trainer._come_back()
    for side, (rows, kept) in enumerate(zip(trainer.factors.sides, old, strict=True)):
        assert np.array_equal(rows[: len(kept)], kept)
        assert np.array_equal(rows[len(kept) :], trainer.factors.fresh(side, len(kept), len(rows)))
        assert len(rows) > len(kept)


def test_a_history_does_not_grow_with_the_stream():
    table = {"u": [0, 1, 2], "v": [0, 1, 2], "y": [1.0, 2.0, 3.0]}
    model = MatrixCompleter(rank=1, evaluations=2, random_state=0)
    learn_many(model, [table] * 20, row="u", column="v", value="y")
    assert (len(model.history_), model._trainer.samples, model.evaluations) == (0, 60, 2)


def test_a_resumed_stream_keeps_the_limits_of_its_batches(tmp_path):
    """Where batches end is part of what is learned: whoever goes on need not say it again."""
    source = write(tmp_path / "a.csv", events(5 * BATCH))
    stream = Stream(MatrixCompleter(2, random_state=0), open_feed(source), tmp_path / "m", PAIRS,
                    batch=BATCH, every=2 * BATCH)  # fmt: skip
    next(stream.checkpoints())
    again = Stream(load(tmp_path / "m"), open_feed(source), tmp_path / "m", PAIRS)
    again.resume()
    assert (again.batch, again.lines) == (BATCH, 2 * BATCH)
    other = Stream(load(tmp_path / "m"), open_feed(source), tmp_path / "m", PAIRS, batch=77)
    other.resume()
    assert other.batch == 77


def lines_at_checkpoints(tmp_path, monkeypatch, seconds_a_batch: float, **how) -> list[int]:
    """Lines that were learned when each checkpoint was written, by a clock of our own."""
    source = write(tmp_path / "a.csv", events(9 * BATCH + 77))
    clock = [0.0]
    monkeypatch.setattr("scaledsgd.streaming.stream.time.monotonic", lambda: clock[0])

    def tick(stream):
        clock[0] += seconds_a_batch

    model = MatrixCompleter(2, random_state=0)
    stream = Stream(model, open_feed(source), tmp_path / "m", PAIRS, BATCH, learned=tick,
                    written=0.0, **how)  # fmt: skip
    return [stream.lines for stream in stream.checkpoints()]


def test_a_checkpoint_is_written_every_so_many_lines_and_at_the_end(tmp_path, monkeypatch):
    told = lines_at_checkpoints(tmp_path, monkeypatch, 0.0, every=3 * BATCH)
    assert told == [3 * BATCH, 6 * BATCH, 9 * BATCH, 9 * BATCH + 77]


def test_a_checkpoint_is_written_every_so_many_seconds(tmp_path, monkeypatch):
    told = lines_at_checkpoints(tmp_path, monkeypatch, 20.0, seconds=60.0)
    assert told == [3 * BATCH, 6 * BATCH, 9 * BATCH, 9 * BATCH + 77]


def test_a_line_counts_when_its_end_is_there(tmp_path):
    """Before, its writer may be in the middle of it: `2,2,1` of `2,2,100`."""
    path = tmp_path / "a.csv"
    path.write_text("user,item,value\n1,1,1\n2,2,1")
    for more, events_ in (("", 1), ("", 1), ("00\n1,2,3\n1,3,", 3), ("4", 3)):
        with path.open("a") as file:
            file.write(more)
        run(MatrixCompleter(1, random_state=0), str(path), tmp_path / "m", PAIRS)
        (told,) = load(tmp_path / "m")._streams.values()
        assert (told["events"], told["refused"]) == (events_, 0)
    whole = tmp_path / "b.csv"
    whole.write_text("user,item,value\n1,1,1\n2,2,100\n1,2,3\n1,3,4\n")
    for source, out, final in ((path, "m", True), (whole, "n", False)):
        out = tmp_path / out
        model = load(out) if out.exists() else MatrixCompleter(1, random_state=0)
        stream = Stream(model, open_feed(str(source), final=final), out, PAIRS, BATCH)
        stream.resume()
        assert [stream.events for stream in stream.checkpoints()] == [4]
    with path.open("a") as file:  # whose last line had no end when it was read
        file.write("\n2,3,5\n")
    stream = Stream(load(tmp_path / "m"), open_feed(str(path)), tmp_path / "m", PAIRS, BATCH)
    stream.resume()
    assert [(stream.events, stream.refused) for stream in stream.checkpoints()] == [(5, 0)]
    assert [load(tmp_path / name).factors.shape for name in "mn"] == [(2, 3), (2, 3)]


def rotate(path: Path, text: str) -> None:
    """As logrotate does: a.csv becomes a.csv.1, and that a.csv.2."""
    for n in range(9, 0, -1):
        old = path.with_name(f"{path.name}.{n}")
        if old.exists():
            old.rename(path.with_name(f"{path.name}.{n + 1}"))
    path.rename(path.with_name(f"{path.name}.1"))
    path.write_text(text)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_a_rotated_file_is_read_to_its_end_and_then_the_next(name, tmp_path):
    lines = Path(write(tmp_path / name, events(9 * BATCH))).read_text().splitlines(keepends=True)
    header = [lines.pop(0)] if name == "a.csv" else []
    whole, path = tmp_path / f"whole{Path(name).suffix}", tmp_path / name
    whole.write_text("".join(header + lines))
    run(MatrixCompleter(2, random_state=0), str(whole), tmp_path / "whole", PAIRS)
    path.write_text("".join(header + lines[: 3 * BATCH]))
    run(MatrixCompleter(2, random_state=0), str(path), tmp_path / "m", PAIRS, checkpoints=1)
    with path.open(
        "a"
    ) as file:  # some of it after the last look, and two rotations before the next
        file.write("".join(lines[3 * BATCH : 4 * BATCH + 99]))
    rotate(path, "".join(header + lines[4 * BATCH + 99 : 5 * BATCH]))
    rotate(path, "".join(header + lines[5 * BATCH :]))
    run(None, str(path), tmp_path / "m", PAIRS, checkpoints=1)
    run(None, str(path), tmp_path / "m", PAIRS)
    one, other = (load(tmp_path / which) for which in ("whole", "m"))
    assert np.array_equal(one.factors.X, other.factors.X)
    (told,) = other._streams.values()
    assert told["events"] == 9 * BATCH


def test_a_file_that_is_another_one_is_refused(tmp_path):
    path = Path(write(tmp_path / "a.csv", events(2 * BATCH)))
    run(MatrixCompleter(2, random_state=0), str(path), tmp_path / "m", PAIRS)
    path.unlink()
    write(path, events(3 * BATCH, seed=1))  # longer than it was
    with pytest.raises(InputError, match="not the file that was learned from before"):
        run(None, str(path), tmp_path / "m", PAIRS)
    rows = Path(write(path, events(2 * BATCH))).read_text().splitlines(keepends=True)
    path.write_text("".join(rows[:BATCH] + rows[BATCH:][::-1]))  # it begins in the same way
    with pytest.raises(InputError, match="not the file that was learned from before"):
        run(None, str(path), tmp_path / "m", PAIRS)


def test_parts_are_read_by_number_and_none_is_left_out(tmp_path):
    table = events(6 * BATCH)

    def part(number: int, begin: int, end: int) -> None:
        some = {name: values[begin * BATCH : end * BATCH] for name, values in table.items()}
        pq.write_table(pa.table(some), tmp_path / f"part-{number}.parquet")

    source = str(tmp_path / "*.parquet")
    part(2, 0, 2)
    run(MatrixCompleter(2, random_state=0), source, tmp_path / "m", PAIRS, checkpoints=1)
    part(10, 3, 5)  # by letters before part-2
    run(None, source, tmp_path / "m", PAIRS)
    part(1, 5, 6)  # late, and before both
    run(None, source, tmp_path / "m", PAIRS)
    (told,) = load(tmp_path / "m")._streams.values()
    assert told["events"] == 5 * BATCH
    run(None, source, tmp_path / "m", PAIRS)
    (tmp_path / "part-2.parquet").unlink()  # learned, and not needed any more
    run(None, source, tmp_path / "m", PAIRS)
    assert load(tmp_path / "m")._streams == {open_feed(source).key: told}
    part(10, 2, 5)
    with pytest.raises(InputError, match=r"part-10.parquet is not the file that was learned from"):
        run(None, source, tmp_path / "m", PAIRS)


def test_a_model_remembers_every_source(tmp_path):
    sources = [write(tmp_path / f"{n}.csv", events(700, seed=n)) for n in range(2)]
    for source in sources:
        run(MatrixCompleter(2, random_state=0), source, tmp_path / "m", PAIRS)
    told = load(tmp_path / "m")._streams
    assert {open_feed(source).key: 700 for source in sources} == {
        key: stream["events"] for key, stream in told.items()
    }


@pytest.mark.parametrize(("dtype", "refused"), [("float32", 1), ("float64", 0)])
def test_what_its_precision_cannot_square_is_refused(dtype, refused, tmp_path):
    rows = [(n % 7, n % 5, 1.0) for n in range(60)] + [(1, 1, 1e20)]
    table = dict(
        zip(("row", "column", "value"), map(np.array, zip(*rows, strict=True)), strict=True)
    )
    feed = open_feed(write(tmp_path / "a.jsonl", table))
    stream = Stream(MatrixCompleter(2, dtype=dtype, random_state=0), feed, tmp_path / "m")
    list(stream.checkpoints())
    assert (stream.events, stream.refused) == (61 - refused, refused)


def test_an_entry_of_a_symmetric_matrix_may_change_in_a_stream(tmp_path):
    """(3, 4) and then (4, 3) are one entry at two times, not a matrix that is not symmetric."""
    rows = [(n % 7, n % 5, 1.0) for n in range(60)] + [(3, 4, 2.0), (4, 3, 5.0)]
    table = dict(
        zip(("row", "column", "value"), map(np.array, zip(*rows, strict=True)), strict=True)
    )
    feed = open_feed(write(tmp_path / "a.jsonl", table))
    stream = Stream(MatrixCompleter(2, symmetric=True, random_state=0), feed, tmp_path / "m")
    list(stream.checkpoints())
    assert (stream.events, stream.refused) == (62, 0)
