"""The program that `uhm.data.generate` starts once per core: it makes the episodes it is told to, one after the other.

It builds one simulator and keeps it. Told an episode on a line of its input, it answers on a line of its output once
the episode is on disk. It ends when its input does, at once, so that it never outlives the process that started it.
"""

import contextlib
import json
import os
import queue
import sys
import threading
import traceback
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from uhm.data import collect
from uhm.data.parts import Parts
from uhm.errors import UhmError
from uhm.tasks import Environment


def episode_rng(seed: int, split: int, episode: int) -> np.random.Generator:
    """All randomness of one episode, the same whoever makes it and whatever was made before."""
    return np.random.default_rng(np.random.SeedSequence([seed, split, episode]))


def main() -> None:
    # Simulators warn, and may print: neither may reach the line on which the answers go.
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    setup = json.loads(sys.argv[1])
    jobs: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
    threading.Thread(target=_read_jobs, args=(jobs,), daemon=True).start()

    parts = Parts(Path(setup["parts"]))
    collector = None
    while True:
        split, episode = jobs.get()
        answer: dict[str, Any] = {"split": split, "episode": episode}
        try:
            collector = collector or _collector(setup)
            parts.save(split, episode, collector.episode(episode_rng(setup["seed"], split, episode)))
        except Exception as error:
            with contextlib.suppress(OSError):  # where the disk is full, there is no room for a log either
                traceback.print_exc()
            answer["error"] = _one_line(error)
        print(json.dumps(answer), file=answers)
        if "error" in answer:  # nobody wants what is waiting, and how much would be made depended on the clock
            os._exit(1)


def _read_jobs(jobs: queue.SimpleQueue) -> None:
    for line in sys.stdin:
        jobs.put(tuple(json.loads(line)))
    os._exit(0)


def _collector(setup: dict[str, Any]) -> collect.Collector:
    environment = Environment(**setup["environment"])
    expert = None if setup["expert"] is None else Path(setup["expert"])
    return collect.recipe(environment).build(environment, setup["rows"], expert)


def _one_line(error: Exception) -> str:
    if isinstance(error, UhmError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:
        return f"cannot write {error.filename or 'it'}: {error.strerror}"
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


if __name__ == "__main__":
    main()
