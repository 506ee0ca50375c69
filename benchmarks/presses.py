"""What a policy for puzzle-3x3 can be worth: exactly, for a pace of so many steps a press.

    uhm data make puzzle-3x3-play --episodes 250 --data-dir data
    python benchmarks/presses.py --data-dir data --pace 29 33 36

A press turns a light and its neighbours, and on 3 x 3 lights every change of lights is made by just one set of presses.
Each step costs the number of lights that are not as in the goal, so the best order of the presses is a small dynamic
program over the 512 sets. Agents log Q in the mean over stored states, while evaluations begin where tasks begin: this
tells how much the one and the other should be.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from rich.console import Console
from rich.table import Table

from uhm import envs, tasks
from uhm.data.source import data_directory, find

SIDE = 3
BUTTONS = SIDE * SIDE
SETS = 1 << BUTTONS


def lights_of() -> Int[np.ndarray, " sets"]:
    """The lights that each set of presses turns, both as bits."""
    places = [divmod(button, SIDE) for button in range(BUTTONS)]
    turned = [sum(1 << i for i, b in enumerate(places) if abs(a[0] - b[0]) + abs(a[1] - b[1]) <= 1) for a in places]
    found = np.zeros(SETS, int)
    for button, lights in enumerate(turned):
        found ^= np.where(np.arange(SETS) >> button & 1, lights, 0)
    return found


def values(pace: int, gamma: float) -> Float[np.ndarray, " sets"]:
    """V* of having to make each set of presses, of which each takes `pace` steps."""
    lights, best = lights_of(), np.zeros(SETS)
    while_pressing = (1 - gamma**pace) / (1 - gamma)
    for presses in range(1, SETS):  # a part of a set is a smaller number
        parts = [presses ^ (1 << button) for button in range(BUTTONS) if presses >> button & 1]
        cost = int(lights[presses]).bit_count() * while_pressing
        best[presses] = -cost + gamma**pace * max(best[part] for part in parts)
    return best


def needed(states: Bool[np.ndarray, "*rows 9"], goal: Bool[np.ndarray, " 9"]) -> Int[np.ndarray, "*rows"]:
    """The set of presses from states of the buttons to a goal."""
    presses_of = np.argsort(lights_of())  # each change of lights has one
    return presses_of[((states != goal) << np.arange(BUTTONS)).sum(-1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--pace", type=int, nargs="+", default=[33], help="steps that a press takes")
    options = parser.parse_args()
    environment = tasks.environment("puzzle-3x3-play")
    (path,) = find(environment, data_directory(options.data_dir))
    with np.load(path) as file:
        stored = file["button_states"].astype(bool)
    puzzle: Any = envs.make(environment.tasks[0]).unwrapped
    table = Table("pace", "task", "presses, start", "stored", "V*, start", "stored", box=None)
    for pace in options.pace:
        best = values(pace, environment.discount)
        for name, about in zip(environment.tasks, puzzle.task_infos, strict=True):
            goal = np.asarray(about["goal_button_states"], bool)
            first, all_of_them = needed(np.asarray(about["init_button_states"], bool), goal), needed(stored, goal)
            presses = [np.mean([int(one).bit_count() for one in np.atleast_1d(some)]) for some in (first, all_of_them)]
            numbers = f"{presses[0]:.0f}", f"{presses[1]:.2f}", f"{best[first]:.0f}", f"{best[all_of_them].mean():.0f}"
            table.add_row(str(pace), name.name, *numbers)
    Console().print(table)


if __name__ == "__main__":
    main()
