"""Who may write a file, and that it is there as a whole or not at all."""

import os

import pytest

from scaledsgd.io.atomic import alone, whole_file


def test_a_lock_taken_while_another_was_let_go_keeps_others_out(tmp_path, monkeypatch):
    """Between opening the lock's file and locking it, the holder may finish: were the file removed
    then, the second process would hold one without a name, and a third a new one."""
    fcntl = pytest.importorskip("fcntl")
    path, flock = tmp_path / "m", fcntl.flock
    first = alone(path)
    first.__enter__()

    def after_the_first(file, how):
        monkeypatch.setattr(fcntl, "flock", flock)
        first.__exit__(None, None, None)
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", after_the_first)
    with alone(path), pytest.raises(BlockingIOError, match="m: another process is writing it"):
        alone(path).__enter__()
    with alone(path):  # and all have let go of it
        pass


def test_what_killed_writers_left_is_cleared_away(tmp_path):
    (tmp_path / ".m.x1.part").touch()
    (tmp_path / ".n.x1.part").touch()
    with alone(tmp_path / "m"):
        assert sorted(os.listdir(tmp_path)) == [".m.lock", ".n.x1.part"]


@pytest.mark.parametrize("durable", [True, False])
def test_a_file_is_whole_or_as_it_was(tmp_path, durable):
    path = tmp_path / "a"
    path.write_text("old")

    def broken_off():
        with whole_file(path, durable) as file:
            file.write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        broken_off()
    assert (path.read_text(), os.listdir(tmp_path)) == ("old", ["a"])
    with whole_file(path, durable) as file:
        file.write(b"new")
        assert path.read_text() == "old"
    assert (path.read_text(), os.listdir(tmp_path)) == ("new", ["a"])
