"""Episodes in a simulator of the user's own, for runs on logs: any Gymnasium environment with flat observations and
actions in a box.

Policies act within [-1, 1], as logs must have it, and a bounded box is reached by scaling that to its bounds.
Environments run in this process, up to `_AT_ONCE` of them in lockstep, so that policies act on batches.
"""

import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np
from jaxtyping import Float

from uhm.data.files import minari_store
from uhm.errors import UhmError
from uhm.evaluate.records import brief, episode_seeds
from uhm.tasks import MINARI

_AT_ONCE = 16
LIMIT = 1000  # steps, of environments that set none
Make = Callable[[], gymnasium.Env]
Of = Callable[[Any], Any]


def simulator(name: str) -> Make:
    """What makes the environment called `name`: a Gymnasium id, `MODULE:ID` if MODULE registers it, or `minari:NAME`
    for the environment that a Minari data set was recorded in."""
    recorded = minari_store(name.removeprefix(MINARI)) if name.startswith(MINARI) else None
    if "" not in sys.path:  # a console script does not look where the user stands
        sys.path.append("")

    def make() -> gymnasium.Env:
        try:
            return recorded.recover_environment() if recorded else gymnasium.make(name)
        except (gymnasium.error.Error, ImportError) as error:
            raise UhmError(f"cannot make the environment '{name}': {' '.join(str(error).split())}") from error

    return make


def normalised(name: str, returns: Sequence[float]) -> list[float] | None:
    """Returns as Minari normalises them, 0 for a random policy and 1 for an expert, where it knows both."""
    import minari

    try:
        return np.asarray(minari.get_normalized_score(minari_store(name), np.asarray(returns))).tolist()
    except ValueError:
        return None


def episodes(
    make: Make,
    policy: Of,
    value: Of | None,
    count: int,
    *,
    seed: int,
    step: int,
    discount: float,
    sizes: tuple[int, int],
) -> list[dict[str, Any]]:
    """`count` episodes of a policy, as records: return, length, discounted, `success` if the environment says it, and
    `value`, what the critic expected at the first observation.

    They depend on `seed` and `step` alone, unless the policy draws. `sizes` are those of observations and actions,
    which must be the run's.
    """
    made = [make() for _ in range(min(count, _AT_ONCE))]
    try:
        _check(made[0], sizes)
        found: list[dict[str, Any]] = []
        for first in range(0, count, len(made)):
            numbers = range(first, min(first + len(made), count))
            seeds = [episode_seeds(seed, step, 0, number)[0] for number in numbers]
            found += _together(made[: len(seeds)], policy, value, seeds, discount)
        return [{"episode": number, **record} for number, record in enumerate(found)]
    finally:
        for env in made:
            env.close()


def _together(
    made: list[gymnasium.Env], policy: Of, value: Of | None, seeds: list[int], discount: float
) -> Iterator[dict[str, Any]]:
    """One episode in each environment, in lockstep."""
    rows = np.stack([_flat(env.reset(seed=seed)[0]) for env, seed in zip(made, seeds, strict=True)])
    records: list[dict[str, Any]] = [{"return": 0.0, "length": 0, "discounted": 0.0} for _ in made]
    for record, expected in zip(records, [] if value is None else np.asarray(value(rows)).tolist(), strict=False):
        record["value"] = brief(expected)
    running = list(range(len(made)))
    while running:
        # All rows, finished ones too: another number of rows would be another program.
        actions = np.nan_to_num(np.asarray(policy(rows), np.float64)).clip(-1, 1)
        for lane in list(running):
            observation, reward, terminated, truncated, info = made[lane].step(_scaled(made[lane], actions[lane]))
            rows[lane], record = _flat(observation), records[lane]
            record["return"] += float(reward)
            record["discounted"] += discount ** record["length"] * float(reward)
            record["length"] += 1
            if terminated or truncated or record["length"] >= _limit(made[lane]):
                success = info.get("success", info.get("is_success"))
                record |= {} if success is None else {"success": float(success)}
                running.remove(lane)
    for record in records:
        yield {**record, "return": brief(record["return"]), "discounted": brief(record["discounted"])}


def _limit(env: gymnasium.Env) -> float:
    """A limit of the environment's own truncates by itself."""
    return float("inf") if env.spec is not None and env.spec.max_episode_steps else LIMIT


def _flat(observation: Any) -> Float[np.ndarray, " S"]:
    return np.asarray(observation, np.float32).reshape(-1)


def _scaled(env: gymnasium.Env, action: Float[np.ndarray, " A"]) -> Float[np.ndarray, " A"]:
    """From [-1, 1] to the bounds of the action space, where it has any."""
    space: Any = env.action_space
    if not space.is_bounded():
        return action.astype(space.dtype)
    return (space.low + (action + 1) / 2 * (space.high - space.low)).astype(space.dtype)


def _check(env: gymnasium.Env, sizes: tuple[int, int]) -> None:
    kinds = ("observations", "actions")
    for kind, space, size in zip(kinds, (env.observation_space, env.action_space), sizes, strict=True):
        if not isinstance(space, gymnasium.spaces.Box) or (kind == "actions" and len(space.shape) != 1):
            raise UhmError(f"the environment's {kind} are {space}, and must be a box of numbers.")
        if int(np.prod(space.shape)) != size:
            raise UhmError(f"the environment's {kind} have {int(np.prod(space.shape))} numbers, the run's {size}.")
    if env.spec is None or not env.spec.max_episode_steps:
        warnings.warn(f"the environment sets no limit: its episodes are cut after {LIMIT} steps.", stacklevel=2)
