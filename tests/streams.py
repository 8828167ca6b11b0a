"""What tests of streams share."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from scaledsgd.io import model_file as store

COMMAND = [sys.executable, "-m", "scaledsgd"]
PAIRS = {"row": "user", "column": "item", "value": "value"}
EVENTS = {"user": "user", "item": "item"}


def events(count: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Users and items of which one in twenty was never seen before, entries and comparisons."""
    rng = np.random.default_rng(seed)
    item = rng.integers(0, 200, count)
    new = rng.random(count) < 0.05
    item[new] = 1000 + np.arange(new.sum())
    j, k = rng.integers(0, 80, (2, count))
    return {
        "user": rng.integers(0, 60, count),
        "item": item,
        "value": np.abs(np.sin(item)) + 0.1,
        "i": rng.integers(0, 80, count) + np.arange(count) // 50,
        "j": j,
        "k": np.where(j == k, k + 1, k),
        "target": (j < k).astype(float),
    }


def write(path: Path, table: dict) -> str:
    """The table in the format that the name asks for; ids are words in text."""
    if path.suffix == ".parquet":
        columns = {name: values[: len(values) // 2] for name, values in table.items()}
        rest = {name: values[len(values) // 2 :] for name, values in table.items()}
        pq.write_table(pa.table(columns), path.with_name("1.parquet"), row_group_size=700)
        pq.write_table(pa.table(rest), path.with_name("2.parquet"), row_group_size=333)
        return str(path.with_name("*.parquet"))
    rows = list(zip(*(values.tolist() for values in table.values()), strict=True))
    if path.suffix == ".csv":
        lines = [",".join(table), *(",".join(f"{v}" for v in row) for row in rows)]
    else:
        lines = [json.dumps(dict(zip(table, row, strict=True))) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


def same(one: Path, other: Path) -> bool:
    """Whether two models are the same to the bit, clocks aside."""
    (a, told), (b, heard) = store.read(one), store.read(other)
    for facts in (told, heard):
        facts.pop("seconds")
    arrays = a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
    return arrays and told == heard
