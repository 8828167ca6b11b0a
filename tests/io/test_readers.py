"""Files of every format become the same tables, and every fault is named with its place."""

from __future__ import annotations

import builtins
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse as sp

from scaledsgd.io import readers
from scaledsgd.io.readers import open_file
from scaledsgd.io.tables import InputError
from scaledsgd.io.text_format import TextFormat, text_format

HEADER = "user,film,stars\n"


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Writes a file into an empty current folder, so that messages have short names in them."""
    monkeypatch.chdir(tmp_path)

    def write(content: str | bytes, name: str = "a.csv") -> Path:
        Path(name).write_bytes(content if isinstance(content, bytes) else content.encode())
        return Path(name)

    return write


def read(path, ids=("user", "film"), numbers=("stars",)):
    return open_file(path).table(ids, numbers)


def refusal(path, **columns) -> str:
    with pytest.raises(InputError) as caught:
        source = open_file(path)
        source.first(3)
        read(path, **columns)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_all_formats_hold_the_same_table(written):
    written(HEADER + "ann,7,4.5\nbob,9,3\n")
    written(HEADER.replace(",", "\t") + "ann\t7\t4.5\nbob\t9\t3\n", "a.tsv")
    frame = pd.DataFrame({"user": ["ann", "bob"], "film": [7, 9], "stars": [4.5, 3.0]})
    frame.to_parquet("a.parquet")
    np.savez("a.npz", user=np.array(["ann", "bob"]), film=[7, 9], stars=[4.5, 3.0])
    for name in ("a.csv", "a.tsv", "a.parquet", "a.npz"):
        assert open_file(name).names == ["user", "film", "stars"]
        table = read(name)
        assert table["user"].tolist() == ["ann", "bob"]
        assert table["film"].dtype == np.int64 and table["film"].tolist() == [7, 9]
        assert table["stars"].dtype == np.float64 and table["stars"].tolist() == [4.5, 3.0]


@pytest.mark.parametrize("mark", [",", "\t", ";", "|", " ", "::"])
@pytest.mark.parametrize("ending", ["csv", "tsv", "txt", "dat", "data", "inter"])
def test_separators_are_found(written, mark, ending):
    if mark == " " and ending in ("csv", "tsv"):
        pytest.skip("there, a space is part of a name")
    lines = ["user,film,stars", "ann,7,4.5", "bob,9,3"]
    path = written("\n".join(lines).replace(",", mark), f"a.{ending}")
    table = read(path)
    assert table["user"].tolist() == ["ann", "bob"] and table["stars"].tolist() == [4.5, 3]
    assert table.place(1) == f"a.{ending}, line 3"


@pytest.mark.parametrize(
    ("content", "ids", "words"),
    [
        (
            "1::Heat, The (1995)::A|B\n2::Go: Fish::A\n",
            ["1", "2"],
            ["Heat, The (1995)", "Go: Fish"],
        ),
        ("user|film\nann|a,b\nbob|c\n", ["user", "film"], ["a,b", "c"]),
        ("user,film\nann,a;b\nbob,c;d\n", ["user", "film"], ["a;b", "c;d"]),
        ('"user";"film"\n"ann";"a; b, c"\n', ["user", "film"], ["a; b, c"]),
        ("user,film;title\nann,a\nbob,b\n", ["user", "film;title"], ["a", "b"]),
        ("user film\n  ann   a\nbob b\n", ["user", "film"], ["a", "b"]),
    ],
)
def test_separators_within_fields(written, content, ids, words):
    bare = content[0] == "1"
    source = open_file(written(content, "a.txt"), TextFormat(header=False if bare else None))
    assert source.table(ids, [])[ids[1]].tolist() == words


def test_a_column_alone_may_hold_spaces(written):
    source = open_file(written("the film\nheat two\n"))
    assert source.names == ["the film"]


def test_a_separator_that_is_given(written):
    path = written("a b,c;d,e\n1,2;3,4\n", "a.log")
    source = open_file(path, text_format(";"))
    assert source.names == ["a b,c", "d,e"]
    for word, mark in (("tab", "\t"), ("space", " "), ("::", "::"), (" ", " ")):
        assert text_format(word).separator == mark
    with pytest.raises(InputError, match=r"--separator '#': not one of :: tab ; \| , space"):
        text_format("#")


def test_headers_with_types_and_none(written):
    header = "user_id:token\titem_id:token\trating:float\ttags:token_seq\n"
    source = open_file(written(header + "1\t2\t3\ta b\n", "a.inter"))
    assert source.names == ["user_id", "item_id", "rating", "tags"]
    assert open_file(written("at:float,b\n1,2\n")).names == ["at:float", "b"]  # not of RecBole
    for ending, mark in (("dat", "::"), ("data", "\t")):
        path = written("1,5,4.5\n2,6,3\n".replace(",", mark), f"a.{ending}")
        source = open_file(path)
        assert source.names == ["1", "2", "3"] and source.first(3) == ["1", "2", "3"]
        table = source.table(["1", "2"], ["3"])
        assert table["1"].tolist() == [1, 2] and table.place(0) == f"a.{ending}, line 1"
        assert open_file(path, TextFormat(header=True)).names == ["1", "5", "4.5"]
    source = open_file(written("ann,7\nbob,8\n"), TextFormat(header=False))
    assert source.table(["1"], ["2"])["1"].tolist() == ["ann", "bob"]
    ragged = written("1::2::3\n4::5\n", "a.dat")
    assert "line 2: 2 fields, but the first line has 3" in refusal(ragged, ids=["1"], numbers=[])


def test_encodings(written):
    path = written(HEADER.encode() + "zoë,7,1\n".encode("latin-1"))
    assert refusal(path) == "a.csv, line 2: byte 0xeb is not UTF-8: --encoding latin-1 may help"
    assert open_file(path, text_format(encoding="latin-1")).table(["user"], [])["user"] == ["zoë"]
    wide = written((HEADER + "zoë,7,1\n").encode("utf-16"), "b.csv")
    assert open_file(wide, text_format(encoding="utf-16")).table(["user"], [])["user"] == ["zoë"]
    with pytest.raises(InputError, match=r"a.csv, line 2: byte 0xeb is not ascii$"):
        open_file(path, text_format(encoding="ascii"))
    for wrong in ("runes", "hex"):
        with pytest.raises(InputError, match=f"--encoding '{wrong}': not an encoding"):
            text_format(encoding=wrong)


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_blocks_make_no_difference(written, monkeypatch, size):
    monkeypatch.setattr(readers, "_BLOCK", size)
    monkeypatch.setattr(readers, "_BATCH", size)
    table = read(written(HEADER + "1,a,1\n\n2,b,2\n3,c,3\nx,d,4\n"))
    assert table["user"].tolist() == ["1", "2", "3", "x"]
    assert table["stars"].tolist() == [1, 2, 3, 4]
    assert [table.place(row) for row in range(4)] == [f"a.csv, line {n}" for n in (2, 4, 5, 6)]


@pytest.mark.parametrize(
    ("column", "ids"),
    [
        (["1", "2"], [1, 2]),
        (["1", "x"], ["1", "x"]),
        (["007", "7"], ["007", "7"]),  # as numbers they would be the same
        (["1.0", "2"], [1, 2]),  # a column that was made of floats
        (["9223372036854775807"], [2**63 - 1]),
        (["1e5", "x y", "é"], ["1e5", "x y", "é"]),
    ],
)
def test_ids_are_numbers_or_words(written, column, ids):
    table = read(written("user,film,stars\n" + "".join(f"{name},1,1\n" for name in column)))
    assert table["user"].tolist() == ids


def test_quotes_byte_order_marks_and_other_line_ends(written):
    table = read(written(b'\xef\xbb\xbfuser, film, stars\r\n"a, b", "c ""d""", 1\r\n'))
    assert table["user"].tolist() == ["a, b"] and table["film"].tolist() == ['c "d"']


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "a.csv: the file is empty"),
        ("\n\n", "a.csv: the file is empty"),
        ("1,2,3\n4,5,6\n", "a.csv, line 1: '1' is a number: the header is missing"),
        ("user,film\n1,2\n", "a.csv: 3 columns are needed, the file has user, film"),
        (HEADER + "1,2,3\n4,5\n", "a.csv, line 3: 2 fields, but the header has 3"),
        (HEADER + "1,2,3\n\n4,5,x\n", "a.csv, line 4, column 'stars': 'x' is not a number"),
        (HEADER + "1,2,\n", "a.csv, line 2, column 'stars': nothing where a number belongs"),
        (HEADER + ",2,3\n", "a.csv, line 2, column 'user': nothing where an id belongs"),
        (HEADER + "1,2,3\n-1,2,3\n", "a.csv, line 3, column 'user': id -1 is not a whole number"),
        (HEADER + "1,2,3\n1.5,2,3\n", "a.csv, line 3, column 'user': id 1.5 is not a whole"),
        (HEADER + "1,2,3\nnan,2,3\n", "a.csv, line 3, column 'user': id nan is not a whole"),
        (HEADER + f"{2**63},2,3\n", "a.csv, line 2, column 'user': id 9223372036854775808 is not"),
        (b"user,film,stars\n1,2,3\n\xff,2,3\n", "a.csv, line 3: byte 0xff is not UTF-8"),
        (HEADER + "1,2\0,3\n", "a.csv, line 2: a NUL byte"),
        (HEADER + '1,2,3\n"4,5,6\n7,8,9\n', "a.csv, line 3: not a table (unexpected end of data)"),
        (HEADER + '1,2,"' + 200_000 * "x" + '"\n', "a.csv, line 2: not a table (field larger"),
        ("user,film,stars,user\n1,2,3,4\n", "a.csv: column 'user' is there 2 times"),
    ],
)
def test_faults_of_text(written, content, message):
    assert refusal(written(content)).startswith(message)


def test_unknown_columns_are_answered_with_the_known(written):
    path = written(HEADER + "1,2,3\n")
    assert refusal(path, ids=["usr"]) == "a.csv: no column 'usr': the file has user, film, stars"


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([1.0, 2.5], "row 2, column 'user': id 2.5 is not a whole number"),
        ([1, -2], "row 2, column 'user': id -2 is not a whole number"),
        (np.array([1, 2**63], dtype=np.uint64), "row 2, column 'user': id 9223372036854775808"),
        ([np.inf, 1], "row 1, column 'user': id inf"),
        ([True, False], "row 1, column 'user': id True is neither"),
    ],
)
def test_faults_of_typed_ids(written, column, message):
    np.savez("a.npz", user=column, film=[1, 2], stars=[1.0, 2.0])
    assert refusal(Path("a.npz")).startswith(f"a.npz, {message}")
    pd.DataFrame({"user": column, "film": [1, 2], "stars": [1.0, 2.0]}).to_parquet("a.parquet")
    assert refusal(Path("a.parquet")).startswith(f"a.parquet, {message}")


def test_gaps_in_parquet(written):
    pd.DataFrame({"user": ["a", None], "film": [1, 2], "stars": [1, 2]}).to_parquet("a.parquet")
    assert (
        refusal(Path("a.parquet")) == "a.parquet, row 2, column 'user': nothing where an id belongs"
    )


def test_parquet_without_pyarrow_says_how_to_get_it(written, monkeypatch):
    there = builtins.__import__

    def missing(name, *rest):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return there(name, *rest)

    monkeypatch.setattr(builtins, "__import__", missing)
    assert "pip install 'scaledsgd[parquet]'" in refusal(written("x", "a.parquet"))


def test_matrices(written):
    M = sp.coo_array(([1.0, 0.0], ([0, 1], [2, 0])), shape=(2, 3))
    sp.save_npz("sparse.npz", M)
    scipy.io.mmwrite("a.mtx", M)
    for name in ("sparse.npz", "a.mtx"):
        found = open_file(name).matrix()
        assert not open_file(name).names and found.nnz == 2  # a stored zero stays
        assert (found.toarray() == M.toarray()).all()
    np.savez("full.npz", M=np.eye(2), other=np.zeros((2, 2)))
    assert open_file("full.npz").matrix("M").tolist() == [[1, 0], [0, 1]]
    with pytest.raises(InputError, match=r"full.npz: no array 'N': it has M, other"):
        open_file("full.npz").matrix("N")


@pytest.mark.parametrize("symmetry", ["general", "symmetric", "skew-symmetric"])
@pytest.mark.parametrize("field", ["real", "integer", "pattern", "array"])
def test_matrix_market_is_what_scipy_reads(written, symmetry, field):
    rng = np.random.default_rng(0)
    M = np.round(rng.standard_normal((5, 5)) * 9) * (rng.random((5, 5)) < 0.6)
    M = {"symmetric": M + M.T, "skew-symmetric": M - M.T}.get(symmetry, M)
    if field == "pattern" and symmetry == "skew-symmetric":
        pytest.skip("there is no such thing")
    kind = "integer" if field == "integer" else None if field == "array" else field
    given = M if field == "array" else sp.coo_array(M)
    scipy.io.mmwrite("a.mtx", given, comment="of\nours", field=kind, symmetry=symmetry)
    found, wanted = open_file("a.mtx").matrix(), scipy.io.mmread("a.mtx")
    both = [S.toarray() if sp.issparse(S) else S for S in (found, wanted)]
    assert np.array_equal(*both)


def test_matrix_market_that_is_cut_off_or_changed_is_refused(written):
    """At any byte. SciPy's reader ends the process on some of them."""
    scipy.io.mmwrite("a.mtx", sp.coo_array(np.diag(np.arange(1.0, 40))), comment="x")
    whole = Path("a.mtx").read_bytes()
    for cut in range(1, whole.rindex(b" ")):
        Path("a.mtx").write_bytes(whole[:cut])
        with pytest.raises(InputError, match=r"a.mtx: cannot be read"):
            open_file("a.mtx").matrix()
    for line in (b"1 40 1", b"0 1 1", b"-1 1 1", b"1 1", b"1 1 1 1", b"x 1 1", b"1 1 \xff"):
        Path("a.mtx").write_bytes(whole.replace(b"5 5 ", line + b"\n5 5 ", 1))
        with pytest.raises(InputError, match=r"a.mtx: cannot be read"):
            open_file("a.mtx").matrix()


def damaged_csr() -> sp.csr_array:
    M = sp.csr_array(np.eye(3))
    M.indptr[1] = 50  # would take SciPy out of bounds
    return M


@pytest.mark.parametrize(
    "content",
    [b"x", b"PK\x03\x04 not really an archive", b"%%MatrixMarket matrix coordinate real general\n"],
)
@pytest.mark.parametrize("ending", ["npz", "mtx", "parquet"])
def test_damaged_files(written, content, ending):
    path = written(content, f"a.{ending}")
    with pytest.raises(InputError, match=rf"a.{ending}: cannot be read \(.+\)$"):
        open_file(path).matrix()


def test_damaged_sparse_archives(written):
    sp.save_npz("a.npz", damaged_csr())
    with pytest.raises(InputError, match=r"a.npz: cannot be read \(indptr"):
        open_file("a.npz").matrix()
    whole = Path("a.npz").read_bytes()
    for cut in range(0, len(whole), 97):
        Path("a.npz").write_bytes(whole[:cut])
        with pytest.raises(InputError):
            open_file("a.npz").matrix()


def test_archives_that_hold_something_else(written):
    sp.save_npz("a.npz", sp.csr_array(np.eye(3)))
    with np.load("a.npz") as file:
        parts = dict(file)
    others = {
        "format": np.array(b"csx"),
        "data": np.array(["a", "b", "c"]),
        "shape": np.array(["x"]),
    }
    for name, array in others.items():
        np.savez("a.npz", **parts | {name: array})
        with pytest.raises(InputError, match=r"a.npz: cannot be read"):
            open_file("a.npz").matrix()
    for array in (np.zeros(3, "i4,f4"), np.array(["x", "y"]), np.zeros((2, 2, 2)), np.eye(2) * 1j):
        np.savez("a.npz", M=array, N=np.eye(2))
        with pytest.raises(InputError, match=r"a.npz: cannot be read"):
            open_file("a.npz").matrix("M")


def test_arrays_that_claim_more_than_they_hold_or_are_no_columns(written):
    np.savez("a.npz", i=np.zeros(3, "i4,f4"), j=np.arange(3), y=np.zeros(3))
    with pytest.raises(InputError, match=r"a.npz: cannot be read \(i.npy: .* of shape \(3,\)"):
        open_file("a.npz")
    with zipfile.ZipFile("a.npz", "w") as archive, archive.open("M.npy", "w") as file:
        claim = {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**6)}
        np.lib.format.write_array_header_1_0(file, claim)
        file.write(bytes(80))
    with pytest.raises(InputError, match=r"M.npy: float64 of shape .* in \d+ bytes"):
        open_file("a.npz")


@pytest.mark.parametrize("name", ["nowhere.csv", "a.xlsx", "folder.csv"])
def test_what_is_not_a_readable_file(written, name):
    Path("folder.csv").mkdir()
    with pytest.raises(InputError, match=f"^{name}: "):
        open_file(name)


def test_reading_tells_how_far_it_is(written, monkeypatch):
    monkeypatch.setattr(readers, "_BLOCK", 10)
    path = written(HEADER + 1000 * "1,2,3\n")
    told = []
    open_file(path).table(["user", "film"], ["stars"], told.append)
    assert len(told) > 2 and sum(told) == path.stat().st_size
