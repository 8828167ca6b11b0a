"""One rule about ids, whichever way they come in."""

import csv

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from scaledsgd.io.ids import Ids, id_column, typed_id
from scaledsgd.io.readers import open_file
from scaledsgd.io.tables import InputError

LAST = 2**63 - 1


def from_csv(values, folder):
    with (folder / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id"], *([value] for value in values)])
    return open_file(folder / "a.csv").table(["id"], [])["id"]


def array(values):
    """As floats if one is; else signed, or unsigned where that is too small."""
    whole = all(isinstance(value, int) for value in values)
    return np.array(values, None if not whole else np.uint64 if max(values) > LAST else np.int64)


def from_parquet(values, folder):
    pq.write_table(pa.table({"id": array(values)}), folder / "a.parquet")
    return open_file(folder / "a.parquet").table(["id"], [])["id"]


def from_arrays(values, folder):
    np.savez(folder / "a.npz", id=array(values))
    return open_file(folder / "a.npz").table(["id"], [])["id"]


def from_json(values, folder):
    ids, bad = id_column(values, int)
    if bad:
        raise InputError(bad[0][1])
    return ids


def from_json_texts(values, folder):
    return from_json([str(value) for value in values], folder)


def from_arrow(values, folder):
    return from_json(array(values), folder)


WAYS = [from_csv, from_parquet, from_arrays, from_json, from_json_texts, from_arrow]


@pytest.mark.parametrize("way", WAYS)
def test_numbers_from_0_up_that_fit_64_bits(way, tmp_path):
    assert way([0, 7, LAST], tmp_path).tolist() == [0, 7, LAST]
    for wrong in (-1, LAST + 1):
        with pytest.raises(InputError, match=f"{wrong}'? is not a whole number from 0 up that"):
            way([7, wrong], tmp_path)


@pytest.mark.parametrize("way", [from_parquet, from_arrays, from_json, from_arrow])
def test_floats_are_ids_where_they_are_whole(way, tmp_path):
    assert way([0.0, 7.0], tmp_path).tolist() == [0, 7]
    for wrong in (1.5, 2.0**63, np.inf, np.nan):
        with pytest.raises(InputError, match="is not a whole number from 0 up that fits 64 bits"):
            way([7.0, wrong], tmp_path)


def test_in_memory_numbers_may_be_negative():
    ends = [-(2**63), LAST]
    assert Ids(ends).names().tolist() == ends
    assert Ids(np.array([LAST], np.uint64)).names().tolist() == [LAST]
    for wrong in ([LAST + 1], [-(2**63) - 1], [2.0**63], np.array([2**63], np.uint64)):
        with pytest.raises((TypeError, ValueError), match="of 64 bits"):
            Ids(wrong)


@pytest.mark.parametrize("word", ["007", "+7", "7.0", "\u0667", " 7", "1_0", "x"])
def test_only_the_usual_spelling_is_a_number(word, tmp_path):
    numbers, words = Ids([7, 10]), Ids(["7", word])
    assert typed_id("7", numbers, 0) == 7 and typed_id(word, numbers, 0) is None
    assert typed_id(word, words, 0) == word and typed_id(word, None, 99) is None
    assert numbers.find(np.array(["7", word, str(LAST + 1)], object)).tolist() == [0, -1, -1]
    assert words.find(np.array([8, 7])).tolist() == [-1, 0]
    assert [row for row, _ in id_column(["7", word], int)[1]] == [1]


def test_row_numbers_are_typed_up_to_the_last_row():
    assert typed_id("4", None, 5) == 4 and typed_id("5", None, 5) is None
