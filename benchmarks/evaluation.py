"""How much of the environments' own speed is left when `Evaluator` runs them with a policy. Target: 80 %.

    python benchmarks/evaluation.py --environments cube-double-play antmaze-large-navigate --members 4 --workers 2

`gym` is `gymnasium.make`'s environment, stepped with tiny actions in as many processes as the evaluator has workers
and nothing else; `bare` is the same without Gymnasium's wrappers, which is what the evaluator steps. Both run before
and after, as a machine's speed wanders; the mean counts. `evaluator` is a whole `run`, resets included, by an actor of
4 x 512 whose weights are random, with workers started and programs compiled. The number of episodes is a multiple of
the lanes, so that the end of the run, where lanes fall idle, does not count: real runs have hundreds of episodes.

Where a step is as short as in pointmaze, two cores do not reach 80 %. There two processes step 25,000 times a second,
78 microseconds of a core for each, so that a policy may take 19. A 4 x 512 actor is 1.6 million operations a row: 18
microseconds for a batch of 128 on one core that does nothing else, which is 90 billion operations a second. What comes
on top: 29 in place of 18 where XLA's two threads and the workers want the same cores and caches (3 of them Python), 8
for the workers, which are disturbed by it (1 of them for the board, 0.6 for resets), and a tenth of the time a core
waits. 0.62 of the clock and 0.69 of processor time were measured on an idle machine. Three or four parts of lanes in
place of two halves leave less waiting (5 %), but smaller batches cost more than that; one XLA thread saves 5
microseconds, but there is no such setting for a single program.

Ratios by the clock are only worth something on an idle machine. `cpu` is the ratio of processor time per step, all
processes counted: where workers leave no core idle, it is what an idle machine would show.
"""

import argparse
import os
import subprocess
import sys
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from uhm import tasks
from uhm.evaluate import Evaluator

ENVIRONMENTS = ["cube-double-play", "antmaze-large-navigate", "pointmaze-medium-navigate"]


class Rate(NamedTuple):
    """Steps per second of the clock, all processes together, and processor seconds per step."""

    steps: float
    cpu: float


def step_alone(name: str, lanes: int, seconds: float, bare: bool) -> Rate:
    """One process with `lanes` environments in a tight loop."""
    warnings.simplefilter("ignore")
    from uhm import envs
    from uhm.evaluate.worker import Simulation

    environment = tasks.environment(name)
    made = [Simulation(environment).env if bare else envs.make(environment.tasks[0]) for _ in range(lanes)]
    # Near zero, as those of an untrained actor: how long physics take depends on what moves.
    actions = np.random.default_rng(0).normal(0, 0.01, (1000, environment.action_size)).astype(np.float32)
    for env in made:
        env.reset()
    for env in made:
        env.step(actions[0])
    steps, start, start_cpu = 0, time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        for env in made:
            _, _, terminated, truncated, _ = env.step(actions[steps % len(actions)])
            steps += 1
            if terminated or truncated:
                env.reset()
    return Rate(steps / (time.perf_counter() - start), (time.process_time() - start_cpu) / steps)


def alone(name: str, lanes: int, workers: int, seconds: float, bare: bool) -> Rate:
    """`step_alone` in several processes at once."""
    command = [sys.executable, __file__, "--alone", name, str(-(-lanes // workers)), str(seconds), str(int(bare))]
    environ = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    running = [subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) for _ in range(workers)]
    rates = [Rate(*map(float, process.communicate()[0].splitlines()[-1].split())) for process in running]
    return Rate(sum(rate.steps for rate in rates), float(np.mean([rate.cpu for rate in rates])))


def with_policy(name: str, members: int, workers: int, lanes: int, waves: int) -> Rate:
    """A whole run of the evaluator."""
    import jax

    from uhm import nets
    from uhm.evaluate import make_act

    environment = tasks.environment(name)
    sizes = environment.observation_size, environment.action_size
    actors = jax.vmap(lambda key: nets.Actor(*sizes, key))(jax.random.split(jax.random.key(0), members))
    chosen = [environment.tasks[m % len(environment.tasks)] for m in range(members)]
    act = make_act(lambda actor, observations, key: actor(observations), actors, jax.random.key(1))
    rows = 1
    while rows <= lanes:  # compile
        for member in range(members):
            np.asarray(act.member(member, np.zeros((rows, sizes[0]), np.float32), 0))
        rows *= 2
    with Evaluator(chosen, episodes=-(-waves * lanes // members), workers=workers, lanes=lanes) as evaluator:
        pool = evaluator._ready_pool()
        pids = [os.getpid(), *(process.pid for process in pool._processes)]
        start, start_cpu = time.perf_counter(), _cpu(pids)
        records = evaluator.run(act, seeds=range(members), step=0)
        wall, cpu = time.perf_counter() - start, _cpu(pids) - start_cpu
    steps = sum(record.length for record in records)
    return Rate(steps / wall, cpu / steps)


def _cpu(pids: list[int]) -> float:
    """Processor time of running processes so far (Linux)."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(user) + int(system) for *_, user, system in (f[:13] for f in fields)) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", nargs="+", default=ENVIRONMENTS)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--lanes", type=int, help="environments in all (default: the evaluator's choice)")
    parser.add_argument("--waves", type=int, default=2, help="episodes per lane")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each run without a policy")
    parser.add_argument("--alone", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.alone:
        name, lanes, seconds, bare = args.alone
        print(*step_alone(name, int(lanes), float(seconds), bool(int(bare))))
        return

    columns = ("environment", "lanes", "gym", "bare", "evaluator", "of gym", "of bare", "cpu of gym", "cpu of bare")
    table = Table(*columns, title=f"steps per second, {args.workers} workers, {args.members} members")
    for name in args.environments:
        lanes = args.lanes or Evaluator(tasks.environment(name).tasks, workers=args.workers).lanes
        before = [alone(name, lanes, args.workers, args.seconds, bare) for bare in (False, True)]
        rate = with_policy(name, args.members, args.workers, lanes, args.waves)
        after = [alone(name, lanes, args.workers, args.seconds, bare) for bare in (False, True)]
        means = [Rate(*np.mean(pair, axis=0)) for pair in zip(before, after, strict=True)]
        speeds = [f"{r.steps:,.0f}" for r in (*means, rate)]
        ratios = [f"{rate.steps / r.steps:.2f}" for r in means] + [f"{r.cpu / rate.cpu:.2f}" for r in means]
        table.add_row(name, str(lanes), *speeds, *ratios)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
