"""The program that tries a simulator of the user's own: one reset, and one step. It tells on its output how it went."""

import json
import os
import sys
from typing import Any

import numpy as np

from uhm.envs.own import LIMIT, Simulator
from uhm.errors import UhmError, with_place


def trial(simulator: Simulator) -> dict[str, Any]:
    env = simulator.make()
    try:
        env.reset(seed=0)
        env.step(np.zeros(simulator.action_size, np.float32))
    except UhmError as error:
        raise UhmError(f"{simulator.name} cannot be used: {error}.") from error
    except Exception as error:  # whatever the user's own module does
        raise UhmError(f"{simulator.name} cannot be used: {with_place(error)}.") from error
    space = env.action_space
    largest = float(np.abs([space.low, space.high]).max()) if space.is_bounded() else 1.0
    return {"limited": env.limit != LIMIT, "largest_action": largest}


def main() -> None:
    # Simulators may print: not where the answer goes.
    answers = os.dup(1)
    os.dup2(2, 1)
    try:
        found = trial(Simulator(**json.loads(sys.argv[1])))
    except UhmError as error:
        found = {"error": str(error)}
    os.write(answers, json.dumps(found).encode())
    os._exit(0)  # a simulator may leave threads behind that nobody ends, or fail when it is closed


if __name__ == "__main__":
    main()
