"""Models are safe to ask, to save and to read while one thread learns."""

import threading

import numpy as np
import pytest

from scaledsgd import ItemRanker, MatrixCompleter, Recommender, load


def entries(rng, n: int) -> dict:
    return {"u": rng.integers(0, 300, n), "v": rng.integers(0, 200, n), "y": rng.random(n)}


MODELS = {
    "matrix": (
        lambda: MatrixCompleter(rank=8, random_state=0),
        {"row": "u", "column": "v", "value": "y"},
        lambda model: model.predict(([0, 1, 2], [0, 1, 2])),
    ),
    "ranker": (
        lambda: ItemRanker(rank=8, random_state=0),
        {"user": "u", "item": "v"},
        lambda model: model.similar(3, k=5),
    ),
    "recommender": (
        lambda: Recommender(rank=8, random_state=0),
        {"user": "u", "item": "v"},
        lambda model: model.recommend(3, k=5),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_a_model_is_asked_and_saved_while_it_learns(kind, tmp_path):
    make, names, ask = MODELS[kind]
    rng, asked, wrong = np.random.default_rng(0), [], []
    first = {"u": np.arange(300) % 300, "v": np.arange(300) % 200, "y": np.ones(300)}
    first = {name: np.concatenate([first[name]] * 2) for name in first}
    first["v"][300:] = (first["v"][300:] + 1) % 200
    model = make().partial_fit(first, **names)
    batches, done = [entries(rng, 3000) for _ in range(20)], threading.Event()
    # New ones in every batch: what is asked must not see half of the growth.
    for n, batch in enumerate(batches):
        batch["u"][:50] = 1000 + 50 * n + np.arange(50)
        batch["v"][:50] = 1000 + 50 * n + np.arange(50)

    def follow() -> None:
        try:
            for batch in batches:
                model.partial_fit(batch, **names)
        except Exception as why:
            wrong.append(why)
        finally:
            done.set()

    def question(number: int) -> None:
        path = tmp_path / f"m{number}"
        while not done.is_set() or not asked:
            try:
                assert all(np.isfinite(part).all() for part in np.atleast_2d(ask(model)))
                model.save(path)
                again = load(path)
                with model.locked():
                    assert len(model.ids[1]) == model.factors.shape[1]
                assert len(again.ids[1]) == again.factors.shape[1]
                asked.append(number)
            except Exception as why:
                wrong.append(why)
                return

    threads = [threading.Thread(target=follow)]
    threads += [threading.Thread(target=question, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert len(asked) >= 3
    alone = make().partial_fit(first, **names)
    for batch in batches:
        alone.partial_fit(batch, **names)
    assert np.array_equal(alone.factors.compact(), model.factors.compact())
