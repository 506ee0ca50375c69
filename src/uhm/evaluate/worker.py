"""The program that an evaluator starts once per core: it steps the environments of its lanes when told to.

A byte on its input names a half of the lanes; it steps those it owns and answers with a byte. It ends with its input,
so that it never outlives the evaluator. It never loads JAX.
"""

import contextlib
import json
import os
import sys
import traceback
import warnings
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from uhm import envs
from uhm.envs.own import Simulator
from uhm.errors import UhmError, with_place
from uhm.evaluate.board import FAILED, HALVES, READY, RESET, STEP, Board
from uhm.tasks import Environment


class Simulation:
    """One environment for all tasks of its family, whose episodes depend on task and seeds alone."""

    def __init__(self, environment: Environment, **options: Any):
        made = envs.make(environment.tasks[0], **options)
        assert made.spec is not None
        self.limit: Any = made.spec.max_episode_steps
        self.env: Any = made.unwrapped  # the wrappers only check and count
        kind = type(self.env)
        if isinstance(getattr(kind, "action_space", None), property):
            # An arm's reset takes random steps by an action space that is built anew, unseeded, at every access.
            self.env.__class__ = type(kind.__name__, (kind,), {"action_space": self.env.action_space})
        # The first reset compiles the model and takes another path than all later ones: it is nobody's episode.
        self.env.reset(seed=0)

    def reset(self, task: int, seeds: Sequence[int]) -> np.ndarray:
        """The first observation. Later resets clear all traces of the episode before (checked in every family)."""
        self._choose(task)
        in_global, in_env, in_actions = (int(seed) for seed in seeds)
        np.random.seed(in_global)  # mazes draw from it
        self.env.action_space.seed(in_actions)
        return self.env.reset(seed=in_env)[0]

    def _choose(self, task: int) -> None:
        self.env._reward_task_id = task


class OwnSimulation(Simulation):
    """One environment of the user's own, which is one task; whether its resets leave traces is up to it."""

    def __init__(self, simulator: Simulator, **options: Any):
        self.env = simulator.make(**options)
        self.limit = self.env.limit

    def _choose(self, task: int) -> None:
        pass


def step_lane(board: Board, lane: int, simulation: Simulation) -> None:
    """Do what the board says for one lane."""
    command = board.command[lane]
    if command == STEP:
        observation, reward, terminated, truncated, info = simulation.env.step(board.action[lane].copy())
        board.observation[lane] = observation
        board.return_[lane] += reward
        board.discounted[lane] += board.discount[lane] ** board.length[lane] * reward
        length = board.length[lane] = board.length[lane] + 1
        if terminated or truncated or length >= simulation.limit:
            board.success[lane] = float(info["success"])
            board.done[lane] = 1
    elif command == RESET:
        board.observation[lane] = simulation.reset(int(board.task[lane]), board.seeds[lane])
        board.return_[lane] = board.discounted[lane] = board.length[lane] = board.done[lane] = 0


def main() -> None:
    warnings.simplefilter("ignore")
    gymnasium.logger.min_level = gymnasium.logger.ERROR
    # Simulators may print: not where the answers go.
    answers = os.dup(1)
    os.dup2(2, 1)
    try:
        setup = json.loads(sys.argv[1])
        own = setup["own"]
        what: Any = Simulator(**setup["what"]) if own else Environment(**setup["what"])
        board = Board(setup["file"], setup["lanes"], what.observation_size, what.action_size)
        lanes = [board.owned(half, setup["worker"], setup["workers"]) for half in HALVES]
        simulations = {lane: (OwnSimulation if own else Simulation)(what) for half in lanes for lane in half}
        os.write(answers, READY)
        while message := os.read(0, 1):
            for lane in lanes[message[0]]:
                step_lane(board, lane, simulations[lane])
            os.write(answers, READY)
    except Exception as error:
        traceback.print_exc()
        reason = " ".join(str(error).split()) if isinstance(error, UhmError) else with_place(error)
        with contextlib.suppress(OSError):
            os.write(answers, FAILED + reason.encode())
        os._exit(1)
    os._exit(0)  # a simulator may leave threads behind that would keep this process, and who waits for its end


if __name__ == "__main__":
    main()
