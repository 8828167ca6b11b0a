"""MovieLens: broken downloads, wrong checksums, hostile archives, files in both formats."""

import hashlib
import io
import re
import stat
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from shared_data import SMALL

from scaledsgd.research import movielens
from scaledsgd.research.movielens import DatasetError

RATINGS = "userId,movieId,rating,timestamp\n1,31,2.5,100\n7,1,4.0,200\n1,1,0.5,300\n"
MOVIES = 'movieId,title,genres\n1,"Heat, The (1995)",Crime\n31,Amélie (2001),Comedy\n'


def _zip(files, **kinds):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, text in files.items():
            member = zipfile.ZipInfo(name)
            member.external_attr = kinds.get(name, stat.S_IFREG | 0o644) << 16
            archive.writestr(member, text)
    return packed.getvalue()


FILES = {
    "ml-latest-small/": "",
    "ml-latest-small/ratings.csv": RATINGS,
    "ml-latest-small/movies.csv": MOVIES,
    "ml-latest-small/README.txt": "licence",
    "ml-latest-small/tags.csv": "not needed",
    "__MACOSX/ml-latest-small/._ratings.csv": "litter",
}
ARCHIVE = _zip(FILES | {"ml-latest-small/README.txt": "licence" * 40_000})


class Server:
    """GroupLens on this machine, with a cable that can be cut after some bytes."""

    def __init__(self):
        self.content, self.cuts, self.resumes = ARCHIVE, [], True
        self.md5 = f"MD5 (ml-latest-small.zip) = {hashlib.md5(ARCHIVE).hexdigest()}\n"
        self.begins = []

    def answer(self, handler):
        if handler.path.endswith(".md5"):
            return self.send(handler, 200, self.md5.encode())
        if not handler.path.endswith("ml-latest-small.zip"):
            return self.send(handler, 404, b"")
        asked = re.match(r"bytes=(\d+)-", handler.headers.get("Range", ""))
        begin = int(asked[1]) if asked and self.resumes else 0
        self.begins.append(begin)
        if begin >= len(self.content):
            return self.send(handler, 416, b"")
        self.send(handler, 206 if begin else 200, self.content[begin:], self.cuts)

    def send(self, handler, status, body, cuts=()):
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body[: cuts.pop(0)] if cuts else body)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server():
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            state.answer(self)

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        state.url = f"http://127.0.0.1:{http.server_port}/movielens"
        yield state
        http.shutdown()
        thread.join()


def _fetch(server, folder):
    return movielens.fetch("movielens-small", folder, base=server.url)


def test_download_unpacks_what_is_needed_and_nothing_else(server, tmp_path):
    final = _fetch(server, tmp_path / "new" / "data")
    assert final == tmp_path / "new" / "data" / "ml-latest-small"
    assert {p.name for p in final.iterdir()} == {"ratings.csv", "movies.csv", "README.txt"}
    assert [p.name for p in final.parent.iterdir()] == ["ml-latest-small"]
    assert movielens.load(final).table.nnz == 3
    server.content = b""
    assert _fetch(server, final.parent) == final  # not asked for again
    assert server.begins == [0]


def test_broken_connections_are_taken_up_where_they_broke(server, tmp_path):
    server.cuts = [1_000, 70_000]
    final = _fetch(server, tmp_path)
    assert server.begins == [0, 1_000, 71_000]
    assert (final / "README.txt").read_text() == "licence" * 40_000


def test_a_later_run_goes_on_with_the_part(server, tmp_path):
    server.cuts = [1_000, 0, 0, 0, 0]
    with pytest.raises(DatasetError, match="broke 5 times; run again"):
        _fetch(server, tmp_path)
    assert not (tmp_path / "ml-latest-small").exists()
    assert _fetch(server, tmp_path).is_dir()
    assert server.begins == [0, 1_000, 1_000, 1_000, 1_000, 1_000]


def test_a_complete_part_is_not_loaded_again(server, tmp_path):
    (tmp_path / "ml-latest-small.zip.part").write_bytes(ARCHIVE)
    assert _fetch(server, tmp_path).is_dir()
    assert server.begins == [len(ARCHIVE)]


def test_a_server_that_cannot_resume_is_read_from_the_start(server, tmp_path):
    server.resumes = False
    (tmp_path / "ml-latest-small.zip.part").write_bytes(b"x" * 500)
    assert _fetch(server, tmp_path).is_dir()


def test_a_wrong_checksum_is_refused_and_thrown_away(server, tmp_path):
    server.content = ARCHIVE[:-1] + b"?"
    with pytest.raises(DatasetError, match="checksum"):
        _fetch(server, tmp_path)
    assert not list(tmp_path.iterdir())
    server.content = ARCHIVE
    assert _fetch(server, tmp_path).is_dir()


def test_out_of_reach_the_message_says_what_to_put_where(tmp_path):
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as http:
        nobody = f"http://127.0.0.1:{http.server_port}"  # listens, and then no more
    for base in (nobody, "http://host.invalid"):
        with pytest.raises(DatasetError) as error:
            movielens.fetch("25m", tmp_path, base=base)
        message = str(error.value)
        assert "ml-25m.zip" in message and str(tmp_path) in message and "\n" not in message
    with pytest.raises(DatasetError, match="small, 25m, latest, 1m"):
        movielens.fetch("movielens-2m", tmp_path)


def test_an_unknown_file_on_the_server_is_out_of_reach(server, tmp_path):
    with pytest.raises(DatasetError, match=r"404.*ml-1m\.zip"):
        movielens.fetch("1m", tmp_path, base=server.url)


@pytest.mark.parametrize("where", ["zip", "folder", "parent", "put"])
def test_copies_on_disk(tmp_path, where):
    copy, data = tmp_path / "copy", tmp_path / "data"
    data.mkdir()
    packed = (data if where == "put" else tmp_path) / "ml-latest-small.zip"
    packed.write_bytes(_zip(FILES))
    zipfile.ZipFile(packed).extractall(copy)
    source = {"zip": packed, "folder": copy / "ml-latest-small", "parent": copy, "put": None}
    final = movielens.fetch("small", data, source[where], base="http://host.invalid")
    assert movielens.load(final).table.nnz == 3 and packed.exists()


@pytest.mark.parametrize(
    "name",
    ["../ratings.csv", "/etc/ratings.csv", "a/../../b", "C:\\ratings.csv", "..\\ratings.csv"],
)
def test_archives_that_reach_out_of_the_folder_are_refused(tmp_path, name):
    (tmp_path / "bad.zip").write_bytes(_zip(FILES | {name: "evil"}))
    with pytest.raises(DatasetError, match="refused"):
        movielens.fetch("small", tmp_path / "data", tmp_path / "bad.zip")
    assert not list((tmp_path / "data").iterdir())


def test_links_in_archives_are_refused(tmp_path):
    link = {"ml-latest-small/movies.csv": stat.S_IFLNK | 0o777}
    (tmp_path / "bad.zip").write_bytes(_zip(FILES, **link))
    with pytest.raises(DatasetError, match="refused"):
        movielens.fetch("small", tmp_path / "data", tmp_path / "bad.zip")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"no zip", "not a zip file"),
        (_zip(FILES).replace(b"7,1,4.0", b"7,1,5.0"), "damaged"),
        (_zip({"a/movies.csv": MOVIES}), "neither ratings.csv"),
        (_zip({"a/ratings.csv": RATINGS, "b/ratings.csv": RATINGS}), "two files ratings.csv"),
    ],
)
def test_archives_that_are_no_use_say_why(tmp_path, content, message):
    (tmp_path / "bad.zip").write_bytes(content)
    with pytest.raises(DatasetError, match=message):
        movielens.fetch("small", tmp_path / "data", tmp_path / "bad.zip")
    assert not list((tmp_path / "data").iterdir())
    with pytest.raises(DatasetError, match="no such file"):
        movielens.fetch("small", tmp_path / "data", tmp_path / "absent.zip")


_id = st.integers(0, 2**31 - 1)
_rows = st.lists(
    st.tuples(_id, _id, st.integers(1, 10), _id), min_size=1, unique_by=lambda row: row[:2]
)


@given(_rows, st.sampled_from([".csv", ".dat"]), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_ratings_are_read_back(tmp_path_factory, rows, ending, newline, closed):
    separator = {".csv": ",", ".dat": "::"}[ending]
    lines = [separator.join(map(str, (u, i, stars / 2, t))) for u, i, stars, t in rows]
    lines = ["userId,movieId,rating,timestamp"] * (ending == ".csv") + lines
    file = tmp_path_factory.mktemp("load") / f"ratings{ending}"
    file.write_bytes((newline.join(lines) + newline * closed).encode())
    seen = movielens.load(file)
    table = seen.table.tocoo()
    back = zip(seen.users[table.row], seen.items[table.col], table.data, strict=True)
    assert sorted(back) == sorted((u, i, stars / 2) for u, i, stars, _ in rows)
    assert seen.table.dtype == np.float32 and (np.diff(seen.users) > 0).all()


@pytest.mark.parametrize(
    ("line", "where"),
    [
        ("x,1,4.0,9", "line 3"),
        ("1,,4.0,9", "line 3"),
        ("1,2", "line 3"),
        ("1,2,,9", "line 3"),
        ("1,2,4.x,9", "line 3"),
        ("1,2,-4,9", "line 3"),
        ("99999999999,2,4,9", "line 3"),
        ("", "line 3"),
        ("5,5,3.0,9", "had rated before"),
    ],
)
def test_a_line_that_is_no_rating_is_named(tmp_path, line, where):
    text = f"userId,movieId,rating,timestamp\n5,5,4.0,9\n{line}\n6,5,4.0,9\n"
    (tmp_path / "ratings.csv").write_text(text)
    with pytest.raises(DatasetError, match=where):
        movielens.load(tmp_path)


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", "userId,movieId,rating,timestamp\n"])
def test_files_without_ratings_are_refused(tmp_path, text):
    (tmp_path / "ratings.csv").write_text(text)
    with pytest.raises(DatasetError, match=r"ratings\.csv"):
        movielens.load(tmp_path)
    with pytest.raises(DatasetError, match=r"put movies\.csv"):
        movielens.titles(tmp_path)


def test_titles_in_both_formats(tmp_path):
    (tmp_path / "movies.csv").write_text(MOVIES, encoding="utf-8")
    assert movielens.titles(tmp_path) == {1: "Heat, The (1995)", 31: "Amélie (2001)"}
    (tmp_path / "movies.dat").write_text("31::Amélie (2001)::Comedy\n", encoding="latin-1")
    assert movielens.titles(tmp_path / "movies.dat") == {31: "Amélie (2001)"}


def test_the_real_one():
    if not SMALL.is_dir():
        pytest.skip("no copy of MovieLens-Latest-Small beside the repository")
    seen = movielens.load(SMALL)
    assert seen.table.shape == (610, 9_724) and seen.table.nnz == 100_836
    assert seen.table.data.sum() == 353_083.0  # as awk adds up the third column
    assert movielens.titles(SMALL)[int(seen.items[0])] == "Toy Story (1995)"
