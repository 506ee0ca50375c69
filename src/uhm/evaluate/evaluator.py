"""Episodes for every member of a population, in environments that live in worker processes.

A lane is one environment. Lanes belong to no member: whichever is free takes the next episode, first all of member 0,
then all of member 1, and so on. So memory does not grow with the population, no lane idles before the last episodes,
and a batch for the policy mostly reads the weights of one member. Exactly `episodes` are started per member and all
are finished, so short ones do not count more. An episode depends on its seeds alone, not on lanes or workers.
"""

import math
import os
import threading
from collections import deque
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from uhm.envs.own import Simulator
from uhm.errors import UhmError
from uhm.evaluate import rooms
from uhm.evaluate.board import HALVES, IDLE, RESET, STEP, Board
from uhm.evaluate.memory import free_megabytes
from uhm.evaluate.policy import Act, Groups, act_rows, by_member, with_values
from uhm.evaluate.pool import Pool
from uhm.evaluate.records import Episode, brief, episode_seeds
from uhm.tasks import ROOMS, Domain, Environment, Task

# Lanes per worker, half of them stepped per message. A step of the arm takes milliseconds and 200 MB. In a maze it
# takes a fraction of one and 3 MB, and the policy's share is large unless its batches are: a humanoid's step takes 270
# microseconds of a core, and the policy 43 more with 64 lanes.
_LANES: dict[Domain, int] = {"manipulation": 8, "locomotion": 128}
_MEGABYTES: dict[Domain, int] = {"manipulation": 200, "locomotion": 4}
_WORKER_MEGABYTES = 500
_SHARE_OF_MEMORY = 0.5
_NOBODY = -1


class Evaluator:
    """Evaluates a population again and again; `tasks[i]` is the task of member i, all of one environment.

    What learned from logs is evaluated in a `simulator` of the user's own.

    Worker processes start with the first `run` and stay until `close`. `workers` is their number (default: one per
    core), `lanes` the number of environments they hold together (default: by domain and free memory).
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        *,
        episodes: int = 50,
        workers: int | None = None,
        lanes: int | None = None,
        simulator: Simulator | None = None,
    ):
        for name, value in (("episodes", episodes), ("workers", workers), ("lanes", lanes)):
            if value is not None and value < 1:
                raise UhmError(f"{name} is {value}, and must be at least 1.")
        names = sorted({task.environment.name for task in tasks})
        if len(names) != 1:
            raise UhmError(f"the members of one evaluation share an environment, not {', '.join(names) or 'none'}.")
        self.tasks = tuple(tasks)
        self.episodes = episodes
        self._environment, self._simulator = tasks[0].environment, simulator
        self.workers, self.lanes = _sizes(self._environment, len(tasks) * episodes, workers, lanes)
        self._pool: Pool | None = None
        self._closed = False
        self._one_at_a_time = threading.Lock()

    def run(
        self, act: Act, *, seeds: Sequence[int], step: int, discounts: Sequence[float] | None = None
    ) -> list[Episode]:
        """One evaluation, ordered by member and episode. Blocks; call it in a thread to go on training.

        With `discounts`, those of the members, the records have discounted returns; and with a policy that knows
        values, what it expected.
        """
        for name, values in (("seeds", seeds), ("discounts", seeds if discounts is None else discounts)):
            if len(values) != len(self.tasks):
                raise UhmError(f"there are {len(values)} {name} for {len(self.tasks)} members; give one per member.")
        with self._one_at_a_time:
            self._refuse_if_closed()
            if self._environment is ROOMS:
                records, first = rooms.run(act, self.tasks, seeds, discounts, step, self.episodes)
                return with_values(act, records, first)
            try:
                records, first = _Run(self, self._ready_pool(), act, seeds, discounts, step).results()
            except BaseException:
                # Workers may be in the middle of anything: the next run, if any, starts afresh.
                self._stop()
                raise
            return with_values(act, records, first)

    def _ready_pool(self) -> Pool:
        pool = self._pool
        if pool is None:
            pool = self._pool = Pool(self._simulator or self._environment, self.lanes, self.workers)
            self._refuse_if_closed()  # again, for `close` may have come too early to see the pool
            pool.wait_ready()
        return pool

    def _refuse_if_closed(self) -> None:
        if self._closed:
            raise UhmError("the evaluator is closed; make a new one.")

    def close(self) -> None:
        """End the workers, also in the middle of a run in another thread, which then fails."""
        self._closed = True
        self._stop()

    def _stop(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def __enter__(self) -> "Evaluator":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Run:
    """One evaluation in progress."""

    def __init__(
        self,
        evaluator: Evaluator,
        pool: Pool,
        act: Act,
        seeds: Sequence[int],
        discounts: Sequence[float] | None,
        step: int,
    ):
        self._tasks, self._seeds, self._discounts, self._step = evaluator.tasks, seeds, discounts, step
        self._pool, self._act = pool, act
        self._board: Board = pool.board
        size = self._board.observation.shape[1]
        self._first = np.zeros((len(self._tasks), evaluator.episodes, size), np.float32)
        self._waiting = deque((m, e) for m in range(len(self._tasks)) for e in range(evaluator.episodes))
        # Of each lane's episode; the member is _NOBODY in a lane that has nothing left to do.
        self._member = np.full(self._board.lanes, _NOBODY)
        self._episode = np.zeros(self._board.lanes, int)
        # Of each half: how many lanes have an episode, whether some began or ended one since the last step, and who
        # acts for which. A step of all lanes takes a few milliseconds, so this is not found out anew every time.
        self._episodes_in = [0 for _ in HALVES]
        self._changed = [False for _ in HALVES]
        self._groups: list[Groups] = [[] for _ in HALVES]
        self._done: list[Episode] = []
        self._count = 0

    def results(self) -> tuple[list[Episode], Float[np.ndarray, "members episodes S"]]:
        """The records in order, and the first observations of their episodes."""
        for half in HALVES:
            for lane in self._board.half(half):
                self._next(lane)
        under_way = [half for half in HALVES if self._tell(half)]
        # While the policy acts for one half, the workers step the other.
        while under_way:
            half = under_way.pop(0)
            self._pool.wait(half)
            self._collect(half)
            self._choose_actions(half)
            if self._tell(half):
                under_way.append(half)
        return sorted(self._done, key=lambda record: (record.member, record.episode)), self._first

    def _tell(self, half: int) -> bool:
        busy = self._episodes_in[half] > 0
        if busy:
            self._pool.tell(half)
        return busy

    def _next(self, lane: int) -> None:
        """Give the lane its next episode, or none."""
        board, half = self._board, lane % len(HALVES)
        self._changed[half] = True
        if not self._waiting:
            self._member[lane], board.command[lane] = _NOBODY, IDLE
            return
        member, episode = self._waiting.popleft()
        self._member[lane], self._episode[lane], board.command[lane] = member, episode, RESET
        self._episodes_in[half] += 1
        task = self._tasks[member]
        board.task[lane] = task.index
        board.discount[lane] = self._discounts[member] if self._discounts else 1.0
        board.seeds[lane] = episode_seeds(self._seeds[member], self._step, task.index, episode)

    def _collect(self, half: int) -> None:
        """Record finished episodes and say what each lane does next."""
        board, mine = self._board, slice(half, None, len(HALVES))
        changed, self._changed[half] = self._changed[half], False
        if changed:
            new = half + len(HALVES) * np.flatnonzero(board.command[mine] == RESET)
            self._first[self._member[new], self._episode[new]] = board.observation[new]
            board.command[mine] = np.where(self._member[mine] == _NOBODY, IDLE, STEP)
        for lane in half + len(HALVES) * np.flatnonzero(board.done[mine]):
            member, episode = int(self._member[lane]), int(self._episode[lane])
            success = float(board.success[lane])  # a simulator of the user's own need not know
            result = (None if math.isnan(success) else success, float(board.return_[lane]), int(board.length[lane]))
            names = (self._tasks[member].name, int(self._seeds[member]), self._step, episode)
            discounted = brief(float(board.discounted[lane])) if self._discounts else None
            self._done.append(Episode(member, *names, *result, discounted))
            board.done[lane] = 0
            self._episodes_in[half] -= 1
            self._next(int(lane))
        if changed or self._changed[half]:
            self._groups[half] = by_member(self._member[mine], board.command[mine] == STEP)

    def _choose_actions(self, half: int) -> None:
        groups, mine = self._groups[half], slice(half, None, len(HALVES))
        if not groups:
            return
        actions = np.zeros_like(self._board.action[mine])
        answers = act_rows(self._act, len(self._tasks), groups, self._board.observation[mine], self._count)
        self._count += 1
        for rows, answer in answers:
            actions[rows] = np.asarray(answer)[: len(rows)]
        # A policy that has diverged fails its own episodes and must not break the simulators of the others.
        actions[np.isnan(actions)] = 0.0
        self._board.action[mine] = np.clip(actions, -1.0, 1.0)


def _sizes(environment: Environment, jobs: int, workers: int | None, lanes: int | None) -> tuple[int, int]:
    """How many processes and environments: no more than there are episodes, nor than fit into memory."""
    domain = environment.domain
    workers = workers or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if lanes is None:
        free = free_megabytes() * _SHARE_OF_MEMORY
        workers = max(1, min(workers, int(free / (_WORKER_MEGABYTES + 2 * _MEGABYTES[domain]))))
        fit = int((free - workers * _WORKER_MEGABYTES) / _MEGABYTES[domain])
        lanes = max(1, min(workers * _LANES[domain], fit))
    lanes = min(lanes, jobs)
    return min(workers, lanes), lanes
