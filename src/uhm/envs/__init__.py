"""Environments: OGBench's by name, and `rooms`, the embedded default."""

import warnings

import gymnasium

from uhm.tasks import ROOMS, Task

for _task in ROOMS.tasks:
    gymnasium.register(
        id=_task.gym_id,
        entry_point="uhm.envs.rooms:Rooms",
        max_episode_steps=ROOMS.episode_limit,
        kwargs={"task": _task.index},
    )


def make(task: Task, **kwargs) -> gymnasium.Env:
    """The environment of one task, quietly: OGBench warns about number types and missing displays on every make."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if task.environment is not ROOMS:
            import ogbench  # noqa: F401  registers its environments
        return gymnasium.make(task.gym_id, disable_env_checker=True, **kwargs)
