"""How the episodes of a data set are made: which collector an environment has, and what all collectors share.

A collector owns one simulator and turns a random generator into one episode: a dictionary of arrays, one row per
step, in OGBench's format. It knows nothing of files, processes or how many episodes there will be. This module is
light to import; simulators are loaded when a collector is built.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from uhm.data import expert
from uhm.errors import UhmError
from uhm.tasks import Environment

Episode = dict[str, np.ndarray]
OFFICIAL_FILES = "https://rail.eecs.berkeley.edu/datasets/ogbench"


@runtime_checkable
class Collector(Protocol):
    """Makes episodes; the same generator state gives the same episode, whatever was made before."""

    def episode(self, rng: np.random.Generator) -> Episode: ...


@dataclass(frozen=True)
class Recipe:
    """How to collect for one environment: rows per episode, and what builds its collector."""

    rows: int
    build: Callable[[Environment, int, Path | None], Collector]
    expert: Path | None = None  # the policy that its robot walks by, unless another one is given


def recipe(environment: Environment) -> Recipe:
    """The recipe of an environment, looked up by the first word of its name."""
    family = _family(environment)
    if not has_recipe(environment):
        where = "that folder of files" if environment.sharded else f"{environment.dataset}.npz and its -val.npz"
        raise UhmError(
            f"{environment.name} cannot be generated: OGBench has no scripted expert for {family}; "
            f"put {where} from {OFFICIAL_FILES} into the data directory."
        )
    return _FAMILIES[family](environment)


def has_recipe(environment: Environment) -> bool:
    return _family(environment) in _FAMILIES


def _family(environment: Environment) -> str:
    return environment.gym_name.split("-")[0]


def kind(environment: Environment) -> str:
    """The data type, which ends the name: `play` of `cube-double-play`."""
    return environment.name.removeprefix(f"{environment.gym_name}-")


def _manipulation(environment: Environment) -> Recipe:
    def build(environment: Environment, rows: int, walker: Path | None) -> Collector:
        from uhm.data.collect_manipulation import Manipulation

        return Manipulation(environment.gym_name, kind(environment), rows)

    return Recipe(rows=1001, build=build)


def _maze(environment: Environment) -> Recipe:
    def build(environment: Environment, rows: int, walker: Path | None) -> Collector:
        from uhm.data.collect_mazes import Maze

        sizes = environment.observation_size, environment.action_size
        policy = None if walker is None else expert.load(walker, *sizes)
        return Maze(environment.gym_name, kind(environment), rows, policy)

    if kind(environment) == "explore":
        rows = 501
    else:
        # A giant maze takes longer to cross; the number of episodes is halved instead.
        rows = 2001 if environment.gym_name.endswith("giant") else 1001
    return Recipe(rows=rows, build=build, expert=expert.ANT if environment.gym_name.startswith("antmaze") else None)


_FAMILIES: dict[str, Callable[[Environment], Recipe]] = {
    "cube": _manipulation,
    "scene": _manipulation,
    "puzzle": _manipulation,
    "pointmaze": _maze,
    "antmaze": _maze,
}

# The arrays of a MuJoCo model that OGBench's environments write to while they run.
_MODEL_STATE = ("dof_damping", "geom_pos", "geom_rgba", "mat_rgba", "site_pos")


class Simulation:
    """An OGBench environment that forgets everything at reset.

    OGBench's own reset leaves traces of the episode before: targets, button states, joints that a button locked.
    They reach the new episode through the solver's warm start, so it would depend on what the process did earlier.
    """

    def __init__(self, gym_id: str, **options: Any):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import gymnasium
            import ogbench  # noqa: F401  (registers the environments)

            # Wrappers only check and count, which the collectors do themselves.
            self.env: Any = gymnasium.make(gym_id, disable_env_checker=True, **options).unwrapped
            # The first reset compiles the model and runs another path than all later ones: it is nobody's episode.
            self._reset(np.random.default_rng(0))
        self._attributes = {
            name: value for name, value in vars(self.env).items() if isinstance(value, bool | int | float | str)
        }
        self._arrays = {name: value.copy() for name, value in vars(self.env).items() if isinstance(value, np.ndarray)}
        self._model = {name: getattr(self.env.model, name).copy() for name in _MODEL_STATE}

    def reset(self, rng: np.random.Generator, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        """The first observation and info of an episode that depends on `rng` and `options` only."""
        vars(self.env).update(self._attributes)
        vars(self.env).update({name: value.copy() for name, value in self._arrays.items()})
        for name, value in self._model.items():
            getattr(self.env.model, name)[...] = value
        return self._reset(rng, options)

    def _reset(self, rng: np.random.Generator, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        # Oracles and mazes draw from numpy's global generator, and a maze's reset samples its action space. An arm's
        # action space is rebuilt (with a warning) at every access, so it can be neither seeded nor needed.
        np.random.seed(int(rng.integers(2**32)))
        if "action_space" in vars(self.env):
            self.env.action_space.seed(int(rng.integers(2**31)))
        return self.env.reset(options=options, seed=int(rng.integers(2**31)))


def pack(rows: dict[str, list]) -> Episode:
    """Lists of rows as the arrays of OGBench's files; the last row ends the trajectory."""
    terminals = np.zeros(len(rows["observations"]), bool)
    terminals[-1] = True
    types = {"button_states": np.int64}
    arrays = {name: np.asarray(values, types.get(name, np.float32)) for name, values in rows.items()}
    return arrays | {"terminals": terminals}
