"""The tasks: the paper's 100 in three suites, pointmaze, the embedded default `rooms`, and logs of one's own.

An environment (`cube-double-play`) is one data set and five tasks; a task (`cube-double-play-task2`) is one goal in it.
Everything that depends on the task and not on the method is here: sizes, episode limit, gradient steps, discount,
lambda_f, seeds, how the two critics are aggregated. Method-dependent values are in `uhm.presets`. A file of logs is an
environment with one task and without a simulator, and its path is the name of both.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from uhm.errors import UhmError, unknown

Domain = Literal["locomotion", "manipulation"]
TASKS_PER_ENVIRONMENT = 5
OWN = "own"  # the suite of logs
MINARI = "minari:"


@dataclass(frozen=True)
class Environment:
    """One data set with its five tasks. `dataset` is the stem of OGBench's file, or the name of a folder of shards."""

    name: str
    suite: str
    gym_name: str  # OGBench's environment without version and data type, e.g. "cube-double"
    dataset: str
    transitions: int  # training transitions the paper's protocol uses
    domain: Domain
    observation_size: int
    action_size: int
    episode_limit: int
    default_task: int  # the task that hyperparameters are tuned on
    steps: int
    discount: float
    lambda_f: float
    seeds: int

    @property
    def q_agg(self) -> Literal["min", "mean"]:
        """Clipped double Q-learning on locomotion tasks only (paper, common hyperparameters)."""
        return "min" if self.domain == "locomotion" else "mean"

    @property
    def sharded(self) -> bool:
        """Whether the data set is a folder of files (OGBench's 100M sets) rather than one file."""
        return "-100m-" in self.dataset

    @property
    def tasks(self) -> tuple["Task", ...]:
        return tuple(Task(self, i + 1) for i in range(1 if self.own else TASKS_PER_ENVIRONMENT))

    @property
    def own(self) -> bool:
        """Whether it is a user's own logs, which come without a simulator."""
        return self.suite == OWN

    @property
    def title(self) -> str:
        return title(self.name)


@dataclass(frozen=True)
class Task:
    """One goal of an environment, numbered from 1 as in OGBench."""

    environment: Environment
    index: int

    @property
    def name(self) -> str:
        """As in the paper's tables."""
        return self.environment.name if self.environment.own else f"{self.environment.name}-task{self.index}"

    @property
    def ogbench_id(self) -> str:
        """What `ogbench.make_env_and_datasets` takes."""
        return f"{self.environment.name}-singletask-task{self.index}-v0"

    @property
    def gym_id(self) -> str:
        """What `gymnasium.make` takes."""
        return f"{self.environment.gym_name}-singletask-task{self.index}-v0"


def _environment(
    suite: str,
    gym_name: str,
    kind: str,
    domain: Domain,
    sizes: tuple[int, int],
    limit: int,
    default: int,
    millions: int,
) -> Environment:
    long = suite == "long-horizon"
    name = f"{gym_name}-{kind}"
    return Environment(
        name=name,
        suite=suite,
        gym_name=gym_name,
        dataset=f"{name}-100m-v0" if long else f"{name}-v0",
        transitions=millions * 1_000_000,
        domain=domain,
        observation_size=sizes[0],
        action_size=sizes[1],
        episode_limit=limit,
        default_task=default,
        steps=2_000_000 if long else 1_000_000,
        discount=0.999,
        lambda_f=0.9 if long else 0.8,
        seeds=3 if long else 5,
    )


_L: Domain = "locomotion"
_M: Domain = "manipulation"
# suite, environment, data type, domain, (observation, action) size, episode limit, default task, million transitions.
# Sizes are those of the official files: explore sets hold 5M and humanoidmaze 2M where the paper says "1M".
_TABLE: tuple[tuple[str, str, str, Domain, tuple[int, int], int, int, int], ...] = (
    ("standard", "antmaze-large", "navigate", _L, (29, 8), 1000, 1, 1),
    ("standard", "antmaze-giant", "navigate", _L, (29, 8), 1000, 1, 1),
    ("standard", "humanoidmaze-medium", "navigate", _L, (69, 21), 2000, 1, 2),
    ("standard", "humanoidmaze-large", "navigate", _L, (69, 21), 2000, 1, 2),
    ("standard", "antsoccer-arena", "navigate", _L, (42, 8), 1000, 4, 1),
    ("standard", "cube-single", "play", _M, (28, 5), 200, 2, 1),
    ("standard", "cube-double", "play", _M, (37, 5), 500, 2, 1),
    ("standard", "scene", "play", _M, (40, 5), 750, 2, 1),
    ("standard", "puzzle-3x3", "play", _M, (55, 5), 500, 4, 1),
    ("standard", "puzzle-4x4", "play", _M, (83, 5), 500, 4, 1),
    ("noisy", "antmaze-medium", "explore", _L, (29, 8), 1000, 1, 5),
    ("noisy", "antmaze-large", "explore", _L, (29, 8), 1000, 1, 5),
    ("noisy", "cube-double", "noisy", _M, (37, 5), 500, 2, 1),
    ("noisy", "scene", "noisy", _M, (40, 5), 750, 2, 1),
    ("noisy", "puzzle-4x4", "noisy", _M, (83, 5), 500, 4, 1),
    ("long-horizon", "cube-triple", "play", _M, (46, 5), 1000, 2, 10),
    ("long-horizon", "cube-quadruple", "play", _M, (55, 5), 1000, 2, 10),
    ("long-horizon", "puzzle-4x5", "play", _M, (99, 5), 1000, 2, 10),
    ("long-horizon", "puzzle-4x6", "play", _M, (115, 5), 1000, 2, 10),
    ("long-horizon", "humanoidmaze-giant", "navigate", _L, (69, 21), 4000, 1, 10),
    ("pointmaze", "pointmaze-medium", "navigate", _L, (2, 2), 1000, 1, 1),
    ("pointmaze", "pointmaze-large", "navigate", _L, (2, 2), 1000, 1, 1),
    ("pointmaze", "pointmaze-giant", "navigate", _L, (2, 2), 1000, 1, 1),
)

ROOMS = Environment(
    name="rooms",
    suite="embedded",
    gym_name="rooms",
    dataset="rooms-v0",
    transitions=100_000,
    domain="locomotion",
    observation_size=2,
    action_size=2,
    episode_limit=100,
    default_task=1,
    steps=8_000,
    discount=0.98,
    lambda_f=0.8,
    seeds=1,
)

ENVIRONMENTS: dict[str, Environment] = {e.name: e for e in (*(_environment(*row) for row in _TABLE), ROOMS)}
PAPER_SUITES = ("standard", "noisy", "long-horizon")
SUITES: dict[str, tuple[Environment, ...]] = {
    suite: tuple(e for e in ENVIRONMENTS.values() if e.suite == suite)
    for suite in (*PAPER_SUITES, "pointmaze", "embedded")
}
SUITES["paper"] = tuple(e for suite in PAPER_SUITES for e in SUITES[suite])

# `cube-double-play-task2`, `cube-double-play-2` (the paper's text), OGBench's `cube-double-play-singletask-task2-v0`,
# and `cube-double-play-singletask-v0`, which is the default task.
_TASK_NAME = re.compile(r"(?P<env>.+?)-(?:singletask-)?(?:task)?(?P<index>\d+)(?:-v0)?$")
_DEFAULT_TASK_NAME = re.compile(r"(?P<env>.+)-singletask(?:-v0)?$")
# What others keep logs in; who names such a file gets a hint.
_OTHER_LOGS = (".h5", ".hdf5", ".csv", ".parquet", ".npy", ".pkl", ".pickle", ".pt", ".zarr")


def environment(name: str) -> Environment:
    """The environment called `name` (also with OGBench's version, `cube-double-play-v0`)."""
    plain = name.removesuffix("-v0")
    if plain not in ENVIRONMENTS:
        raise unknown("environment", name, ENVIRONMENTS, "`uhm data list` shows them all.")
    return ENVIRONMENTS[plain]


def is_own(name: str) -> bool:
    """Whether `name` is that of logs: an npz file, or `minari:NAME`."""
    return name.startswith(MINARI) or name.endswith(".npz")


def title(name: str) -> str:
    """The name of a task or an environment; of a file of logs its own without folders, the same wherever it is."""
    return Path(name).stem if name.endswith(".npz") else name.removeprefix(MINARI).replace("/", "-")


def logs(name: str) -> Environment:
    """Logs as an environment. Sizes are left to the data; the rest is as the paper has it for manipulation."""
    return Environment(
        name=name if name.startswith(MINARI) else str(Path(name).expanduser().absolute()),
        suite=OWN,
        gym_name="",
        dataset="",
        transitions=0,
        domain="manipulation",
        observation_size=0,
        action_size=0,
        episode_limit=0,
        default_task=1,
        steps=1_000_000,
        discount=0.999,
        lambda_f=0.8,
        seeds=1,
    )


def named(name: str) -> tuple[Task, ...]:
    """What can be learned under `name`: logs, or all tasks that it stands for."""
    return logs(name).tasks if is_own(name) else resolve(name)


def task(name: str) -> Task:
    """The one task called `name`; an environment's name is ambiguous here and refused."""
    found = named(name)
    if len(found) != 1:
        raise UhmError(f"'{name}' names {len(found)} tasks; add -task1 to -task{TASKS_PER_ENVIRONMENT} to name one.")
    return found[0]


def resolve(name: str) -> tuple[Task, ...]:
    """All tasks that `name` stands for: a suite, an environment, one task, or an OGBench id."""
    if name in SUITES:
        return tuple(t for e in SUITES[name] for t in e.tasks)
    plain = name.removesuffix("-v0")
    if plain in ENVIRONMENTS:
        return ENVIRONMENTS[plain].tasks
    if match := _DEFAULT_TASK_NAME.fullmatch(name):
        env = environment(match["env"])
        return (env.tasks[env.default_task - 1],)
    match = _TASK_NAME.fullmatch(name)
    if match and match["env"] in ENVIRONMENTS:
        index = int(match["index"])
        if not 1 <= index <= TASKS_PER_ENVIRONMENT:
            raise UhmError(f"'{name}': {match['env']} has task1 to task{TASKS_PER_ENVIRONMENT}, not task{index}.")
        return (Task(ENVIRONMENTS[match["env"]], index),)
    if (suffix := Path(name).suffix) in _OTHER_LOGS:
        more = f"; `uhm data convert {name} LOG.npz` makes one" if suffix in (".h5", ".hdf5") else ""
        raise UhmError(f"'{name}': logs are .npz files, of arrays as docs/index.md (Your own logs) lists them{more}.")
    known = [*SUITES, *ENVIRONMENTS, *(t.name for e in ENVIRONMENTS.values() for t in e.tasks)]
    raise unknown("task or environment", name, known, "`uhm data list` shows them all.")
