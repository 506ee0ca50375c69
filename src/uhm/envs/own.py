"""A simulator of the user's own, for policies that learned from logs: any Gymnasium environment whose observations are
a box of numbers, of whatever shape, and whose actions are one.

Policies act within [-1, 1], as logs must have it, and a bounded box is reached by scaling that to its bounds.
"""

import contextlib
import dataclasses
import json
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from jaxtyping import Float, Num

from uhm.errors import UhmError, with_place
from uhm.tasks import MINARI

LIMIT = 1000  # steps of an episode, in environments that set none
_TRIAL: tuple[str, ...] = ("-m", "uhm.envs.trial")
_HINT = "if a module of yours registers it, write MODULE:ID"


@dataclasses.dataclass(frozen=True)
class Simulator:
    """An environment by its name, and the sizes that the policies have.

    The name is a Gymnasium id, `MODULE:ID` if MODULE registers it, or `minari:NAME` for the environment in which what
    learned from that Minari data set is to be evaluated.
    """

    name: str
    observation_size: int
    action_size: int

    def make(self, **options: Any) -> "Plain":
        """The environment, made with `options`; UhmError if there is none of this name, or not of these sizes."""
        env = _made(self.name, options)
        try:
            for kind, space in (("observation", env.observation_space), ("action", env.action_space)):
                _check_space(f"{kind}s", space, getattr(self, f"{kind}_size"))
        except UhmError:
            with contextlib.suppress(Exception):  # some cannot be closed before they began
                env.close()
            raise
        return Plain(env)

    def check(self, reach: float = 1.0) -> None:
        """Refuse here and now what cannot be simulated, and warn of what may not be meant.

        A process of its own tries it out, as those do that evaluate: what this one knows besides, they do not know.
        `reach` is the largest number in the actions of the logs, without its sign.
        """
        setup = json.dumps(dataclasses.asdict(self))
        answer = subprocess.run(
            [sys.executable, "-P", *_TRIAL, setup],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=os.environ | {"PYTHONPATH": python_path(), "PYTHONWARNINGS": "ignore"},
            check=False,
        )
        if answer.returncode:
            last = (answer.stderr.decode(errors="replace").strip().splitlines() or ["it left no message"])[-1].strip()
            status = f"the process died (exit status {answer.returncode})"
            raise UhmError(f"cannot simulate '{self.name}': {status}: {last.rstrip('.')}.")
        found = json.loads(answer.stdout)
        if "error" in found:
            raise UhmError(found["error"])
        if not found["limited"]:
            warnings.warn(f"{self.name} sets no limit: its episodes are cut after {LIMIT} steps.", stacklevel=2)
        if reach <= found["largest_action"] * (1 + 1e-6) < 1:
            warnings.warn(
                f"the actions of the logs reach {reach:.3g}, and those of {self.name} end at "
                f"{found['largest_action']:.3g}, which here is 1: were they scaled by these bounds?",
                stacklevel=2,
            )


class Plain:
    """An environment with flat observations, actions in [-1, 1], and `success` always in its info, if only as NaN."""

    def __init__(self, env: gymnasium.Env):
        self.env = env
        self.action_space: Any = env.action_space
        self.metadata = env.metadata
        # A limit of the environment's own truncates by itself.
        self.limit = math.inf if env.spec is not None and env.spec.max_episode_steps else LIMIT

    def reset(self, *, seed: int) -> tuple[Float[np.ndarray, " S"], dict[str, Any]]:
        observation, info = self.env.reset(seed=seed)
        return _flat(observation), info

    def step(
        self, action: Float[np.ndarray, " A"]
    ) -> tuple[Float[np.ndarray, " S"], float, bool, bool, dict[str, float]]:
        observation, reward, terminated, truncated, info = self.env.step(self._scaled(action))
        success = info.get("success", info.get("is_success"))
        paid = _number("reward", reward)
        if not math.isfinite(paid):
            raise UhmError(f"the environment's reward is {paid}, and must be a finite number")
        said = {"success": math.nan if success is None else _number("success", success)}
        return _flat(observation), paid, bool(terminated), bool(truncated), said

    def render(self) -> Any:
        return self.env.render()

    def _scaled(self, action: Float[np.ndarray, " A"]) -> Num[np.ndarray, " A"]:
        """From [-1, 1] to the bounds of the action space, where it has any, and never beyond them."""
        space = self.action_space
        if not space.is_bounded():
            return action.astype(space.dtype)
        low, high = (bound.astype(np.float64) for bound in (space.low, space.high))
        scaled = np.clip(low + (action.astype(np.float64) + 1) / 2 * (high - low), low, high)
        return (scaled if space.dtype.kind == "f" else np.rint(scaled)).astype(space.dtype)


def python_path() -> str:
    """Where programs that simulate find modules: where this one does, and last where the user stands, for a module of
    theirs may have the simulator.
    """
    root = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"), *sys.path, str(Path.cwd()))))


def into_unit(actions: np.ndarray, space: gymnasium.Space) -> np.ndarray:
    """Actions of a bounded box, scaled to [-1, 1]; those of any other space as they are."""
    if not isinstance(space, gymnasium.spaces.Box) or not space.is_bounded():
        return actions
    low, high = (bound.astype(np.float64) for bound in (space.low, space.high))
    return actions if (low == -1).all() and (high == 1).all() else 2 * (actions - low) / (high - low) - 1


def normalised_returns(name: str, returns: Sequence[float]) -> list[float] | None:
    """Returns in the simulator `name` as Minari normalises them, 0 for a random policy and 1 for an expert; None where
    it is not Minari's, or Minari does not know both."""
    if not name.startswith(MINARI):
        return None
    import minari

    store = minari_store(name.removeprefix(MINARI))
    try:
        return np.asarray(minari.get_normalized_score(store, np.asarray(returns))).tolist()
    except ValueError:
        return None


def minari_store(name: str) -> Any:
    """A data set in Minari's local store."""
    try:
        import minari
    except ImportError as error:
        raise UhmError("Minari data need the extra: in the clone, pip install '.[minari]'.") from error
    try:
        return minari.load_dataset(name)
    except (FileNotFoundError, ValueError, KeyError) as error:
        raise UhmError(f"Minari has no local data set '{name}'; get it with: minari download {name}") from error


def _made(name: str, options: dict[str, Any]) -> gymnasium.Env:
    store = minari_store(name.removeprefix(MINARI)) if name.startswith(MINARI) else None
    if "" not in sys.path:  # a console script does not look where the user stands
        sys.path.append("")
    try:
        return gymnasium.make(name, **options) if store is None else store.recover_environment(True, **options)
    except (gymnasium.error.Error, ImportError, ValueError) as error:  # Minari's, of a data set that names none
        hint = f" ({_HINT})" if isinstance(error, gymnasium.error.UnregisteredEnv) and ":" not in name else ""
        raise UhmError(f"cannot make the environment '{name}': {' '.join(str(error).split())}{hint}") from error
    except Exception as error:  # whatever the user's own module does
        raise UhmError(f"cannot make the environment '{name}': {with_place(error)}.") from error


def _check_space(what: str, space: gymnasium.Space, size: int) -> None:
    if not isinstance(space, gymnasium.spaces.Box) or (what == "actions" and len(space.shape) != 1):
        raise UhmError(f"the environment's {what} are {space}, and must be a box of numbers.")
    if int(np.prod(space.shape)) != size:
        raise UhmError(f"the environment's {what} have {int(np.prod(space.shape))} numbers, those of the logs {size}.")


def _number(what: str, value: Any) -> float:
    """A number, which some environments put into an array."""
    if np.size(value) != 1:
        raise UhmError(f"the environment's {what} has shape {np.shape(value)}, and must be a number")
    return float(np.asarray(value).item())


def _flat(observation: Any) -> Float[np.ndarray, " S"]:
    return np.asarray(observation, np.float32).reshape(-1)
