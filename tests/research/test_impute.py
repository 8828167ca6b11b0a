"""The benchmark of imputers: a table for each data set, and one line for what is none."""

import json

from commands import runner


def test_the_command_makes_a_page_and_json(capsys, tmp_path):
    command = ("bench", "impute", "--quick", "--seeds", "1", "--out", str(tmp_path), "--json")
    code, out, _ = runner(capsys)(*command)
    found = json.loads(out)["wine"]
    assert code == 0 and (tmp_path / "index.html").exists()
    assert found["error"]["ours, columns"] < 0.9 * found["error"]["the mean"]
    assert found["error"].keys() == found["seconds"].keys() and len(found["error"]) == 6


def test_a_table_that_is_not_there_is_said(capsys):
    code, _, told = runner(capsys)("bench", "impute", "iris")
    assert code == 2 and "'iris' is not one of diabetes, wine, breast_cancer, digits" in told
