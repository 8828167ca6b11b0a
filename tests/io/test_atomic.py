"""Who may write a file, and that it is there as a whole or not at all."""

import os
import stat
import time

import pytest

from scaledsgd.io.atomic import alone, replace_file, whole_file, whole_folder


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


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_file_has_the_mode_that_any_other_would_have(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        replace_file(tmp_path / "m", b"new")
        assert os.umask(mask) == mask  # which is left as it was
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "m").stat().st_mode) == mode


def test_a_file_keeps_its_mode_and_a_link_stays_one(tmp_path, monkeypatch):
    path, link = tmp_path / "m", tmp_path / "link"
    path.write_bytes(b"old")
    path.chmod(0o600)
    link.symlink_to("m")
    monkeypatch.setattr(os, "umask", None)  # which is the whole process's
    replace_file(link, b"new")
    assert (path.read_bytes(), link.is_symlink()) == (b"new", True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with alone(link), pytest.raises(BlockingIOError, match="another process"), alone(path):
        pass


def test_a_lock_does_not_follow_links(tmp_path):
    (tmp_path / "precious").write_text("all of it")
    (tmp_path / ".m.lock").symlink_to("precious")
    with pytest.raises(OSError, match="m: cannot be written"), alone(tmp_path / "m"):
        pass
    assert (tmp_path / "precious").read_text() == "all of it"


def test_who_has_the_old_file_open_reads_on_in_it(tmp_path):
    path = tmp_path / "m"
    path.write_bytes(b"old content")
    with path.open("rb") as reader:
        replace_file(path, b"new")
        assert reader.read() == b"old content"
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["m"]


def test_content_and_name_are_on_the_disk_before_it_returns(tmp_path, monkeypatch):
    synced, sync = [], os.fsync

    def note(handle):
        synced.append(stat.S_IFMT(os.fstat(handle).st_mode))
        sync(handle)

    monkeypatch.setattr(os, "fsync", note)
    replace_file(tmp_path / "m", b"new")
    assert synced == [stat.S_IFREG, stat.S_IFDIR]


def test_folders_that_a_killed_writer_left_are_cleared_away_after_a_day(tmp_path):
    for name, age in (("dead.part", 2 * 86_400), ("alive.part", 3600)):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    with whole_folder(tmp_path / "new") as part:
        (part / "a").write_text("a")
    assert sorted(os.listdir(tmp_path)) == ["alive.part", "new"]


def test_a_folder_that_could_not_be_filled_is_not_there(tmp_path):
    with pytest.raises(KeyError), whole_folder(tmp_path / "new") as part:
        (part / "a").write_text("a")
        raise KeyError
    assert os.listdir(tmp_path) == []
