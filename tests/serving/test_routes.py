"""What the routes answer, to whom, and how much they put up with."""

from __future__ import annotations

import http.client
import inspect
import json
import socket
import time

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from serving_models import BOTH, KINDS, OLD, READ, TOKENS, WRITE, matrix, recommender

from scaledsgd import Client
from scaledsgd.serving.access import Limits, Tokens, tokens_in, tokens_of
from scaledsgd.serving.answers import Known
from scaledsgd.serving.api import LIVE, ROUTES, openapi
from scaledsgd.serving.client import ServerError


def ask(server, method: str, path: str, body=None, token: str | None = None, **headers):
    """Status, headers and body of an answer."""
    talk = http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)
    if token:
        headers["authorization"] = f"Bearer {token}"
    content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    talk.request(method, path, content, headers)
    answer = talk.getresponse()
    told = answer.read()
    talk.close()
    kind = answer.headers["content-type"] or ""
    return answer.status, answer.headers, json.loads(told) if "json" in kind else told


def close(found, expected) -> bool:
    return found[0].tolist() == expected[0].tolist() and np.allclose(found[1], expected[1], 1e-4)


# --- The same answers as the models' -----------------------------------------------------------


@pytest.mark.parametrize("kind", ["recommender", "ranker"])
def test_items_are_answered_as_by_the_model(served, kind):
    model = KINDS[kind]()
    client = served(model).client
    assert close(client.similar("rye/1", 5), model.similar("rye/1", 5))
    assert close(client.recommend("u1", 4), model.recommend(user="u1", k=4))
    liked = ["rye/1", "tea/3"]
    assert close(client.recommend(items=liked, k=4), model.recommend(items=liked, k=4))
    assert close(client.explain("u1", "rye/2"), model.explain("u1", "rye/2"))
    assert close(
        client.explain(items=liked, item="rye/2"), model.explain(items=liked, item="rye/2")
    )
    several, scores = client.recommend(["u1", "u2"], 3)
    own = model.recommend(user=["u1", "u2"], k=3)
    assert several.tolist() == own[0].tolist() and np.allclose(scores, own[1], 1e-4)
    assert np.allclose(client.singular_values_, model.singular_values_)
    for wrong in (lambda: client.recommend("nobody"), lambda: client.similar("nothing")):
        with pytest.raises(ValueError, match="was never seen in training"):
            wrong()


def test_what_is_left_out_and_what_is_chosen_from(served):
    model = recommender()
    server = served(model)
    best = model.recommend("u1", 6)[0].tolist()
    assert server.client.recommend("u1", 3, exclude=best[:2])[0].tolist() == best[2:5]
    assert server.client.recommend("u1", 9, candidates=best[3:5])[0].tolist() == best[3:5]
    path = f"/v1/recommend/u1?k=3&exclude={best[0].replace('/', '%2F')}"
    told = ask(server, "GET", path)[2]
    assert [one["item"] for one in told["items"]] == best[1:4]
    had = set(model.recommend("u1", 24, filter_seen=False)[0]) - set(model.recommend("u1", 24)[0])
    told = ask(server, "GET", "/v1/recommend/u1?k=24&seen=true")[2]
    assert had <= {one["item"] for one in told["items"]}


def test_many_who_ask_at_once_get_their_own_answers(served):
    from concurrent.futures import ThreadPoolExecutor

    model = recommender()
    server = served(model)
    users = [f"u{n % 40}" for n in range(200)] + ["nobody"] * 3

    def one(user):
        with Client(server.url) as client:
            try:
                return client.recommend(user, 3)
            except ValueError:
                return None

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(one, users))
    assert found[-3:] == [None] * 3
    assert all(close(f, model.recommend(u, 3)) for f, u in zip(found[:-3], users, strict=False))


def test_entries_and_points_are_answered_as_by_the_model(served):
    model = matrix()
    client = served(model).client
    assert np.allclose(client.predict(([0, 1], [0, 2])), model.predict(([0, 1], [0, 2])))
    with pytest.raises(ValueError, match="row 99 was never seen"):
        client.predict(([99], [0]))
    points = KINDS["distances"]()
    client = served(points).client
    assert np.allclose(client.points_, points.points_, atol=1e-5)
    assert np.allclose(client.predict((["p1"], ["p2"])), points.predict((["p1"], ["p2"])))
    with pytest.raises(ValueError, match="DistanceCompleter has nothing to recommend"):
        client.recommend(items=["p1"])


def test_code_moves_from_a_model_to_a_client_by_one_line():
    own = {"send", "model", "live", "search", "close"}  # what only a server has
    models = [type(make()) for make in KINDS.values()]
    asked = {name for name in vars(Client) if not name.startswith("_")} - own
    assert asked > {"recommend", "similar", "explain", "predict", "partial_fit", "points_"}
    for name in asked:
        having = [kind for kind in models if hasattr(kind, name)]
        assert having, name
        if name in ("recommend", "explain"):
            taken = inspect.signature(getattr(Client, name)).parameters
            for kind in having:
                wanted = inspect.signature(getattr(kind, name)).parameters
                assert set(wanted) - {"asked", "ratings"} <= set(taken), (kind, name)


def test_known_entries_are_compared(served):
    model = matrix()
    known = Known(np.array([1, 2, 99]), np.array([1, 1, 0]), np.array([4.0, 9.0, 1.0]))
    told = ask(served(model, known=known), "GET", "/v1/residuals")[2]
    assert told["count"] == 2  # row 99 is none of the model's
    assert told["rms"] == pytest.approx(np.sqrt(3.0**2 / 2), rel=1e-3)  # 2 x 3, said to be 9
    assert told["worst_rows"][0]["row"] == 2 and told["worst"][0]["value"] == 9.0


def test_search_finds_titles_and_ids(served):
    titles = {f"rye/{n}": f"Rye bread, number {n}" for n in range(12)}
    client = served(titles=titles).client
    assert client.search("number 3")[0] == {"id": "rye/3", "title": "Rye bread, number 3"}
    assert client.search("tea/1", limit=1) == [{"id": "tea/1", "title": ""}]
    assert client.search("u3", "users", limit=1)[0]["id"] == "u3"
    assert client.search("nothing like that") == []


# --- Events ---------------------------------------------------------------------------------------


def until(condition, seconds=20.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "in vain"
        time.sleep(0.02)


def test_events_in_every_spelling_are_learned(served):
    server = served(learn=True)
    lines = b'{"user": "b", "item": "rye/1"}\n\n{"user": "c", "item": "rye/2"}\n'
    for body, kind, count in (
        ({"user": "a", "item": "tea/1"}, "application/json", 1),
        ([{"user": "a", "item": "tea/2"}], "application/json", 1),
        (lines, "application/x-ndjson", 2),
    ):
        status, _, told = ask(server, "POST", "/v1/events", body, **{"content-type": kind})
        assert (status, told) == (202, {"accepted": count})
    events = {"who": ["d", "d"], "what": ["rye/3", "rye/4"]}
    server.client.partial_fit(events, user="who", item="what")
    until(lambda: next(server.client.live())["events"] == 6)
    for user in "abcd":
        assert len(server.client.recommend(user, 3)[0]) == 3


def test_a_request_with_one_bad_event_is_refused_whole(served):
    server = served(learn=True)
    good = {"user": "a", "item": "tea/1"}
    for bad, why in (
        ({"user": "a"}, "event 1: no 'item': events have user, item"),
        ({"user": "a", "item": "b", "c": 1}, "event 1: 'c' is not a member"),
        ({"user": "a", "item": ""}, "event 1: item: '' is not a word"),
        ({"user": "a", "item": None}, "event 1: item: None is not a word"),
        ("text", "event 1: not a JSON object"),
    ):
        status, headers, told = ask(server, "POST", "/v1/events", [good, bad])
        assert status == 422 and why in told["detail"]
        assert headers["content-type"] == "application/problem+json"
    assert ask(server, "POST", "/v1/events", b"{")[0] == 400
    assert ask(server, "POST", "/v1/events", [])[0] == 422
    line, half = b'{"user": "a", "item": "tea/1"}', b'{"user": "a", "item": "tea/1"}, {"user": "b"'
    for lines in ([line + b", " + line], [half, b'"item": "tea/2"}'], [b"[]"], [b"1", line]):
        body = b"\n".join(lines)
        status, _, _ = ask(
            server, "POST", "/v1/events", body, **{"content-type": "application/x-ndjson"}
        )
        assert status == 400
    assert server.service.log.accepted == 0


def test_an_event_that_is_sent_again_counts_once(served):
    server = served(learn=True)
    for _ in range(3):
        server.client.send([{"user": "a", "item": "tea/1"}], key="one and the same")
    assert server.service.log.accepted == 1


def test_a_disk_that_is_full_is_told_and_answers_go_on(served, monkeypatch):
    server = served(learn=True)

    def full(handle, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("scaledsgd.serving.event_log._write_all", full)
    status, _, told = ask(server, "POST", "/v1/events", {"user": "a", "item": "tea/1"})
    assert (status, told["status"]) == (503, 503) and "No space left on device" in told["detail"]
    assert len(server.client.recommend("u1", 3)[0]) == 3
    monkeypatch.undo()
    assert ask(server, "POST", "/v1/events", {"user": "a", "item": "tea/1"})[0] == 202


def test_a_server_that_does_not_learn_says_so(served):
    status, _, told = ask(served(), "POST", "/v1/events", {"user": "a", "item": "tea/1"})
    assert status == 404 and "--learn" in told["detail"]


def test_learning_that_is_too_far_behind_takes_no_more(served):
    server = served(learn=True, limits=Limits(behind=-1))
    status, headers, _ = ask(server, "POST", "/v1/events", {"user": "a", "item": "tea/1"})
    assert status == 429 and headers["retry-after"]


# --- The description ------------------------------------------------------------------------------


def test_an_event_is_described_by_what_the_model_learns_from(served):
    told = ask(served(learn=True), "GET", "/openapi.json")[2]["paths"]["/v1/events"]["post"]
    schema = Draft202012Validator(told["requestBody"]["content"]["application/json"]["schema"])
    one = {"user": "a", "item": "tea/1"}
    assert [schema.is_valid(body) for body in (one, [one, one], {}, one | {"x": 1})] == [
        True, True, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_answer_is_as_described(served, kind):
    known = Known(np.array(["p1"], object), np.array(["p2"], object), np.array([1.0]))
    patient = Limits(seconds=60)  # kernels may have to be compiled, on a busy machine
    server = served(kind, known=known if kind == "distances" else None, limits=patient)
    described = ask(server, "GET", "/openapi.json")[2]
    assert described == json.loads(json.dumps(openapi(server.service.columns)))
    assert {(m.upper(), p) for p, ms in described["paths"].items() for m in ms} == {
        (route.method, route.path) for route in ROUTES
    }
    bodies = {
        "/v1/recommend": {"items": ["rye/1"]},
        "/v1/explain": {"items": ["rye/1"], "item": "rye/2"},
        "/v1/predict": {"row": ["p1"], "column": ["p2"]} if kind == "distances" else
            {"i": ["rye/1"], "j": ["rye/2"], "k": ["tea/1"]} if kind == "ranker" else
            {"row": [1], "column": [2]},
        "/v1/events": {},
    }  # fmt: skip
    answered = set()
    for route in ROUTES:
        if route.name == "live":
            continue
        path = route.path.replace("{user}", "u1").replace("{item}", "rye%2F1")
        status, headers, told = ask(server, route.method, path, bodies.get(route.path))
        answers = described["paths"][route.path][route.method.lower()]["responses"]
        content = answers[str(status)]["content"]
        schema = content[headers["content-type"].partition(";")[0]]["schema"]
        schema = described["components"]["schemas"]["Problem"] if "$ref" in schema else schema
        if "json" in headers["content-type"]:
            Draft202012Validator(schema).validate(told)
        answered |= {route.name} if status == 200 else set()
    able = server.client.model()["abilities"]
    wanted = {"points": "points", "residuals": "residuals", "predict": "predict", "map": "item_map"}
    assert {wanted.get(one, one) for one in able} <= answered
    Draft202012Validator(LIVE).validate(next(server.client.live()))


def test_what_no_schema_allows_is_one_clear_line(served):
    server = served()
    for path, body, why in (
        ("/v1/recommend/u1?k=0", None, "k: 0 is less than the minimum of 1"),
        ("/v1/recommend/u1?k=-3", None, "k: -3 is less than the minimum of 1"),
        ("/v1/recommend/u1?k=12345678901", None, "k: 12345678901 is greater than the maximum"),
        ("/v1/recommend/u1?k=x", None, "k: 'x' is not of type 'integer'"),
        ("/v1/recommend/u1?n=3", None, "'n' is not a parameter: there are k, exclude, seen"),
        ("/v1/recommend", {"items": ["rye/1"], "user": "u1"}, "valid under each of"),
        ("/v1/recommend", {"items": []}, "items: [] should be non-empty"),
        ("/v1/recommend", b"{", "not JSON"),
        ("/v1/recommend", b'{"items": [NaN]}', "NaN is not a number"),
        ("/v1/predict", {"row": [1], "column": [1, 2]}, "nothing to predict"),
        ("/v1/similar/%ff", None, "is not UTF-8"),
    ):
        status, headers, told = ask(server, "GET" if body is None else "POST", path, body)
        assert status in (400, 404) and headers["content-type"] == "application/problem+json"
        assert why in told["detail"] and "\n" not in told["detail"]
    assert ask(server, "GET", "/v1/nothing")[0] == 404
    assert ask(server, "DELETE", "/v1/model")[0] == 405


def test_metrics_are_counted(served):
    server = served(learn=True)
    server.client.recommend("u1")
    server.client.send([{"user": "a", "item": "tea/1"}])
    told = ask(server, "GET", "/metrics")[2].decode()
    assert 'scaledsgd_requests_total{route="/v1/recommend",status="200"} 1' in told
    assert "scaledsgd_events_accepted_total 1" in told


# --- Who may ask ----------------------------------------------------------------------------------


def test_without_a_good_token_there_is_nothing_but_the_shell(served):
    server = served(learn=True, tokens=TOKENS)
    for route in ROUTES:
        path = route.path.replace("{user}", "u1").replace("{item}", "rye%2F1")
        body = {} if route.method == "POST" else None
        for token in (None, "wrong" * 5, OLD, READ[:-1]):
            status, headers, _ = ask(server, route.method, path, body, token)
            if route.name == "alive":
                assert status == 200
            else:
                assert status == 401 and headers["www-authenticate"] == "Bearer", (path, token)
    for path in ("/", "/page.js", "/page.css", "/uplot.js", "/uplot.css", "/icon.svg"):
        status, headers, told = ask(server, "GET", path)
        assert status == 200 and len(told) > 100
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    assert ask(server, "GET", "/nothing")[0] == 401
    assert ask(server, "GET", "/v1/model", authorization=f"Basic {BOTH}")[0] == 401


def test_a_token_is_for_reading_or_for_writing(served):
    server = served(learn=True, tokens=TOKENS)
    event = {"user": "a", "item": "tea/1"}
    for token, reads, writes in ((READ, 200, 403), (WRITE, 403, 202), (BOTH, 200, 202)):
        assert ask(server, "GET", "/v1/model", token=token)[0] == reads
        assert ask(server, "POST", "/v1/events", event, token)[0] == writes
    with pytest.raises(ServerError, match="not for sending events") as caught:
        Client(server.url, READ).send([event])
    assert caught.value.status == 403


def test_tokens_of_files_and_of_the_environment(tmp_path):
    path = tmp_path / "tokens"
    path.write_text(
        f"# ours\nread {READ}\nwrite {WRITE} 2001-01-01\nread,write {BOTH} 2999-01-01\n"
    )
    tokens = Tokens(tokens_in(path))
    assert [tokens.roles(t) for t in (READ, WRITE, BOTH)] == [{"read"}, set(), {"read", "write"}]
    for wrong in ("", "read", "admin x", f"read {READ} tomorrow"):
        path.write_text(wrong)
        with pytest.raises(ValueError, match="tokens"):
            tokens_in(path)
    with pytest.raises(ValueError, match="at least 16"):
        Tokens([("short", ("read",), None)])
    found = Tokens(tokens_of({"SCALEDSGD_READ_TOKEN": READ, "SCALEDSGD_WRITE_TOKEN": WRITE}))
    assert found.roles(READ) == {"read"} and found.roles(WRITE) == {"write"}


def test_without_tokens_only_this_machine_is_asked_by_name(served):
    server = served()
    assert ask(server, "GET", "/v1/model")[0] == 200
    assert ask(server, "GET", "/v1/model", host="elsewhere.example:80")[0] == 403


def test_other_pages_may_ask_only_if_they_are_named(served):
    origin = {"origin": "https://shop.example"}
    assert "access-control-allow-origin" not in ask(served(), "GET", "/health/live", **origin)[1]
    server = served(how={"cors": ("https://shop.example",)})
    told = ask(server, "GET", "/health/live", **origin)[1]
    assert told["access-control-allow-origin"] == "https://shop.example"


# --- How much -------------------------------------------------------------------------------------


def test_bodies_that_are_too_long_or_too_slow_are_refused(served):
    server = served(learn=True, limits=Limits(body=1000, seconds=0.3, events=3))
    assert ask(server, "POST", "/v1/events", b"x" * 1001)[0] == 413
    assert ask(server, "POST", "/v1/events", [{}] * 4)[0] == 413
    head = b"POST /v1/events HTTP/1.1\r\nhost: localhost\r\n"
    for rest, status in (
        (b"content-length: 900\r\n\r\nhalf", b" 408 "),
        (b"transfer-encoding: chunked\r\n\r\n" + (b"1F4\r\n" + b"y" * 500 + b"\r\n") * 3, b" 413 "),
    ):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as talk:
            talk.sendall(head + rest)
            assert status in talk.recv(100)


def test_what_is_no_request_is_told_as_a_problem(served):
    with socket.create_connection(("127.0.0.1", served().port), timeout=10) as talk:
        talk.sendall(b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\n\r\n")
        head, _, body = talk.makefile("rb").read().partition(b"\r\n\r\n")
    assert b" 400 " in head and b"problem+json" in head and json.loads(body)["status"] == 400


def test_whoever_asks_too_often_waits(served):
    server = served(limits=Limits(rate=5))
    statuses = [ask(server, "GET", "/health/live")[0] for _ in range(12)]
    assert statuses[:5] == [200] * 5 and 429 in statuses


def test_a_head_that_does_not_come_is_not_waited_for(served, monkeypatch):
    monkeypatch.setattr("scaledsgd.serving.server._HEAD", 0.2)
    server = served()
    for sent in (b"", b"GET / HT"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as talk:
            talk.sendall(sent)
            assert talk.recv(100) == b""
    live = server.client.live()  # what is being answered goes on for longer
    begun = time.monotonic()
    while time.monotonic() - begun < 0.8:
        next(live)
    live.close()


def test_live_views_are_counted(served):
    server = served(limits=Limits(streams=1))
    view = server.client.live()
    next(view)
    with pytest.raises(ServerError, match="1 live views are open"):
        next(Client(server.url).live())
    view.close()
