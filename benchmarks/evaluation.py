"""How much of the environments' own speed is left when `Evaluator` runs them with a policy. Target: 80 %.

    python benchmarks/evaluation.py --environments cube-double-play antmaze-large-navigate

`evaluator` is a whole `run`, resets included, by an actor of 4 x 512 whose weights are random, with workers started and
programs compiled. `raw` is the same work without a policy: one process per worker with the same environments plays the
same episodes again, reset by reset and action by action, from a tape of what the evaluator told its workers, and waits
for nobody. The two take turns, a few rounds; the medians count. All lanes end together, so that the end of a run, where
lanes fall idle, does not count: real runs have hundreds of episodes. Episodes are cut at `--limit` steps, for time.

The clock says nothing on a busy machine: a round in which other programs take more than a twentieth of the cores is
thrown away and repeated, a few times. The right half of the table tells where the time of the two cores goes, in
microseconds of a core per step of an environment: `raw` with no policy, then the evaluator's `workers`, its `policy`
(the process that acts, XLA's threads included) and how long cores were `idle`.

On two idle cores, `--rounds 3` (medians, and the range of the rounds), for every kind of environment in the paper:

    cube-double-play              0.82 (0.81-0.85)   raw 1309   workers 1427   policy 135   idle 57
    puzzle-3x3-play               0.87 (0.83-0.89)       2129           2278          160        72
    scene-play                    0.88 (0.87-0.88)       1945           2008          150        59
    antmaze-large-navigate        0.88 (0.83-0.90)        379            391           42         9
    antsoccer-arena-navigate      0.91 (0.89-0.99)        415            403           40        10
    humanoidmaze-medium-navigate  0.83 (0.81-0.83)        280            291           41        12

and, not in the paper,

    pointmaze-medium-navigate     0.55 (0.54-0.60)         98            104           44        17

Where a step is as short as in pointmaze, two cores do not reach 80 %: workers and policy together may take 25
microseconds more than the environment there, and a 4 x 512 actor is 1.6 million operations a row, which alone takes 18
on a core that does nothing else. XLA's two threads, which want the same cores as the workers, make that 28 to 44; no
option of a single program keeps it to one thread.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from uhm import tasks
from uhm.evaluate import Evaluator, pool
from uhm.evaluate.board import HALVES, RESET, STEP

ENVIRONMENTS = [
    "cube-double-play",
    "puzzle-3x3-play",
    "scene-play",
    "antmaze-large-navigate",
    "antsoccer-arena-navigate",
    "humanoidmaze-medium-navigate",
]
WAVES = {"manipulation": 3, "locomotion": 1}  # episodes per lane
EPISODES = 50  # per member, about: each member among the rows of a batch is one more set of weights to read
OTHERS = 0.05
ATTEMPTS = 4  # per round


class Round(NamedTuple):
    """Steps per second, microseconds of a core per step, and the share of the cores that other programs took."""

    raw: float
    evaluator: float
    ratio: float
    raw_core: float
    workers: float
    policy: float
    idle: float
    others: float


class Tape:
    """What an evaluator tells its workers, recorded."""

    def __init__(self, recorded: pool.Pool):
        self._pool, self._tell = recorded, recorded.tell
        self._messages: list[tuple[np.ndarray, ...]] = []
        recorded.tell = self.tell

    def tell(self, half: int) -> None:
        board, mine = self._pool.board, slice(half, None, len(HALVES))
        lanes = np.arange(board.lanes)[mine]
        columns = (board.command, board.task, board.seeds, board.action)
        self._messages.append((lanes, *(column[mine].copy() for column in columns)))
        self._tell(half)

    def stop(self) -> None:
        self._pool.tell = self._tell

    def save(self, path: Path, lanes: list[int]) -> None:
        """What concerns some lanes, in order."""
        columns = [np.concatenate(column) for column in zip(*self._messages, strict=True)]
        mine = np.isin(columns[0], lanes) & ((columns[1] == STEP) | (columns[1] == RESET))
        lane, command, task, seeds, action = (column[mine] for column in columns)
        np.savez(path, lane=lane, command=command, task=task, seeds=seeds, action=action)


def replay(name: str, path: str) -> None:
    """One process without a policy: for every line of input it plays the tape and prints steps and seconds."""
    warnings.simplefilter("ignore")
    from uhm.evaluate.worker import Simulation

    with np.load(path) as tape:
        columns = [tape[name] for name in ("lane", "command", "task", "seeds", "action")]
    simulations = {lane: Simulation(tasks.environment(name)) for lane in np.unique(columns[0])}
    lines = [(simulations[lane], *rest) for lane, *rest in zip(*columns, strict=True)]
    steps = int((columns[1] == STEP).sum())
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        for simulation, command, task, seeds, action in lines:
            if command == STEP:
                simulation.env.step(action.copy())
            else:
                simulation.reset(int(task), seeds)
        print(steps, time.perf_counter() - start, flush=True)


def cut_worker(limit: int) -> None:
    """The evaluator's worker, with episodes of at most `limit` steps."""
    from uhm.evaluate import worker

    class Cut(worker.Simulation):
        def __init__(self, *args: Any, **options: Any):
            super().__init__(*args, **options)
            self.limit = min(self.limit or limit, limit)

    worker.Simulation = Cut
    worker.main()


def measure(name: str, args: argparse.Namespace) -> tuple[int, list[Round]]:
    """All rounds of one environment."""
    import jax

    from uhm import nets
    from uhm.evaluate import make_act

    environment = tasks.environment(name)
    sizes = environment.observation_size, environment.action_size
    lanes = args.lanes or Evaluator(environment.tasks, workers=args.workers).lanes
    jobs = WAVES[environment.domain] * lanes
    members = max(2, round(jobs / EPISODES))
    chosen = [environment.tasks[m % len(environment.tasks)] for m in range(members)]
    actors = jax.vmap(lambda key: nets.Actor(*sizes, key))(jax.random.split(jax.random.key(0), members))
    act = make_act(lambda actor, observations, key: actor(observations), actors, jax.random.key(1))
    pool._WORKER = (__file__, "--worker", str(args.limit))
    with (
        tempfile.TemporaryDirectory() as folder,
        Evaluator(chosen, episodes=jobs // members, workers=args.workers, lanes=lanes) as evaluator,
    ):
        running = evaluator._ready_pool()
        tape = Tape(running)  # this run also compiles
        expected = evaluator.run(act, seeds=range(members), step=0)
        tape.stop()
        replays = []
        try:
            for worker in range(args.workers):
                path = Path(folder) / f"{worker}.npz"
                tape.save(path, [lane for half in HALVES for lane in running.board.owned(half, worker, args.workers)])
                replays.append(_start_replay(name, path, folder))
            for process in replays:
                process.stdout.readline()
            workers = [process.pid for process in running._processes]

            def evaluate() -> int:
                records = evaluator.run(act, seeds=range(members), step=0)
                assert records == expected
                return sum(record.length for record in records)

            return lanes, [_undisturbed_round(replays, evaluate, workers) for _ in range(args.rounds)]
        finally:
            for process in replays:
                process.kill()
                process.communicate()


def _start_replay(name: str, path: Path, folder: str) -> Any:
    own = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "TMPDIR": folder}
    command = [sys.executable, __file__, "--replay", name, str(path)]
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    return subprocess.Popen(command, env=os.environ | own, text=True, stdin=pipe, stdout=pipe, stderr=nowhere)


def _undisturbed_round(replays: list[Any], evaluate: Any, workers: list[int]) -> Round:
    """The first round that nobody disturbs, or the least disturbed."""
    tried: list[Round] = []
    while len(tried) < ATTEMPTS and not (tried and tried[-1].others < OTHERS):
        if tried:
            time.sleep(5)
        tried.append(_round(replays, evaluate, workers))
        print(f"  {tried[-1].ratio:.2f} of raw, {tried[-1].others:.0%} of the cores were others'", flush=True)
    return min(tried, key=lambda round_: round_.others)


def _round(replays: list[Any], evaluate: Any, workers: list[int]) -> Round:
    cores = len(os.sched_getaffinity(0))
    groups = [[process.pid for process in replays], workers, [os.getpid()]]
    start, busy, times = time.perf_counter(), _busy(), [_cpu(pids) for pids in groups]
    for process in replays:
        process.stdin.write("\n")
        process.stdin.flush()
    # Every process at its own speed, also if another has ended.
    raw = sum(float(steps) / float(seconds) for steps, seconds in (p.stdout.readline().split() for p in replays))
    middle, middle_policy = time.perf_counter(), _cpu(groups[2])
    steps = evaluate()
    end = time.perf_counter()
    raw_core, worker_core, policy = (_cpu(pids) - before for pids, before in zip(groups, times, strict=True))
    others = (_busy() - busy - raw_core - worker_core - policy) / (cores * (end - start))
    policy = _cpu(groups[2]) - middle_policy
    idle = cores * (end - middle) - worker_core - policy
    rate, each = steps / (end - middle), 1e6 / steps
    return Round(raw, rate, rate / raw, raw_core * each, worker_core * each, policy * each, idle * each, others)


def _cpu(pids: list[int]) -> float:
    """Processor time of running processes so far (Linux)."""
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(user) + int(system) for *_, user, system in (f[:13] for f in fields)) / os.sysconf("SC_CLK_TCK")


def _busy() -> float:
    """Processor time of the whole machine so far, what a hypervisor took included (Linux)."""
    user, nice, system, _, _, *rest = map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:9])
    return (user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", nargs="+", default=ENVIRONMENTS)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--lanes", type=int, help="environments in all (default: the evaluator's choice)")
    parser.add_argument("--limit", type=int, default=300, help="longest episode, in steps")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()

    columns = ("environment", "lanes", "raw/s", "evaluator/s", "ratio", "of rounds")
    table = Table(*columns, "raw", "workers", "policy", "idle", "others", title=f"{args.workers} workers")
    for name in args.environments:
        print(name, flush=True)
        lanes, rounds = measure(name, args)
        median = Round(*np.median(rounds, axis=0))
        spread = f"{min(r.ratio for r in rounds):.2f}-{max(r.ratio for r in rounds):.2f}"
        speeds = [f"{median.raw:,.0f}", f"{median.evaluator:,.0f}", f"{median.ratio:.2f}", spread]
        parts = [f"{part:,.0f}" for part in (median.raw_core, median.workers, median.policy, median.idle)]
        table.add_row(name, str(lanes), *speeds, *parts, f"{max(r.others for r in rounds):.0%}")
    Console(width=130).print(table)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--replay"]:
        replay(*sys.argv[2:])
    elif sys.argv[1:2] == ["--worker"]:
        sys.argv[1:3], limit = [], int(sys.argv[2])
        cut_worker(limit)
    else:
        main()
