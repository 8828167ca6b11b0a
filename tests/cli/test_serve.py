"""The command: what it refuses, what it says, and that a kill loses nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from commands import runner
from serving_models import matrix, recommender

from scaledsgd import Client, load

COMMAND = [sys.executable, "-m", "scaledsgd", "serve"]


def test_what_is_no_good_is_one_line(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = runner(capsys)
    matrix().save("m.model")
    recommender().save("r.model")
    Path("bad.txt").write_text("admin x\n")
    Path("anchors.csv").write_text("id,x\n1,2\n")
    for arguments, why in (
        ((), "serve needs a MODEL or --playground, and not both"),
        (("m.model", "--playground"), "serve needs a MODEL or --playground, and not both"),
        (("none.model",), "none.model: no such model file"),
        (("m.model", "--learn", "--watch"), "--watch is for a server that does not learn"),
        (("m.model", "--host", "0.0.0.0", "--no-token"), "--no-token is for 127.0.0.1 alone"),
        (("m.model", "--host", "nowhere.invalid"), "cannot listen there"),
        (("m.model", "--port", "99999"), "cannot listen there"),
        (("m.model", "--tokens", "bad.txt"), "bad.txt, line 1: not `read TOKEN`"),
        (("m.model", "--rate", "-1"), "--rate -1.0: not a number above 0"),
        (("m.model", "--learn", "--weight", "--port", "0"), "events of this model have no weight"),
        (("r.model", "--anchors", "anchors.csv", "--port", "0"), "--anchors are points of a model"),
    ):
        code, out, err = run("serve", *arguments)
        assert (code, out) == (2, "") and why in err and err.count("\n") == 1, (arguments, err)
    assert {"m.model", "r.model", "bad.txt", "anchors.csv"} == set(os.listdir())


def start(*options: str) -> tuple[subprocess.Popen, dict]:
    server = subprocess.Popen(
        [*COMMAND, *options, "--port", "0", "--json"], stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert server.stdout is not None and server.stderr is not None
    line = server.stdout.readline()
    assert line, server.stderr.read()
    return server, json.loads(line)


@pytest.mark.slow
def test_killed_and_started_again_it_has_learned_all_that_it_acknowledged_once(tmp_path):
    path = tmp_path / "m.model"
    recommender().save(path)
    sent = 0
    for life in range(4):
        server, told = start(str(path), "--learn", "--checkpoint", "0.1")
        with Client(told["url"], told["token"]) as client:
            for n in range(30):
                client.send([{"user": f"new {life} {n}", "item": f"rye/{k}"} for k in range(3)])
                sent += 3
            if life == 3:
                for state in client.live():
                    if state["behind"] == 0:
                        break
                server.send_signal(signal.SIGTERM)
                assert server.wait(30) == 0
                assert "stopped: SIGTERM" in server.stderr.read()
            else:
                time.sleep(0.1 * life)
                server.kill()
                server.wait()
        server.stdout.close()
        server.stderr.close()
    model = load(path)
    new = [n for n, name in enumerate(model.user_ids.names()) if name.startswith("new")]
    assert len(new) == sent / 3
    assert np.allclose(model.trainer.seen[0][new], 3)  # each of three events weighs one, once


@pytest.mark.slow
def test_the_playground_says_where_it_is(tmp_path):
    server, told = start("--playground", "--world", "matrix", "--no-browser")
    try:
        with Client(told["url"], told["token"]) as client:
            facts = client.model()
            assert facts["kind"] == "MatrixCompleter" and facts["learning"]
            view = client.live()
            first = next(view)["events"]
            while next(view)["events"] == first:  # its readers go on reading
                pass
            view.close()
        assert told["page"].endswith(f"#token={told['token']}")
    finally:
        server.terminate()
        assert server.wait(30) == 0
        server.stdout.close()
        server.stderr.close()


@pytest.mark.slow
def test_elsewhere_than_on_loopback_tokens_are_separate(tmp_path):
    path = tmp_path / "m.model"
    recommender().save(path)
    server, told = start(str(path), "--host", "0.0.0.0", "--learn")
    try:
        assert told["read_token"] != told["write_token"] and "token" not in told
        Client(told["url"], told["write_token"]).send([{"user": "a", "item": "rye/1"}])
        assert Client(told["url"], told["read_token"]).model()["kind"] == "Recommender"
    finally:
        server.terminate()
        server.wait(30)
        server.stdout.close()
        server.stderr.close()
