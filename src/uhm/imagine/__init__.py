"""Futures as a run's model imagines them, beside the true ones: as arrays, as pictures, as a film, as numbers.

from uhm.imagine import futures

found = futures("runs/rooms", task="rooms-task1", n=[1, 2, 4])
found.model, found.truth  # states [horizons, starts, draws, S] after 1, 2, ... steps from (found.s, found.a)
"""

from collections.abc import Sequence
from pathlib import Path

from uhm.imagine.dream import Dream, Futures
from uhm.imagine.write import write
from uhm.train.restore import Step

__all__ = ["Dream", "Futures", "futures", "write"]


def futures(
    run: Path | str,
    task: str | None = None,
    n: Sequence[int] | None = None,
    *,
    starts: int = 4,
    draws: int = 128,
    seed: int | None = None,
    step: Step = "last",
    mix: bool = True,
    member: int | None = None,
) -> Futures:
    """What the model of a run says of the states 1 .. max(n) steps ahead, and the truth as far as it can be had.

    The member is the first one of `task` (default: the run's first) and `seed`, or that at the place `member`; `step`
    is a checkpoint as `load_run` takes it. With `mix` the truth takes the data's actions at the share beta that the
    model is taught with, where that can be done.
    """
    return Dream(run, task, seed, step, mix, member).futures(n, starts, draws)
