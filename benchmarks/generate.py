"""How much of the oracle's own speed is left when `uhm.data.generate.make` does the work. Target: 90 % per worker.

    python benchmarks/generate.py --environments cube-double-play pointmaze-medium-navigate --episodes 5 --workers 2

The bare loop is OGBench's environment and oracle in one process, nothing recorded and nothing written. `make` is timed
from the first finished episode to the last, so that start-up, which does not grow with the data, is left out; the last
column has the whole time. The bare loop runs before and after, as a machine's speed wanders; the mean counts. The ratio
by the clock is only worth something on an idle machine. The ratio of processor time, of all processes of `make` less
those of a run with one episode per worker, holds on a busy one too, but does not see waiting.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Generator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from uhm import tasks
from uhm.data import collect, generate


def bare_rate(name: str, episodes: int) -> tuple[float, float]:
    """Rows per second of OGBench's own pieces and nothing else, and per second of processor time."""
    warnings.simplefilter("ignore")
    import gymnasium
    import ogbench  # noqa: F401

    environment = tasks.environment(name)
    rows = collect.recipe(environment).rows
    options: dict[str, Any] = {"terminate_at_goal": False, "max_episode_steps": rows, "disable_env_checker": True}
    np.random.seed(0)
    if environment.domain == "manipulation":
        env = gymnasium.make(f"{environment.gym_name}-v0", mode="data_collection", **options)
        run = _arm_episode
    else:
        env = gymnasium.make(f"{environment.gym_name}-v0", **options)
        run = _point_episode
    run(env, environment)  # the first compiles
    start, start_cpu = time.perf_counter(), time.process_time()
    for _ in range(episodes):
        run(env, environment)
    wall, cpu = time.perf_counter() - start, time.process_time() - start_cpu
    return episodes * rows / wall, episodes * rows / cpu


def _arm_episode(env: Any, environment: tasks.Environment) -> None:
    from uhm.data.collect_manipulation import _oracles

    oracles = _oracles(env, environment.gym_name.split("-")[0], environment.name.endswith("noisy"))
    observation, info = env.reset()
    oracle = oracles[info["privileged/target_task"]]
    oracle.reset(observation, info)
    done = False
    while not done:
        observation, _, terminated, truncated, info = env.step(oracle.select_action(observation, info))
        done = terminated or truncated
        if oracle.done:
            target = env.unwrapped.set_new_target(p_stack=0.1)
            oracle = oracles[target[1]["privileged/target_task"]]
            oracle.reset(*target)


def _point_episode(env: Any, environment: tasks.Environment) -> None:
    env.reset()
    maze, done = env.unwrapped, False
    while not done:
        direction = maze.get_oracle_subgoal(maze.get_xy(), maze.cur_goal_xy)[0] - maze.get_xy()
        action = direction / (np.linalg.norm(direction) + 1e-6) + np.random.normal(0, 0.5, 2)
        _, _, terminated, truncated, _ = env.step(np.clip(action, -1, 1))
        done = terminated or truncated


def _cpu() -> float:
    """Processor time so far of this process and of all that it has started and that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def make_rate(name: str, episodes: int, workers: int) -> tuple[float, float, int, float]:
    """Rows per second and worker of `make` at full speed, its whole time, its episodes and its processor time."""
    environment = tasks.environment(name)
    times: list[float] = []
    run = generate._run

    def timed(*args: Any) -> Generator[Any, None, None]:
        for job in run(*args):
            times.append(time.perf_counter())
            yield job

    generate._run = timed
    start, start_cpu = time.perf_counter(), _cpu()
    with tempfile.TemporaryDirectory() as folder:
        generate.make(environment, Path(folder), episodes=episodes, workers=workers, progress=False)
    whole, cpu = time.perf_counter() - start, _cpu() - start_cpu
    generate._run = run
    rows = (len(times) - workers) * collect.recipe(environment).rows
    return rows / (times[-1] - times[workers - 1]) / workers, whole, len(times), cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", nargs="+", default=["cube-double-play", "pointmaze-medium-navigate"])
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.bare:
        print(*bare_rate(args.bare, args.episodes))
        return

    def bare(name: str) -> np.ndarray:
        command = [sys.executable, __file__, "--bare", name, "--episodes", str(args.episodes)]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        output = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True).stdout
        return np.array([float(rate) for rate in output.split()])

    columns = ("environment", "bare loop", "make, per worker", "ratio", "ratio of processor time", "whole run")
    table = Table(*columns, title="transitions per second")
    for name in args.environments:
        before = bare(name)
        rate, whole, made, cpu = make_rate(name, args.episodes, args.workers)
        _, _, few_made, few_cpu = make_rate(name, args.workers, args.workers)
        cpu_rate = (made - few_made) * collect.recipe(tasks.environment(name)).rows / (cpu - few_cpu)
        reference, cpu_reference = (before + bare(name)) / 2
        ratio, cpu_ratio = f"{rate / reference:.2f}", f"{cpu_rate / cpu_reference:.2f}"
        table.add_row(name, f"{reference:,.0f}", f"{rate:,.0f}", ratio, cpu_ratio, f"{whole:.1f} s")
    Console().print(table)


if __name__ == "__main__":
    main()
