"""Transitions of other libraries (D4RL, Gymnasium, a replay buffer) as rows of trajectories.

There every row is a transition (s, a, r, s'), with a flag where the task ended and, mostly, one where a trajectory was
cut. Here a trajectory of T transitions has T + 1 rows, the last one for where its last action led, so that futures can
be read off the rows that follow. A trajectory ends where a flag says so, and where s' is not the s of the next row.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float

from uhm.data.npz import NpzFile, check_finite
from uhm.errors import UhmError

# Ours, and what others call them; the first that is there counts.
NAMES = {
    "observations": ("observations", "observation", "obs", "states"),
    "actions": ("actions", "action"),
    "rewards": ("rewards", "reward"),
    "next_observations": ("next_observations", "next_observation", "next_obs", "next_states"),
    "ends": ("terminals", "terminations", "terminated", "dones", "done"),
    "cuts": ("timeouts", "truncations", "truncated", "truncateds"),
}
_EITHER = ("dones", "done")  # where cuts are told apart, these may be both
_NEEDED = ("observations", "actions", "rewards", "ends")
_MATRICES = ("observations", "actions", "next_observations")
_HDF5 = (".hdf5", ".h5")


class Converted(NamedTuple):
    """The arrays of a log, and what became of the transitions."""

    arrays: dict[str, np.ndarray]
    trajectories: int
    transitions: int
    ends: int  # of them end the task
    lost: int  # transitions whose s' nobody knows
    repeated: int  # ends after which the last s stands for s', which nobody knows
    either: bool  # whether ends were called what may be cuts as well
    reach: float  # the largest action, without its sign, where no bounds were given


def convert(
    transitions: Mapping[str, np.ndarray],
    low: float | Sequence[float] | None = None,
    high: float | Sequence[float] | None = None,
    source: str = "transitions",
) -> Converted:
    """Rows of trajectories; `low` and `high` are the bounds of the actions where these are not within [-1, 1].

    Without s', the last transition of a trajectory that was cut is lost. One that ends its task is kept, since no value
    follows it, with s again in place of s'.
    """
    given = _named(transitions, source)
    s, after = given["observations"], given.get("next_observations")
    a, r = _scaled(given["actions"], low, high, source), given["rewards"]
    ends, last = _ends(given, source)
    replaced = 0
    if after is not None and ends[:-1].any() and (after[:-1] == s[1:])[ends[:-1]].all():
        # As `d4rl.qlearning_dataset` has it: after every end comes where the next episode begins, which no action led
        # to. No value hangs on what stands there, but a model would learn it.
        after, replaced = np.where(ends[:, None], s, after), int(ends.sum())
    places = np.flatnonzero(last)
    # Where a row is added: after every trajectory, or only after those that end where s' is not known.
    grown = places if after is not None else places[ends[places]]

    def more(rows: np.ndarray, value: Any) -> np.ndarray:
        return np.insert(rows, grown + 1, value, axis=0)

    closing = np.zeros(len(s), bool)
    closing[np.setdiff1d(places, grown)] = True
    arrays = {
        "observations": more(s, s[grown] if after is None else after[grown]),
        "actions": more(a, a[grown]),
        "rewards": more(r, 0.0),
        "masks": more(~ends, True),
        "terminals": more(closing, True),
    }
    # A trajectory of one row without a successor has no transition.
    first = np.concatenate([[True], arrays["terminals"][:-1]])
    kept = ~(first & arrays["terminals"])
    if not kept.any():
        raise UhmError(f"{source}: no trajectory has a transition whose next state is known.")
    arrays = {name: np.ascontiguousarray(rows[kept]) for name, rows in arrays.items()}
    count = int(arrays["terminals"].sum())
    lost = len(places) - len(grown)
    repeated = len(grown) if after is None else replaced
    told_apart = (set(NAMES["ends"]) - set(_EITHER)) | set(NAMES["cuts"])
    either = told_apart.isdisjoint(transitions)
    reach = float(np.abs(a).max()) if low is None else 1.0
    size = len(arrays["terminals"]) - count
    return Converted(arrays, count, size, int(ends.sum()), lost, repeated, either, reach)


def remarks(done: Converted) -> list[str]:
    """What its user should know."""
    found = []
    if done.lost:
        found.append(f"{done.lost:,} transitions are lost: they were the last of a trajectory, and have no next state")
    if done.repeated:
        found.append(f"after {done.repeated:,} ends the last state is repeated, for the next one is not known")
    if done.either and done.ends:
        found.append("every 'done' was taken for an end of the task: if some are cuts, add 'timeouts' and try again")
    if done.reach < 0.99:
        found.append(f"actions reach {done.reach:.3g}: if their space has other bounds than -1 and 1, give these")
    if done.transitions < 1.5 * done.trajectories:
        found.append("most trajectories have one transition: are they in the order in which they happened?")
    return found


def read(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an npz or HDF5 file that `convert` knows."""
    known = [name for names in NAMES.values() for name in names]
    if path.suffix in _HDF5:
        return _read_hdf5(path, known)
    if path.suffix != ".npz":
        raise UhmError(f"{path} is no .npz, .hdf5 or .h5 file: save your arrays with numpy.savez.")
    file = NpzFile(path)
    found = [name for name in known if name in file.arrays]
    for name in found:
        file.require(name, max(1, len(file.arrays[name].shape)))
    if not found:
        return {}
    blocks = list(file.rows(found))
    return {name: np.concatenate([block[name] for block in blocks]) for name in found}


def _read_hdf5(path: Path, known: Sequence[str]) -> dict[str, np.ndarray]:
    try:
        import h5py
    except ImportError as error:
        raise UhmError("HDF5 files need a library: pip install h5py.") from error
    if not path.is_file():
        raise UhmError(f"{path}: no such file.")
    try:
        with h5py.File(path) as file:
            return {name: np.asarray(file[name]) for name in known if isinstance(file.get(name), h5py.Dataset)}
    except OSError as error:
        raise UhmError(f"{path}: not a readable HDF5 file ({error}).") from error


def _named(transitions: Mapping[str, np.ndarray], source: str) -> dict[str, np.ndarray]:
    """The arrays under our names, of equal length, flags and rewards as columns."""
    found = {ours: next((name for name in names if name in transitions), None) for ours, names in NAMES.items()}
    for ours in _NEEDED:
        if found[ours] is None:
            has = ", ".join(transitions) or "nothing that is known"
            raise UhmError(f"{source}: no field '{NAMES[ours][0]}' (or {', '.join(NAMES[ours][1:])}); it has {has}.")
    given = {ours: np.asarray(transitions[name]) for ours, name in found.items() if name is not None}
    rows = len(given["observations"])
    for ours, array in given.items():
        name = found[ours]
        if array.dtype.kind not in "fiub":
            raise UhmError(f"{source}: field '{name}' has type {array.dtype}, expected numbers.")
        if ours not in _MATRICES and array.ndim == 2 and array.shape[1] == 1:
            given[ours] = array = array[:, 0]
        if array.ndim != (2 if ours in _MATRICES else 1):
            raise UhmError(f"{source}: field '{name}' has shape {array.shape}, expected rows of numbers.")
        if len(array) != rows or not rows:
            raise UhmError(f"{source}: field '{name}' has {len(array)} rows, '{found['observations']}' has {rows}.")
        if ours == "actions" and array.dtype.kind != "f":
            raise UhmError(f"{source}: the actions are {array.dtype}: only continuous ones, floats, can be used.")
        if ours in ("observations", "actions", "rewards", "next_observations"):
            check_finite(array, str(name), source)
        if ours in ("observations", "rewards", "next_observations"):
            given[ours] = array.astype(np.float32, copy=False)
    after = given.get("next_observations")
    if after is not None and after.shape != given["observations"].shape:
        raise UhmError(f"{source}: next observations have {after.shape[1]} numbers, and observations other ones.")
    if found["ends"] in _EITHER and "cuts" in given:
        given["ends"] = given["ends"] * (1 - given["cuts"].astype(np.int8))
    return given


def _ends(given: dict[str, np.ndarray], source: str) -> tuple[Bool[np.ndarray, " rows"], Bool[np.ndarray, " rows"]]:
    """Which transitions end the task, and which are the last ones of their trajectories."""
    for flag in ("ends", "cuts"):
        if flag in given and not np.isin(given[flag], (0, 1)).all():
            raise UhmError(f"{source}: the flags of {flag} must be 0 or 1.")
    ends, after = given["ends"].astype(bool), given.get("next_observations")
    last = np.append(np.zeros(len(ends) - 1, bool), True) | ends
    if "cuts" in given:
        last |= given["cuts"].astype(bool)
    elif after is None:
        raise UhmError(
            f"{source}: neither 'timeouts' (or {', '.join(NAMES['cuts'][1:])}) nor 'next_observations': where a "
            "trajectory was cut cannot be known; add the one or the other."
        )
    if after is not None:
        last[:-1] |= (after[:-1] != given["observations"][1:]).any(1)
    return ends, last


def _scaled(
    a: np.ndarray, low: float | Sequence[float] | None, high: float | Sequence[float] | None, source: str
) -> Float[np.ndarray, "rows A"]:
    """Actions within [-1, 1]."""
    if (low is None) != (high is None):
        raise UhmError("bounds of actions come in two: give both, low and high.")
    below, above = np.asarray(-1.0 if low is None else low, float), np.asarray(1.0 if high is None else high, float)
    if any(bound.shape not in ((), (1,), a.shape[1:]) for bound in (below, above)):
        raise UhmError(f"{source}: actions have {a.shape[1]} numbers: give one bound for all, or as many.")
    if not (below < above).all():
        raise UhmError("the low bounds of actions must be below the high ones.")
    if low is None:
        scaled = a.astype(np.float32, copy=False)
    else:
        scaled = (2 * (a.astype(np.float64) - below) / (above - below) - 1).astype(np.float32)
    reach = float(np.abs(scaled).max())
    if not reach <= 1 + 1e-4:
        told = "beyond these bounds" if low is not None else f"up to {reach:g}: give the bounds, --low and --high"
        raise UhmError(f"{source}: there are actions {told}.")
    return scaled
