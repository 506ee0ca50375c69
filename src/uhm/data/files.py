"""A user's own data: an npz file of flat rows, or a Minari data set.

The npz layout is OGBench's: T + 1 rows for a trajectory of T transitions, `terminals` = 1 on each trajectory's last
row, plus `rewards`, and optionally `masks` (0 where the task ends at that row; none ends if absent). The reward and the
mask of a row belong to the action taken there.
"""

from pathlib import Path
from typing import Any

import numpy as np

from uhm.data.dataset import ACTION_LIMIT, Dataset, make_dataset
from uhm.data.npz import NpzFile
from uhm.errors import UhmError
from uhm.tasks import MINARI


def load_npz(path: Path) -> Dataset:
    """The data set in one npz file, on the host."""
    file = NpzFile(path)
    fields = {"observations": 2, "actions": 2, "terminals": 1, "rewards": 1}
    if "masks" in file.arrays:
        fields["masks"] = 1
    for name, ndim in fields.items():
        file.require(name, ndim)
    blocks = list(file.rows(fields))
    columns = {name: np.concatenate([block[name] for block in blocks]) for name in fields}
    return from_rows(columns, path.stem, str(path))


def from_rows(columns: dict[str, np.ndarray], name: str, source: str) -> Dataset:
    """Checked rows as a data set of one task called `name`; `source` is what error messages call them."""
    for field in ("observations", "actions", "rewards"):
        check_finite(columns[field], field, source)
    actions = columns["actions"]
    if np.abs(actions).max() > 1 + 1e-4:
        raise UhmError(f"{source}: field 'actions' reaches {np.abs(actions).max():.3g}; scale actions to [-1, 1].")
    masks = columns.get("masks", np.ones(len(actions), bool))
    if not np.isin(masks, (0, 1)).all():
        raise UhmError(f"{source}: field 'masks' must be 0 (task ends here) or 1.")
    return make_dataset(
        observations=columns["observations"].astype(np.float32),
        actions=np.clip(actions, -ACTION_LIMIT, ACTION_LIMIT).astype(np.float32),
        terminals=columns["terminals"],
        rewards=columns["rewards"][None],
        masks=masks.astype(bool)[None],
        names=(name,),
        source=source,
    )


def check_finite(values: np.ndarray, field: str, source: str, first_row: int = 0) -> None:
    """Refuse NaN and infinity, naming the first row that has one."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        row = first_row + int(np.argwhere(~np.isfinite(values))[0, 0])
        raise UhmError(f"{source}: field '{field}' has NaN or infinite values, the first at row {row}.")


def load_minari(name: str) -> Dataset:
    """A Minari data set with flat observations and continuous actions in [-1, 1], from Minari's local store."""
    try:
        import minari
    except ImportError as error:
        raise UhmError("Minari data need the extra: pip install 'uhm[minari]'.") from error
    try:
        store = minari.load_dataset(name)
    except (FileNotFoundError, ValueError, KeyError) as error:
        raise UhmError(f"Minari has no local data set '{name}'; get it with: minari download {name}") from error
    parts: dict[str, list[Any]] = {f: [] for f in ("observations", "actions", "terminals", "rewards", "masks")}
    for episode in store.iterate_episodes():
        observations, actions = np.asarray(episode.observations), np.asarray(episode.actions)
        if observations.ndim != 2 or actions.ndim != 2 or actions.dtype.kind != "f":
            raise UhmError(f"{MINARI}{name}: only flat observations and continuous actions can be used.")
        end = np.zeros(len(observations), bool)
        end[-1] = True
        parts["observations"].append(observations)
        # The row after the last transition has no action of its own: repeat, so that a' is at least a real action.
        parts["actions"].append(np.concatenate([actions, actions[-1:]]))
        parts["rewards"].append(np.append(episode.rewards, 0.0))
        parts["masks"].append(1.0 - np.append(episode.terminations, False))
        parts["terminals"].append(end)
    columns = {field: np.concatenate(values) for field, values in parts.items()}
    return from_rows(columns, name, f"{MINARI}{name}")
