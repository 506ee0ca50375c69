"""What a run's policies expect and obtain from states that are stored in the data, and not from where tasks begin.

    uhm train uhm puzzle-3x3-play --run runs/puzzle
    python benchmarks/stored_starts.py runs/puzzle --states 50 --steps 1000

Agents log Q in the mean over stored states, and evaluations start elsewhere, where a policy may do much better than
anywhere in the data. This puts the simulator of an arm into stored states and lets the policy go on from there:

    expected      the critic's value of the policy there, in the mean over states
    obtained      the discounted return within so many steps
    at worst      the same if an unsolved episode goes on for ever at its last reward
    solved        how many of the episodes

the middle two with their standard errors over states.

`error` is how far one simulated step of the stored action is from the stored one, in the median over states: the
simulator really is where the data were if it is small.
"""

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from uhm import envs, tasks
from uhm.data.source import data_directory, find
from uhm.errors import UhmError
from uhm.train import load_run
from uhm.train.restore import Restored

AT_ONCE = 20  # simulators; each takes 200 MB


class Stored(NamedTuple):
    """Rows of the data with all that the simulator needs, and the rows after them."""

    observations: np.ndarray
    actions: np.ndarray
    after: np.ndarray
    physics: tuple[np.ndarray, ...]  # qpos, qvel and, where there are any, the states of buttons


class Outcome(NamedTuple):
    """One number per episode."""

    obtained: np.ndarray
    at_worst: np.ndarray
    solved: np.ndarray


def stored(environment: tasks.Environment, data_dir: Path | None, count: int, seed: int) -> Stored:
    """`count` random rows that have one after them in their trajectory."""
    paths = find(environment, data_directory(data_dir))
    with np.load(paths[0]) as file:
        if "qpos" not in file:
            raise UhmError(f"{paths[0]} has no qpos: a simulator cannot be put into its states.")
        rows = np.random.default_rng(seed).choice(np.flatnonzero(~file["terminals"].astype(bool)), count, replace=False)
        physics = tuple(file[name][rows] for name in ("qpos", "qvel", "button_states") if name in file)
        observations = file["observations"]
        return Stored(observations[rows], file["actions"][rows], observations[rows + 1], physics)


def parts(rows: Stored, size: int) -> list[Stored]:
    """The same rows, at most `size` at a time."""
    cuts = [slice(start, start + size) for start in range(0, len(rows.actions), size)]
    s, a, after, physics = rows
    return [Stored(s[cut], a[cut], after[cut], tuple(x[cut] for x in physics)) for cut in cuts]


def put(env: Any, physics: tuple[np.ndarray, ...]) -> None:
    qpos, qvel, *buttons = physics
    env.set_state(qpos.astype(float), qvel.astype(float), *buttons)
    # Whether it is solved is known from the last step, which was somewhere else: find out again, with nothing moved.
    env.pre_step()
    env.post_step()


def step_error(env: Any, rows: Stored, most: int = 50) -> float:
    """The largest difference in a simulated observation, the median over rows."""
    found = []
    for row in range(min(most, len(rows.actions))):
        put(env, tuple(part[row] for part in rows.physics))
        observation = env.step(rows.actions[row].astype(float))[0]
        found.append(float(np.abs(observation - rows.after[row]).max()))
    return float(np.median(found))


def outcome(rewards: np.ndarray, ends: np.ndarray, discount: float) -> Outcome:
    """From rewards [steps, episodes] and the step at which each is solved, or `steps` where it is not.

    The reward of the step at which it is solved counts, and nothing after it.
    """
    steps = len(rewards)
    counted = np.arange(steps)[:, None] <= ends
    obtained = (discount ** np.arange(steps)[:, None] * rewards * counted).sum(0)
    solved = ends < steps
    return Outcome(obtained, obtained + ~solved * discount**steps / (1 - discount) * rewards[-1], solved)


def roll(policy: Any, made: list[Any], rows: Stored, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Rewards and ends of `policy` from every row, each in a simulator of its own, of which there may be more."""
    observations, count = rows.observations.copy(), len(rows.actions)
    rewards, ends = np.zeros((steps, count)), np.full(count, steps)
    for row, env in enumerate(made[:count]):
        put(env, tuple(part[row] for part in rows.physics))
    for step in range(steps):
        going = np.flatnonzero(ends == steps)
        if not len(going):
            break
        actions = np.asarray(policy(observations))  # of all: another number of rows is another program
        for row in going:
            observation, rewards[step, row], _, _, info = made[row].step(actions[row].astype(float))
            observations[row] = observation
            if info["success"]:  # of the state before the step
                ends[row] = step
    return rewards, ends


def _mean(values: np.ndarray) -> str:
    """With its standard error."""
    return f"{values.mean():.0f} ± {values.std(ddof=1) / np.sqrt(len(values)):.0f}"


def simulators(task: tasks.Task, count: int) -> list[Any]:
    made: list[Any] = [envs.make(task).unwrapped for _ in range(count)]
    for env in made:
        env.reset(seed=0)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--states", type=int, default=50)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    run: Restored = load_run(options.run)
    if run.plan.environment.domain != "manipulation" or run.plan.environment.own:
        raise SystemExit("only arms can be put into stored states: name a run on cube, scene or puzzle.")
    data_dir = options.data_dir or (None if run.plan.data_dir is None else Path(run.plan.data_dir))
    rows = stored(run.plan.environment, data_dir, options.states, options.seed)
    table = Table("task", "seed", "step", "error", "expected", "obtained", "at worst", "solved", box=None)
    for index, (member, discount) in enumerate(zip(run.plan.members(), run.plan.discounts(), strict=True)):
        made = simulators(tasks.task(member.task), min(options.states, AT_ONCE))
        error = step_error(made[0], rows)
        rolled = [roll(run.policy(index), made, part, options.steps) for part in parts(rows, len(made))]
        rewards, ends = (np.concatenate(one, axis=-1) for one in zip(*rolled, strict=True))
        found = outcome(rewards, ends, discount)
        expected = float(np.mean(run.value(index)(rows.observations)))
        numbers = [f"{expected:.0f}", *(_mean(values) for values in (found.obtained, found.at_worst))]
        told = [member.task, str(member.seed), f"{int(run.state.step):,}", f"{error:.1g}", *numbers]
        table.add_row(*told, f"{found.solved.mean():.0%}")
        print(*told, f"{found.solved.mean():.0%}", flush=True)  # a table comes only at the end
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
