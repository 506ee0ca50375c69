"""Evaluation: episodes of many members at once, off the training device, each with its own record.

`Evaluator(tasks).run(make_act(agent.act, states, key), seeds=..., step=...)` returns one `Episode` per member and
episode. Names are imported on first use, so that the worker processes never load JAX.
"""

import importlib
from typing import Any

_HOME = {
    "Act": "policy",
    "Policy": "policy",
    "make_act": "policy",
    "Episode": "records",
    "score": "records",
    "success_by_step": "records",
    "Evaluator": "evaluator",
    "record_video": "video",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"uhm.evaluate.{_HOME[name]}"), name)
    raise AttributeError(f"module 'uhm.evaluate' has no attribute '{name}'")
