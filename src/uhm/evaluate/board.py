"""The memory that an evaluator shares with its workers: one row per environment, called a lane.

The evaluator writes commands, seeds and actions; a worker writes observations and, at the end of an episode, how it
went. Who may touch a lane is settled by one-byte messages: it belongs to its worker from the message until the answer.
Lanes come in two halves, even and odd, so that one half is stepped while the policy acts for the other.
"""

import mmap
from typing import IO

import numpy as np

IDLE, RESET, STEP = 0, 1, 2  # commands
READY, FAILED = b".", b"!"  # first byte of an answer; after FAILED comes the reason
HALVES = (0, 1)


class Board:
    """The lanes' columns as arrays over one shared file."""

    def __init__(self, file: IO[bytes] | int, lanes: int, observation_size: int, action_size: int):
        fields = [
            ("command", np.int8, ()),
            ("done", np.int8, ()),
            ("task", np.int32, ()),
            ("seeds", np.uint32, (3,)),
            ("length", np.int64, ()),
            ("success", np.float64, ()),
            ("return_", np.float64, ()),
            ("discount", np.float64, ()),
            ("discounted", np.float64, ()),
            ("observation", np.float32, (observation_size,)),
            ("action", np.float32, (action_size,)),
        ]
        row = np.dtype(fields, align=True)
        number = file if isinstance(file, int) else file.fileno()
        if not isinstance(file, int):
            file.truncate(lanes * row.itemsize)
        rows = np.frombuffer(mmap.mmap(number, lanes * row.itemsize), row)
        self.lanes = lanes
        self.command, self.done, self.task = rows["command"], rows["done"], rows["task"]
        self.seeds, self.length = rows["seeds"], rows["length"]
        self.success, self.return_ = rows["success"], rows["return_"]
        self.discount, self.discounted = rows["discount"], rows["discounted"]
        self.observation, self.action = rows["observation"], rows["action"]

    def half(self, half: int) -> range:
        return range(half, self.lanes, len(HALVES))

    def owned(self, half: int, worker: int, workers: int) -> range:
        """The lanes of a half that a worker steps: every worker has as many as the others, give or take one."""
        return range(half + len(HALVES) * worker, self.lanes, len(HALVES) * workers)
