"""Evaluation: episodes of many members at once, off the training device, each with its own record.

`Evaluator(tasks).run(make_act(agent.act, states, key), seeds=..., step=...)` returns one `Episode` per member and
episode. Names are imported on first use, so that the worker processes never load JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uhm.evaluate.evaluator import Evaluator
    from uhm.evaluate.policy import Act, Policy, make_act
    from uhm.evaluate.records import Episode, beside, by_step, complete, means_by_step, score
    from uhm.evaluate.video import record_video

__all__ = [
    "Act",
    "Episode",
    "Evaluator",
    "Policy",
    "beside",
    "by_step",
    "complete",
    "make_act",
    "means_by_step",
    "record_video",
    "score",
]

_HOME = {"Evaluator": "evaluator", "Act": "policy", "Policy": "policy", "make_act": "policy", "record_video": "video"}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module(f"uhm.evaluate.{_HOME.get(name, 'records')}"), name)
    raise AttributeError(f"module 'uhm.evaluate' has no attribute '{name}'")
