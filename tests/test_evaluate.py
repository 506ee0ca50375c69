"""Evaluation: the same episodes whatever the machinery, all of them, and no process left behind."""

import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uhm import envs, tasks
from uhm.envs import rooms
from uhm.errors import UhmError
from uhm.evaluate import Episode, Evaluator, evaluator, make_act, pool
from uhm.evaluate.records import episode_seeds
from uhm.evaluate.worker import Simulation

POINT = tasks.environment("pointmaze-medium-navigate")
MEMBERS = (POINT.tasks[0], POINT.tasks[2], POINT.tasks[0])
SEEDS = (0, 0, 7)
DISCOUNTS = (0.9, 0.99, 1.0)


class Walker:
    """A policy in numpy that walks to each member's goal along the shortest way, unless it is told to stand still."""

    def __init__(self, members: tuple[tasks.Task, ...] = MEMBERS, lazy: tuple[int, ...] = (), scale: float = 1.0):
        self.maze: Any = envs.make(members[0]).unwrapped
        self.goals = [self.maze.ij_to_xy(self.maze.task_infos[task.index - 1]["goal_ij"]) for task in members]
        self.lazy, self.scale, self.counts = lazy, scale, []

    def one(self, member: int, observation: np.ndarray) -> np.ndarray:
        if member in self.lazy:
            return np.zeros(2)
        towards = self.maze.get_oracle_subgoal(observation, self.goals[member])[0] - observation
        return self.scale * towards / (np.linalg.norm(towards) + 1e-6)

    def __call__(self, observations: np.ndarray, count: int) -> np.ndarray:
        self.counts.append(count)
        return np.array([[self.one(m, o) for o in lanes] for m, lanes in enumerate(observations)])


def by_hand(task: tasks.Task, seeds: list[int], act: Any) -> tuple[float, list[float]]:
    """Success and rewards of one episode in a fresh Gymnasium environment, wrappers and all."""
    env = envs.make(task)
    np.random.seed(seeds[0])
    env.action_space.seed(seeds[2])
    observation, _ = env.reset(seed=seeds[1])
    rewards = []
    while True:
        action = np.clip(act(observation.astype(np.float32)), -1, 1).astype(np.float32)
        observation, reward, terminated, truncated, info = env.step(action)
        rewards.append(float(reward))
        if terminated or truncated:
            env.close()
            return float(info["success"]), rewards


@pytest.fixture(scope="module")
def records() -> list[Episode]:
    with Evaluator(MEMBERS, episodes=3, workers=1, lanes=1) as one:
        return one.run(Walker(), seeds=SEEDS, step=100, discounts=DISCOUNTS)


def test_records_are_ordered_and_complete(records: list[Episode]) -> None:
    assert [(r.member, r.episode) for r in records] == [(m, e) for m in range(3) for e in range(3)]
    assert all(r.task == MEMBERS[r.member].name and r.seed == SEEDS[r.member] and r.step == 100 for r in records)
    assert all(r.success == 1.0 and 10 < r.length < 1000 and r.return_ == 1.0 - r.length for r in records)
    assert len({r.length for r in records}) > 3  # so that equality below means something
    assert records[0].to_json()["return"] == records[0].return_


def test_episodes_are_those_of_gymnasium(records: list[Episode]) -> None:
    walker = Walker()
    for record in (records[1], records[3], records[8]):
        task = MEMBERS[record.member]
        seeds = episode_seeds(record.seed, record.step, task.index, record.episode)
        success, rewards = by_hand(task, list(seeds), lambda o, m=record.member: walker.one(m, o))
        assert (record.success, record.return_, record.length) == (success, sum(rewards), len(rewards))
        gamma = DISCOUNTS[record.member]
        assert record.discounted == pytest.approx(sum(gamma**t * reward for t, reward in enumerate(rewards)))
        assert record.value is None  # a function of numpy expects nothing


def test_lanes_and_workers_change_nothing(records: list[Episode]) -> None:
    walker = Walker()
    with Evaluator(MEMBERS, episodes=3, workers=2, lanes=3) as several:
        first = several.run(walker, seeds=SEEDS, step=100, discounts=DISCOUNTS)
        assert walker.counts == list(range(len(walker.counts)))
        again = several.run(walker, seeds=SEEDS, step=100, discounts=DISCOUNTS)
        later = several.run(walker, seeds=SEEDS, step=200)
    assert first == records
    assert again == records
    assert [r.length for r in later] != [r.length for r in records]
    assert all(r.discounted is None and "discounted" not in r.to_json() for r in later)


@pytest.mark.parametrize("members", [MEMBERS, tuple(tasks.ROOMS.tasks[:3])], ids=["maze", "rooms"])
def test_what_a_policy_expects_is_asked_at_the_first_observation(members: tuple[tasks.Task, ...]) -> None:
    """A state is one number w, and it expects w (x + 2 y). Fewer lanes than episodes, so that each lane has several."""
    weights = jnp.array([1.0, 10.0, 100.0])

    def act(state: Any, observations: Any, key: Any) -> Any:
        return jnp.sin(100 * observations) + 0 * state

    policy = make_act(
        *(act, weights, jax.random.key(0)),
        observation_size=2,
        agent_value=lambda w, observations, key: w * observations @ jnp.array([1.0, 2.0]),
    )
    with Evaluator(members, episodes=3, workers=1, lanes=2) as some:
        found = some.run(policy, seeds=SEEDS, step=100)
    for record in found:
        task = members[record.member]
        seeds = episode_seeds(record.seed, 100, task.index, record.episode)
        np.random.seed(seeds[0])
        first, _ = envs.make(task).reset(seed=seeds[1])
        assert record.value == pytest.approx(10.0**record.member * (first[0] + 2 * first[1]), rel=1e-4)


def test_a_member_that_diverged_fails_alone(records: list[Episode]) -> None:
    """MuJoCo answers NaN by a restart at the origin, which is the goal of task 5. All have their three episodes still,
    though one member's take eight times as long; and actions beyond the limits are no faster."""
    members = (MEMBERS[0], POINT.tasks[4], MEMBERS[2])
    walker = Walker(members, lazy=(1,), scale=50.0)

    def act(observations: np.ndarray, count: int) -> np.ndarray:
        actions = walker(observations, count)
        actions[1] = np.nan
        return actions

    with Evaluator(members, episodes=3, workers=1, lanes=5) as some:
        found = some.run(act, seeds=SEEDS, step=100)
    assert [r.success for r in found] == [1.0] * 3 + [0.0] * 3 + [1.0] * 3
    assert all(r.length == 1000 and r.return_ == -1000 for r in found[3:6])
    assert all(abs(f.length - r.length) < 30 for f, r in zip(found, records, strict=True) if f.member != 1)


def play(simulation: Simulation, task: int, seed: int, steps: int, size: int, dirty: bool = False) -> np.ndarray:
    rng = np.random.default_rng(seed)
    seen = [simulation.reset(task, [seed, seed + 1, seed + 2])]
    for step in range(steps):
        if dirty and step % 10 == 0:  # what pressing buttons does: it locks drawers
            simulation.env._cur_button_states = rng.integers(0, 2, 2)
            simulation.env._apply_button_states()
        seen.append(simulation.env.step(rng.uniform(-1, 1, size).astype(np.float32))[0])
    return np.array(seen)


@pytest.mark.parametrize("name", ["antmaze-large-navigate", "scene-play"])
def test_an_episode_does_not_depend_on_what_came_before(name: str) -> None:
    environment = tasks.environment(name)
    simulation = Simulation(environment)
    assert simulation.limit == environment.episode_limit
    first = play(simulation, 2, 11, 25, environment.action_size)
    space = simulation.env.action_space.sample()
    dirty = name.startswith("scene")
    others = [play(simulation, task, 20 + task, 40, environment.action_size, dirty) for task in (1, 5)]
    np.testing.assert_array_equal(play(simulation, 2, 11, 25, environment.action_size), first)
    np.testing.assert_array_equal(simulation.env.action_space.sample(), space)  # which resets draw from
    assert not np.array_equal(others[0], others[1])


ROOMS_MEMBERS = (*tasks.ROOMS.tasks, tasks.ROOMS.tasks[0])


def through_rooms(task: tasks.Task, xy: np.ndarray) -> np.ndarray:
    """By way of the doors, and in task 3 nowhere."""
    goal = rooms.GOALS[task.index - 1][None]
    heading = rooms.waypoint(np.asarray(xy, float)[None], goal)[0] - xy
    return 0.0 * heading if task.index == 3 else 0.3 * heading


def test_rooms_gives_the_episodes_of_gymnasium() -> None:
    def act(observations: np.ndarray, count: int) -> np.ndarray:
        assert observations.dtype == np.float32 and observations.shape == (6, 4, 2)
        return np.array(
            [[through_rooms(t, o) for o in lane] for t, lane in zip(ROOMS_MEMBERS, observations, strict=True)]
        )

    seeds = (0, 1, 2, 3, 4, 5)
    with Evaluator(ROOMS_MEMBERS, episodes=4) as vectorised:
        found = vectorised.run(act, seeds=seeds, step=7, discounts=[0.9, 0.99, 0.5, 1.0, 0.95, 0.9])
    assert len(found) == 24 and len({r.length for r in found}) > 4
    for record in found:
        task = ROOMS_MEMBERS[record.member]
        words = episode_seeds(record.seed, 7, task.index, record.episode)
        success, rewards = by_hand(task, list(words), lambda o, t=task: through_rooms(t, o))
        assert (record.success, record.return_, record.length) == (success, sum(rewards), len(rewards))
        gamma = (0.9, 0.99, 0.5, 1.0, 0.95, 0.9)[record.member]
        assert record.discounted == pytest.approx(sum(gamma**t * reward for t, reward in enumerate(rewards)))
        assert record.success == (task.index != 3)


def still(observations: np.ndarray, count: int) -> np.ndarray:
    return np.zeros((*observations.shape[:2], 2), np.float32)


def test_a_killed_worker_is_an_error_and_the_next_run_works() -> None:
    with Evaluator(MEMBERS, episodes=1, workers=2, lanes=4) as some:

        def kill(observations: np.ndarray, count: int) -> np.ndarray:
            if count == 5:
                assert some._pool is not None
                os.kill(some._pool._processes[1].pid, signal.SIGKILL)
            return still(observations, count)

        with pytest.raises(UhmError, match=r"worker died \(exit status -9\)"):
            some.run(kill, seeds=SEEDS, step=0)
        assert len(some.run(Walker(), seeds=SEEDS, step=0)) == 3


def test_workers_are_plain_and_end_with_the_run_that_breaks() -> None:
    with Evaluator(MEMBERS, episodes=1, workers=1, lanes=2) as some:
        seen = []

        def broken(observations: np.ndarray, count: int) -> np.ndarray:
            assert some._pool is not None
            process = some._pool._processes[0]
            environ = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            seen.append((process, Path(some._pool._folder.name), b"OMP_NUM_THREADS=1" in environ, "jaxlib" in maps))
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            some.run(broken, seeds=SEEDS, step=0)
    ((process, folder, single_threaded, has_jax),) = seen
    assert single_threaded and not has_jax
    assert process.poll() is not None
    assert not folder.exists()  # and with it the xml files that mazes leave


def test_closing_ends_a_run_in_another_thread() -> None:
    some, caught, running = Evaluator(MEMBERS, episodes=50, workers=1, lanes=2), [], threading.Event()

    def act(observations: np.ndarray, count: int) -> np.ndarray:
        running.set()
        return still(observations, count)

    def run() -> None:
        try:
            some.run(act, seeds=SEEDS, step=0)
        except UhmError as error:
            caught.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    assert running.wait(30)
    some.close()
    thread.join(10)
    assert not thread.is_alive()
    assert caught == ["the evaluation was stopped: its evaluator is closed."]
    with pytest.raises(UhmError, match="closed; make a new one"):
        some.run(act, seeds=SEEDS, step=0)


def test_an_environment_that_cannot_be_made_is_one_line() -> None:
    nowhere = dataclasses.replace(POINT, gym_name="pointmaze-nowhere")
    with Evaluator(nowhere.tasks[:1], workers=1, lanes=1) as some, pytest.raises(UhmError, match="nowhere") as caught:
        some.run(still, seeds=[0], step=0)
    assert "\n" not in str(caught.value)


def test_workers_end_with_a_caller_that_is_killed(tmp_path: Path) -> None:
    program = """
import os, signal, sys
import numpy as np
from uhm import tasks
from uhm.evaluate import Evaluator
some = Evaluator(tasks.environment("pointmaze-medium-navigate").tasks[:1], workers=1, lanes=2)
def act(observations, count):
    print(some._pool._processes[0].pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
some.run(act, seeds=[0], step=0)
"""
    env = os.environ | {"TMPDIR": str(tmp_path), "PYTHONWARNINGS": "ignore"}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    worker, deadline = Path(f"/proc/{int(done.stdout)}/stat"), time.monotonic() + 10
    while worker.exists() and ") Z " not in worker.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tasks": MEMBERS, "episodes": 0}, "episodes is 0"),
        ({"tasks": MEMBERS, "lanes": 0}, "lanes is 0"),
        ({"tasks": (MEMBERS[0], tasks.ROOMS.tasks[0])}, "share an environment, not pointmaze-medium-navigate, rooms"),
        ({"tasks": ()}, "share an environment, not none"),
    ],
)
def test_bad_input_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UhmError, match=message):
        Evaluator(options.pop("tasks"), **options)


def test_a_seed_per_member() -> None:
    with Evaluator(MEMBERS) as some, pytest.raises(UhmError, match="2 seeds for 3 members"):
        some.run(still, seeds=[0, 1], step=0)


def test_memory_bounds_the_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    cube = tasks.environment("cube-double-play").tasks * 5
    for free, workers, lanes in ((100_000, 16, 128), (10_000, 5, 12), (100, 1, 1)):
        monkeypatch.setattr(evaluator, "free_megabytes", lambda free=free: float(free))
        some = Evaluator(cube, workers=16)
        assert (some.workers, some.lanes) == (workers, lanes)
    assert Evaluator(cube[:1], episodes=2, workers=8, lanes=9).lanes == 2  # no more than episodes


def test_no_worker_program_loads_jax() -> None:
    program = "import sys, uhm.evaluate.worker, uhm.evaluate.camera; sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", program], check=False).returncode == 0
    assert pool._WORKER == ("-m", "uhm.evaluate.worker")
