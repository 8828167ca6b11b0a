"""Files of data that somebody has damaged, or made to do harm: read, or refused in one line."""

from __future__ import annotations

import io
import random
import zipfile
from functools import cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import scipy.io
import scipy.sparse as sp

from scaledsgd.core.memory import limit_memory
from scaledsgd.io.readers import open_file
from scaledsgd.io.tables import InputError

CELLS = (
    "1", "2", "7", "u1", "", " ", "nan", "inf", "-inf", "1e999", "-1", "1.5", "007", "1_000",
        "\uff11",
    str(2**63), str(2**64), "9" * 400, '"', '"a', 'a"b', "a,b", "\x1b[2J", "\0", "\ufeff1",
        "x" * 70_000,
    "2026-11-16", "true", "\ud83d\ude00", "\r", "0x10", "1e-400", "[1]", "{}",
)  # fmt: skip
SIZES = (0, 1, 3, -1, 2**31 - 1, 2**31, 10**8, 10**12, 2**63 - 1, 2**63, 10**30)


@cache
def sound() -> dict[str, bytes]:
    """A file of every kind."""
    rng = np.random.default_rng(0)
    S = sp.coo_array((rng.random(20), (rng.integers(0, 6, 20), rng.integers(0, 5, 20))), (6, 5))
    found: dict[str, bytes] = {}

    def keep(name: str, write) -> None:
        file = io.BytesIO()
        write(file)
        found[name] = file.getvalue()

    for form in ("csr", "csc", "coo", "bsr", "dia"):
        keep(f"{form}.npz", lambda file, form=form: sp.save_npz(file, S.asformat(form)))
    table = {
        "row": rng.integers(0, 9, 30),
        "column": rng.integers(0, 9, 30),
        "value": rng.random(30),
    }
    keep("table.npz", lambda file: np.savez(file, **table))
    keep("full.npz", lambda file: np.savez_compressed(file, M=rng.random((6, 5))))
    keep("sparse.mtx", lambda file: scipy.io.mmwrite(file, S))
    keep("full.mtx", lambda file: scipy.io.mmwrite(file, rng.random((4, 3))))
    keep(
        "symmetric.mtx",
        lambda file: scipy.io.mmwrite(file, sp.coo_array(np.eye(4)), symmetry="symmetric"),
    )
    words = table | {"row": [f"u{n}" for n in table["row"]]}
    keep("table.parquet", lambda file: pq.write_table(pa.table(words), file, row_group_size=10))
    text = "row,column,value\n" + "".join(
        f"{i},{j},{y}\n" for i, j, y in zip(*table.values(), strict=True)
    )
    found |= {"table.csv": text.encode(), "table.tsv": text.replace(",", "\t").encode()}
    found["table.dat"] = text.replace(",", "::").encode()
    found["table.jsonl"] = b'{"row": 1, "column": 2, "value": 3.5}\n' * 20
    return found


def broken(rng: random.Random, content: bytes) -> bytes:
    """Bytes cut off, lost, doubled or changed."""
    changed = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 8])):
        if not changed:
            break
        at, length = rng.randrange(len(changed)), rng.randrange(1, 40)
        what = rng.randrange(5)
        if what == 0:
            del changed[at:]
        elif what == 1:
            del changed[at : at + length]
        elif what == 2:
            changed[at:at] = changed[at : at + length]
        elif what == 3:
            changed[at:at] = rng.randbytes(length)
        else:
            changed[at] = rng.randrange(256)
    return bytes(changed)


def text_of(rng: random.Random) -> tuple[str, bytes]:
    """A table of odd cells."""
    mark = rng.choice([",", "\t", ";", "|", "::", " "])
    width = rng.choice([1, 2, 3, 3, 3, 4])
    odd = lambda: rng.choice(CELLS) if rng.random() < 0.2 else str(rng.randrange(9))  # noqa: E731
    rows = [["row", "column", "value", "more"][:width]] if rng.random() < 0.8 else []
    rows += [
        [odd() for _ in range(width - (rng.random() < 0.02))] for _ in range(rng.randrange(30))
    ]
    text = rng.choice(["\n", "\n", "\r\n", "\r"]).join(mark.join(row) for row in rows)
    code = rng.choice(["utf-8", "utf-8", "utf-8", "utf-16", "latin-1"])
    return rng.choice(["a.csv", "a.tsv", "a.txt", "a.dat"]), text.encode(code, "replace")


def market_of(rng: random.Random) -> tuple[str, bytes]:
    """Matrix Market with a header that claims anything."""
    banner = ["%%MatrixMarket", "matrix", rng.choice(["coordinate", "array", "x"]),
              rng.choice(["real", "integer", "pattern", "complex", ""]),
              rng.choice(["general", "symmetric", "skew-symmetric", "hermitian"])]  # fmt: skip
    sizes = [
        rng.choice(SIZES) if rng.random() < 0.4 else 3 for _ in range(rng.choice([2, 3, 3, 4]))
    ]
    odd = lambda: rng.choice(CELLS) if rng.random() < 0.1 else str(rng.randrange(1, 4))  # noqa: E731
    lines = [" ".join(banner), "% by nobody", " ".join(map(str, sizes))]
    lines += [
        " ".join(odd() for _ in range(rng.choice([1, 2, 3, 3]))) for _ in range(rng.randrange(5))
    ]
    return "a.mtx", "\n".join(lines).encode("utf-8", "replace")


def archive_of(rng: random.Random) -> tuple[str, bytes]:
    """An archive whose arrays do not fit, are of any type, or unpack to gigabytes."""
    shapes = [(), (0,), (3,), (4,), (2, 3), (3, 3, 3)]
    kinds = ["f8", "f4", "i8", "u8", "i1", "b1", "U5", "S5", "c16", "i4,f8", "M8[s]"]
    names = rng.sample(["row", "column", "value", "M", "format", "shape", "data", "indices",
        "indptr",
                        "offsets", "col"], rng.randrange(1, 6))  # fmt: skip
    file = io.BytesIO()
    if rng.random() < 0.1:  # a bomb: 800 MB in a megabyte
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            head = io.BytesIO()
            np.lib.format.write_array_header_1_0(
                head, {"descr": "<f8", "fortran_order": False, "shape": (10_000, 10_000)}
            )
            with archive.open("M.npy", "w", force_zip64=True) as out:
                out.write(head.getvalue())
                for _ in range(rng.choice([1, 40])):
                    out.write(bytes(1 << 20))
        return "a.npz", file.getvalue()
    arrays = {}
    for name in names:
        array = np.zeros(rng.choice(shapes), rng.choice(kinds))
        if name == "format" and rng.random() < 0.8:
            array = np.array(rng.choice([b"csr", b"coo", b"dia", b"bsr", b"csc", b"x"]))
        if name == "shape" and rng.random() < 0.8:
            array = np.array([rng.choice(SIZES[:-2]) for _ in range(2)])
        arrays[name] = array
    np.savez(file, **arrays)
    return "a.npz", file.getvalue()


def made(rng: random.Random) -> tuple[str, bytes]:
    """A file: its name and what is in it."""
    kind = rng.randrange(6)
    if kind < 3:
        name = rng.choice(sorted(set(sound()) - {"table.jsonl"}))
        content = broken(rng, sound()[name])
        return f"a.{name.partition('.')[2]}", content
    return (text_of, market_of, archive_of)[kind - 3](rng)


def try_file(rng: random.Random, home: str) -> str:
    limit_memory(1e9)
    name, content = made(rng)
    path = Path(home, name)
    path.write_bytes(content)
    try:
        source = open_file(path)
        if not source.names:
            matrix = source.matrix("M" if rng.random() < 0.5 else None)
            assert matrix.ndim == 2 and matrix.dtype.kind in "biuf"
            if sp.issparse(matrix):
                coo = matrix.tocoo()
                assert coo.nnz == 0 or (
                    coo.coords[0].max() < coo.shape[0] and coo.coords[0].min() >= 0
                )
                assert coo.nnz == 0 or (
                    coo.coords[1].max() < coo.shape[1] and coo.coords[1].min() >= 0
                )
            return "read"
        names = source.first(min(3, len(source.names)))
        table = source.table(names[:2], names[2:], times=names[2:] if rng.random() < 0.3 else ())
        assert len({len(table[name]) for name in table}) == 1
        assert all(table[name].dtype.kind in "iO" for name in names[:2])
        return "read"
    except (InputError, MemoryError) as why:
        assert "\n" not in str(why), why
        return "refused"
    finally:
        limit_memory(None)
