"""A simulator of a user's own, which registers itself: what `--env line_module:Line-v0` finds."""

import threading
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np


class Line(gymnasium.Env):
    """A point on a line, moved by half the action within [-4, 4]; it pays what it is moved by, and ends beyond 3."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1, 1), np.float64)
    action_space = gymnasium.spaces.Box(-4.0, 4.0, (1,), np.float32)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 5}  # noqa: RUF012

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.x = self.np_random.uniform(0, 0.5)
        return np.array([[self.x]]), {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.x += float(action[0]) / 2
        return np.array([[self.x]]), float(action[0]) / 2, self.x > 3, False, self.about()

    def about(self) -> dict[str, Any]:
        return {"is_success": self.x > 3}

    def render(self) -> Any:
        return np.full((48, 64, 3), 40 * self.x, np.uint8) if self.render_mode else None


class Silent(Line):
    """One that does not know success, has no limit, and cannot be seen."""

    def about(self) -> dict[str, Any]:
        return {}

    def render(self) -> None:
        return None


class Unpaid(Line):
    """One whose rewards are no numbers."""

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, float("nan"), terminated, truncated, info


class Boxed(Line):
    """One that puts its numbers into arrays."""

    def step(self, action: np.ndarray) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, np.array([reward]), terminated, truncated, {"success": np.array([info["is_success"]])}


class Many(Line):
    """One with several rewards."""

    def step(self, action: np.ndarray) -> tuple[np.ndarray, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, [reward, reward], terminated, truncated, info


class Filed(Line):
    """One that reads a file from where its user stands, and says so."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        print("start:", Path("start.txt").read_text())
        return super().reset(seed=seed)


class Threaded(Line):
    """One that fails, and leaves a thread behind that never ends; it cannot be closed either."""

    def step(self, action: np.ndarray) -> Any:
        threading.Thread(target=threading.Event().wait).start()
        raise ArithmeticError("no way")

    def close(self) -> None:
        raise AttributeError("no viewer")


class Tired(Line):
    """One that begins only once."""

    begun = False

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        if self.begun:
            raise ArithmeticError("enough")
        self.begun = True
        return super().reset(seed=seed)


class Unborn(Line):
    """One that cannot be made."""

    def __init__(self, render_mode: str | None = None):
        raise KeyError("no such map")


class Broken(Line):
    """One that fails when it is left."""

    def about(self) -> dict[str, Any]:
        if self.x > 3:
            raise ArithmeticError("nothing is\nbeyond 3")
        return {}


gymnasium.register("Line-v0", f"{__name__}:Line", max_episode_steps=6)
gymnasium.register("Silent-v0", f"{__name__}:Silent")
gymnasium.register("Unpaid-v0", f"{__name__}:Unpaid", max_episode_steps=6)
for kind in (Boxed, Many, Filed, Threaded, Tired):
    gymnasium.register(f"{kind.__name__}-v0", f"{__name__}:{kind.__name__}", max_episode_steps=6)
gymnasium.register("Unborn-v0", f"{__name__}:Unborn")
gymnasium.register("Broken-v0", f"{__name__}:Broken", max_episode_steps=6)
