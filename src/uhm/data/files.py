"""A user's own data: an npz file of flat rows, or a Minari data set.

The npz layout is OGBench's: T + 1 rows for a trajectory of T transitions, `terminals` = 1 on each trajectory's last
row, plus `rewards`, and optionally `masks` (0 where the task ends at that row; none ends if absent). The reward and the
mask of a row belong to the action taken there.
"""

import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from uhm.data import convert
from uhm.data.dataset import ACTION_LIMIT, Dataset, make_dataset
from uhm.data.npz import NpzFile, aligned, check_finite
from uhm.envs.own import into_unit, minari_store
from uhm.errors import UhmError
from uhm.tasks import MINARI

_KEPT: dict[str, type] = {
    "observations": np.float32,
    "actions": np.float32,
    "terminals": np.bool_,
    "rewards": np.float32,
    "masks": np.bool_,
}
FIELDS = {"observations": 2, "actions": 2, "terminals": 1, "rewards": 1, "masks": 1}  # and their dimensions
# Other libraries' files of transitions have these. Read as rows, trajectories of theirs would be joined to each other.
_FOREIGN = (*convert.NAMES["next_observations"], *convert.NAMES["cuts"])


def load_npz(path: Path) -> Dataset:
    """The data set in one npz file, on the host."""
    file = NpzFile(path)
    _check_fields(file)
    fields = {name: ndim for name, ndim in FIELDS.items() if name != "masks" or name in file.arrays}
    for name, ndim in fields.items():
        file.require(name, ndim)
    return from_blocks(file.rows(fields), file.arrays["actions"].shape[0], path.stem, str(path))


def _check_fields(file: NpzFile) -> None:
    """Refuse another layout that has the same names in it, and name what nothing reads: it may be misspelt."""
    others = () if "terminals" in file.arrays else convert.NAMES["ends"]
    for name in (*_FOREIGN, *others):
        if name in file.arrays:
            raise UhmError(
                f"{file.path}: field '{name}' is of another layout, with a row per transition; to convert it: "
                f"uhm data convert {file.path} {file.path.stem}-rows.npz"
            )
    ignored = [name for name in file.arrays if name not in FIELDS]
    if ignored:
        names = ", ".join(f"'{name}'" for name in ignored)
        warnings.warn(f"{file.path}: nothing reads the fields {names}; known are {', '.join(FIELDS)}.", stacklevel=3)


def from_blocks(blocks: Iterable[dict[str, np.ndarray]], rows: int, name: str, source: str) -> Dataset:
    """Blocks of rows, `rows` in all, checked, as a data set of one task called `name`.

    They are copied into arrays of their final size and type, so that a large log is in memory once. `source` is what
    error messages call them.
    """
    out: dict[str, np.ndarray] = {}
    start, reach = 0, 0.0
    for block in blocks:
        for field in ("observations", "actions", "rewards"):
            check_finite(block[field], field, source, start)
        actions = block["actions"]
        masks = block.get("masks", np.ones(len(actions), bool))
        if not np.isin(masks, (0, 1)).all():
            raise UhmError(f"{source}: field 'masks' must be 0 (task ends here) or 1.")
        if not np.isin(block["terminals"], (0, 1)).all():
            raise UhmError(f"{source}: field 'terminals' must be 0, or 1 in the last row of a trajectory.")
        reach = max(reach, float(np.abs(actions).max()))
        kept = block | {"actions": np.clip(actions, -ACTION_LIMIT, ACTION_LIMIT), "masks": masks}
        out = out or {field: aligned((rows, *kept[field].shape[1:]), dtype) for field, dtype in _KEPT.items()}
        for field, values in out.items():
            values[start : start + len(actions)] = kept[field]
        start += len(actions)
    if reach > 1 + 1e-4:
        raise UhmError(f"{source}: field 'actions' reaches {reach:.6g}; scale actions to [-1, 1].")
    return make_dataset(
        observations=out["observations"],
        actions=out["actions"],
        terminals=out["terminals"],
        rewards=out["rewards"][None],
        masks=out["masks"][None],
        names=(name,),
        source=source,
    )


def load_minari(name: str) -> Dataset:
    """A Minari data set with flat observations and continuous actions, from Minari's local store.

    Actions are scaled from the bounds that the data set names to [-1, 1], as a simulator will scale them back.
    """
    store = minari_store(name)
    blocks: list[dict[str, np.ndarray]] = []
    for episode in store.iterate_episodes():
        observations, actions = np.asarray(episode.observations), np.asarray(episode.actions)
        flat = observations.ndim == actions.ndim == 2 and 0 not in observations.shape + actions.shape
        if not flat or actions.dtype.kind != "f":
            raise UhmError(f"{MINARI}{name}: only flat observations and continuous actions can be used.")
        actions = into_unit(actions, store.action_space)
        end = np.zeros(len(observations), bool)
        end[-1] = True
        blocks.append(
            {
                "observations": observations,
                # The row after the last transition has no action of its own: repeat, so that a' is at least real.
                "actions": np.concatenate([actions, actions[-1:]]),
                "rewards": np.append(episode.rewards, 0.0),
                "masks": 1.0 - np.append(episode.terminations, False),
                "terminals": end,
            }
        )
    return from_blocks(blocks, sum(len(block["actions"]) for block in blocks), name, f"{MINARI}{name}")
