"""A snapshot answers as the model did, whatever the model learns meanwhile."""

from __future__ import annotations

import asyncio
import json
import time

import numpy as np
import pytest
from serving_models import KINDS, matrix, recommender

from scaledsgd import load
from scaledsgd.io.ids import Ids
from scaledsgd.serving.access import Problem
from scaledsgd.serving.answers import Counter, Question
from scaledsgd.serving.event_log import EventLog
from scaledsgd.serving.learner import LearnerThread, Live, Snapshot, WatcherThread, columns_of

NEW = {
    "recommender": [{"user": "u1", "item": "new"}, {"user": "somebody", "item": "rye/1"}],
    "ranker": [{"user": "u1", "item": "new"}, {"user": "u1", "item": "rye/1"}],
    "matrix": [{"row": 9, "column": 2, "value": 4.0}, {"row": 1, "column": 9, "value": 7.0}],
    "distances": [{"row": "p1", "column": "new", "value": 0.5}],
}


def answers(model) -> list:
    """All that a model can be asked."""
    found = [np.concatenate(model.factors.sides), model.singular_values_, model.residual]
    if hasattr(model, "similar"):
        found += [*model.similar("rye/1"), *model.recommend(user="u1", k=5)]
        found += [*model.recommend(items=["rye/1", "tea/2"], k=5), *model.explain("u1", "rye/2")]
    else:
        names = [model.ids[side].names() if model.ids else np.arange(3) for side in (0, 1)]
        found.append(model.predict((names[0][:3], names[1][:3])))
    return [np.asarray(one, object).tolist() for one in found]


@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_model_does_not_see_what_is_learned(kind):
    model = KINDS[kind]()
    model.name_rows()
    still, before = model.frozen(), answers(model)
    assert answers(still) == before
    columns = columns_of(model)
    for event in NEW[kind]:
        model.partial_fit({name: [event[name]] for name in columns}, **columns)
    assert answers(still) == before
    assert answers(model) != before
    assert model.factors.d > still.factors.d


@pytest.mark.parametrize("kind", ["recommender", "ranker"])
def test_a_lot_of_questions_is_answered_as_each_of_them_would_be(kind):
    model = KINDS[kind]()
    seen = "filter_seen" if kind == "recommender" else "exclude_seen"
    asked = [
        ("u1", 3, [], False), ("nobody", 3, [], False), ("u2", 2, ["rye/1"], False),
        ("u3", 4, [], True), ("u2", 1, ["tea/1", "tea/2"], True),
    ]  # fmt: skip
    loop = asyncio.new_event_loop()
    counter = Counter(Live(Snapshot(model, 7)), {}, loop)
    futures = [loop.create_future() for _ in asked]
    lot = [Question(*one, future) for one, future in zip(asked, futures, strict=True)]
    told = counter._answered(lot)
    counter.stop()
    answers = [next(answer for future, answer in told if future is one) for one in futures]
    loop.close()
    assert len(told) == len(asked)
    assert isinstance(answers[1], Problem) and "nobody" in answers[1].detail
    for (user, k, gone, with_seen), answer in zip(asked, answers, strict=True):
        if user != "nobody":
            items, scores = model.recommend(user=user, k=k + len(gone), **{seen: not with_seen})
            left = [n for n, item in enumerate(items) if item not in gone][:k]
            found = json.loads(answer)["items"]
            assert [one["item"] for one in found] == [items[n] for n in left]
            # A lot's products may be added up in another order: the last digit is not the same.
            scored = [one["score"] for one in found]
            assert scored == pytest.approx([scores[n] for n in left], abs=2e-6)


@pytest.mark.parametrize("names", [["a", "b", "c", "d"], [7, 3, 2**40, 9]])
def test_frozen_names_end_where_they_were_frozen(names):
    ids = Ids(names[:2])
    still = ids.frozen()
    assert ids.frozen() is still
    ids.add(names)
    ids.keep(3)
    later = ids.frozen()
    for frozen, count in ((still, 2), (later, 3)):
        assert frozen.names().tolist() == names[:count] and len(frozen) == count
        assert frozen.find(np.array(names, object)).tolist() == [
            n if n < count else -1 for n in range(4)
        ]
        assert names[0] in frozen and names[3] not in frozen
        with pytest.raises(ValueError, match="never seen"):
            frozen.rows(names[3:])


def followed(path, log, events) -> LearnerThread:
    learner = LearnerThread(load(path), log, path, {"user": "user", "item": "item"}, pace=0.01)
    learner.start()
    for one in events:
        log.append_now([one])
    until = time.monotonic() + 20
    while learner.behind and time.monotonic() < until:
        time.sleep(0.01)
    return learner


def test_events_are_learned_once_over_two_lives(tmp_path):
    path = tmp_path / "m.model"
    recommender().save(path)
    weight = load(path).trainer.seen[0].sum()
    events = [{"user": f"new{n}", "item": f"rye/{n}"} for n in range(6)]
    with EventLog(tmp_path / "log") as log:
        learner = followed(path, log, events[:4])
        assert learner.live.snapshot.learned == 4 and learner.live.snapshot.number >= 1
        assert set(learner.live.snapshot.model.recommend("new3", k=24)[0]).isdisjoint({"rye/3"})
        learner.stop()
        log.append_now(events[4:])  # while nobody learns
    with EventLog(tmp_path / "log") as log:
        learner = followed(path, log, [])
        assert learner.live.snapshot.learned == 6
        learner.stop()
    seen = load(path).trainer.seen
    assert seen[0].sum() == pytest.approx(weight + 6)


def test_a_checkpoint_that_fails_does_not_stop_learning(tmp_path, monkeypatch):
    path = tmp_path / "m.model"
    recommender().save(path)
    monkeypatch.setattr("scaledsgd.serving.learner._AGAIN", 0.01)
    with EventLog(tmp_path / "log") as log:
        learner = LearnerThread(
            load(path), log, path, {"user": "user", "item": "item"}, checkpoint=1e-9, pace=0.01
        )
        real = type(learner.stream.model).save

        def full(self, path):
            raise OSError(f"{path}: cannot be written (No space left on device)")

        monkeypatch.setattr(type(learner.stream.model), "save", full)
        learner.start()
        for n in range(3):
            log.append_now([{"user": "x", "item": f"rye/{n}"}])
            until = time.monotonic() + 20
            while learner.behind and time.monotonic() < until:
                time.sleep(0.01)
        assert learner.live.snapshot.learned == 3
        time.sleep(0.1)
        assert "No space left" in learner.live.trouble and not learner.live.failure
        monkeypatch.setattr(type(learner.stream.model), "save", real)
        log.append_now([{"user": "x", "item": "rye/5"}])
        until = time.monotonic() + 20
        while learner.live.trouble and time.monotonic() < until:
            time.sleep(0.01)
        learner.stop()
    assert load(path).position_in(f"log {log.name}")["events"] == 4


def test_a_new_model_file_is_taken_up_and_a_broken_one_is_not(tmp_path):
    path = tmp_path / "m.model"
    matrix().save(path)
    live = Live(Snapshot(load(path)))
    watcher = WatcherThread(path, load, live, every=0.02)
    watcher.start()
    recommender().save(path)
    until = time.monotonic() + 20
    while live.snapshot.number == 0 and time.monotonic() < until:
        time.sleep(0.01)
    assert type(live.snapshot.model).__name__ == "Recommender"
    path.write_bytes(b"half of a model")
    while not live.trouble and time.monotonic() < until:
        time.sleep(0.01)
    watcher.stop()
    assert live.snapshot.number == 1 and "m.model" in live.trouble
