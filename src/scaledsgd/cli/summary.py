"""What `fit` tells about the model that it made."""

from __future__ import annotations

from typing import Any

from ..estimators.base import Learner
from ..estimators.recommender import Recommender


def summary(model: Learner, seconds: float) -> dict[str, Any]:
    """Names and values, as a person reads them. Args: seconds, that it took to read and to fit."""
    facts = _of_recommender(model) if isinstance(model, Recommender) else _of_matrix(model)
    return {"kind": type(model).__name__} | facts | {"seconds": round(seconds, 3)}


def _of_matrix(model: Learner) -> dict[str, Any]:
    history, last = model.history_, model.history_.records[-1]
    rows, columns = model.factors.shape
    tested = getattr(model, "test_auc_", None)
    held = getattr(model.trainer, "held_error", None)
    used, values = model.effective_rank_, model.singular_values_
    return {
        "rows": rows,
        "columns": columns,
        "rank": model.rank,
        "epochs": round(last["epoch"], 3),
        "stopped_by": history.stopped,
        "mean_loss": last["loss"],
        # Of the directions in use: of the others it would be that of rounding.
        "condition_number": float(values[0] / values[used - 1]) if used and values[0] else 1.0,
        "effective_rank": used,
        "repairs": history.repairs,
    } | {
        name: value
        for name, value in (("held_out_error", held), ("test_auc", tested))
        if value is not None
    }


def _of_recommender(model: Recommender) -> dict[str, Any]:
    policy = model.policy_
    found = {
        "users": len(model.user_ids),
        "items": len(model.item_ids),
        "choices": int(model.histories.table.nnz),
        "rank": model.rank,
        "loss": policy.loss,
    }
    if policy.loss == "softmax":
        found |= {
            "product": "cosine" if policy.cosine else "dot",
            "temperature": policy.tau,
            "contrast": policy.c,
        }
    found |= {
        "ridge": policy.ridge,
        "unobserved_weight": policy.alpha0,
        "epochs": round(model.history_.records[-1]["epoch"]),
    }
    # Held out: nothing, where nobody has three choices.
    for who, prefix in ((policy.loss, ""), ("popularity", "popularity_")):
        for name, value in zip(
            ("ndcg@20", "recall@20"), model.measures_.get(who, ()), strict=False
        ):
            found[prefix + name] = round(value, 4)
    return found
