"""`load`: one call for every source of data.

OGBench's files are looked for in one directory, whether they were placed there, downloaded or generated; a path to an
npz file or `minari:NAME` is a user's own data. Rows are streamed into arrays of their final size, so loading needs the
data's size in memory once. With `placement="host"` OGBench's are streamed to flat files beside the data and
memory-mapped; one's own, whose files may be anywhere, stay in the host's memory.
"""

import hashlib
import importlib.metadata
import os
import platform
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from uhm import tasks
from uhm.data import available, files
from uhm.data.dataset import ACTION_LIMIT, Dataset, last_rows, make_dataset, share_of_ends
from uhm.data.generate import make
from uhm.data.goals import goals
from uhm.data.npz import NpzFile, aligned, check_finite
from uhm.data.npz_write import writing_data
from uhm.errors import UhmError
from uhm.tasks import Environment, Task

DEFAULT_DATA_DIR = Path("~/.ogbench/data")
CACHE = ".uhm-cache"
CACHE_FORMAT = 2
_PARTIAL = ".partial"

Split = Literal["train", "val"]
Allocate = Callable[[str, tuple[int, ...], type], np.ndarray]


def data_directory(data_dir: Path | str | None = None) -> Path:
    """Where data live: the argument, else UHM_DATA_DIR, else OGBench's own directory."""
    return Path(data_dir or os.environ.get("UHM_DATA_DIR") or DEFAULT_DATA_DIR).expanduser()


def load(
    what: str | Environment | Task | Sequence[Task],
    *,
    data_dir: Path | str | None = None,
    split: Split = "train",
    placement: Literal["device", "host"] = "device",
    transitions: int | None = None,
    dataset: str | None = None,
) -> Dataset:
    """The data of an environment (all five tasks), of some of its tasks, of an npz file, or of `minari:NAME`.

    `transitions` cuts after the first trajectories that hold as many; for the 100M sets it defaults to the paper's 10M,
    which reads only the first shards. `dataset` names another data set of the same environment, such as
    `cube-triple-play-v0`.
    """
    if placement not in ("device", "host"):
        raise UhmError(f"placement is '{placement}', and must be device or host.")
    wanted = _tasks(what)
    environment = wanted[0].environment
    if environment.own:
        if split != "train" or transitions is not None or dataset is not None:
            raise UhmError(
                f"{environment.name} is one set of rows: split, transitions and dataset are for OGBench's environments."
            )
        own = _own(environment.name)
        return own if placement == "host" else own.to_device()
    paths = find(environment, data_directory(data_dir), split, dataset)
    limit = transitions or (environment.transitions if len(paths) > 1 and split == "train" else None)
    if placement == "host":
        loaded = _cached(environment, paths, limit, data_directory(data_dir))
    else:
        loaded = _read(environment, paths, limit, lambda _, shape, dtype: aligned(shape, dtype))
    columns = [task.index - 1 for task in wanted]
    end_share = share_of_ends(loaded["masks"], loaded["terminals"])  # of all tasks, whichever are wanted
    if columns != list(range(tasks.TASKS_PER_ENVIRONMENT)):
        loaded["rewards"], loaded["masks"] = loaded["rewards"][columns], loaded["masks"][columns]
    built = make_dataset(**loaded, names=tuple(task.name for task in wanted), source=str(paths[0]), end_share=end_share)
    return built if placement == "host" else built.to_device()


def _tasks(what: str | Environment | Task | Sequence[Task]) -> tuple[Task, ...]:
    if isinstance(what, str):
        what = tasks.named(what)
    if isinstance(what, Environment):
        return what.tasks
    wanted = (what,) if isinstance(what, Task) else tuple(what)
    environments = {task.environment.name for task in wanted}
    if len(environments) != 1:
        raise UhmError(
            f"one data set holds one environment, not {len(environments)}: {', '.join(sorted(environments))}."
        )
    return wanted


def _own(name: str) -> Dataset:
    if name.startswith(tasks.MINARI):
        return files.load_minari(name.removeprefix(tasks.MINARI))
    return files.load_npz(Path(name))


def find(environment: Environment, data_dir: Path, split: Split = "train", dataset: str | None = None) -> list[Path]:
    """The files of a data set: one, or the shards of a folder in order."""
    name = (dataset or environment.dataset).removesuffix(".npz")
    single, folder = data_dir / f"{name}{'' if split == 'train' else '-val'}.npz", data_dir / name
    if single.is_file():
        return [single]
    if folder.is_dir():
        shards = sorted(p for p in folder.glob("*.npz") if p.stem.endswith("-val") == (split == "val"))
        if shards:
            return shards
    if dataset is not None:
        raise UhmError(f"no {split} data called {name} in {data_dir}: place {single.name} there.")
    place = f"the folder {name}" if environment.sharded else single.name
    ways = ", ".join(available.ways(environment))
    raise UhmError(f"no {split} data for {environment.name} in {data_dir}: {ways}, or place {place} there.")


def provide(environment: Environment, data_dir: Path) -> None:
    """Make the embedded default's data if they are not there: they take a second, and nobody should have to ask."""
    if environment is tasks.ROOMS:
        try:
            find(environment, data_dir)
        except UhmError:
            make(environment, data_dir, progress=False)


def count(paths: Sequence[Path]) -> int:
    """The number of transitions in files, of which only the ends of trajectories are read."""
    terminals, _ = _terminals([_opened(path) for path in paths], None)
    return len(terminals) - int(terminals.sum())


def generated(paths: Sequence[Path]) -> bool:
    """Whether any of the files was made by `uhm data make`, which leaves a note in what it makes."""
    return any(b'"environment"' in _opened(path).note for path in paths)


def _opened(path: Path) -> NpzFile:
    file = NpzFile(path, remedy="it may be half a download: delete it and get or make it again")
    file.require("terminals", 1)
    return file


def _read(environment: Environment, paths: list[Path], limit: int | None, allocate: Allocate) -> dict[str, np.ndarray]:
    """Stream the files into arrays made by `allocate(name, shape, dtype)`, checking and relabelling on the way."""
    opened = [_checked(environment, path) for path in paths]
    terminals, opened = _terminals(opened, limit)
    last_rows(terminals, str(paths[0]))  # refuse impossible trajectories before anything is written
    rows, goal = len(terminals), goals(environment)
    out = {
        "observations": allocate("observations", (rows, environment.observation_size), np.float32),
        "actions": allocate("actions", (rows, environment.action_size), np.float32),
        "terminals": allocate("terminals", (rows,), np.bool_),
        "rewards": allocate("rewards", (tasks.TASKS_PER_ENVIRONMENT, rows), np.int8),
        "masks": allocate("masks", (tasks.TASKS_PER_ENVIRONMENT, rows), np.bool_),
    }
    out["terminals"][:] = terminals
    start = 0
    for file in opened:
        first = start
        for field in goal.fields:
            file.require(field, 2)
        for block in file.rows(("observations", "actions", *goal.fields)):
            block = {name: values[: rows - start] for name, values in block.items()}
            stop = start + len(block["observations"])
            for field in ("observations", "actions"):
                check_finite(block[field], field, str(file.path), start - first)
            out["observations"][start:stop] = block["observations"]
            out["actions"][start:stop] = np.clip(block["actions"], -ACTION_LIMIT, ACTION_LIMIT)
            out["rewards"][:, start:stop], out["masks"][:, start:stop] = goal.label(block)
            start = stop
            if start == rows:
                return out
    return out


def _checked(environment: Environment, path: Path) -> NpzFile:
    """The file's headers, which must fit the environment."""
    file = _opened(path)
    for field, size in (("observations", environment.observation_size), ("actions", environment.action_size)):
        info = file.require(field, 2)
        if info.dtype.kind != "f":
            raise UhmError(f"{path}: field '{field}' has type {info.dtype}, expected floating point.")
        if info.shape[1] != size:
            raise UhmError(f"{path}: field '{field}' has size {info.shape[1]}, but {environment.name} has {size}.")
    return file


def _terminals(opened: list[NpzFile], limit: int | None) -> tuple[np.ndarray, list[NpzFile]]:
    """The trajectory ends of the files that are needed, cut after `limit` transitions at a trajectory's end."""
    parts: list[np.ndarray] = []
    used: list[NpzFile] = []
    have = 0
    for file in opened:
        if limit is not None and have >= limit:
            break
        part = np.concatenate([block["terminals"] for block in file.rows(("terminals",))]).astype(bool)
        have += len(part) - int(part.sum())
        parts.append(part)
        used.append(file)
    terminals = np.concatenate(parts)
    if limit is not None and have > limit:
        ends = np.flatnonzero(terminals)
        transitions = ends + 1 - np.arange(1, len(ends) + 1)
        enough = int(np.searchsorted(transitions, limit))
        if enough < len(ends):
            terminals = terminals[: ends[enough] + 1]
    return terminals, used


def _cached(environment: Environment, paths: list[Path], limit: int | None, data_dir: Path) -> dict[str, np.ndarray]:
    """The rows as memory-mapped flat files, written once per state of the source files and version of OGBench."""
    # What an entry is of, and what it was made from: there is one entry of a kind, which others make way for.
    kind = f"{environment.name}-{_digest([path.name for path in paths], limit)}"
    goals_from = None if environment is tasks.ROOMS else importlib.metadata.version("ogbench")
    stamp = [(path.stat().st_size, path.stat().st_mtime_ns) for path in paths]
    folder = data_dir / CACHE / kind / _digest(CACHE_FORMAT, goals_from, stamp)
    names = ("observations", "actions", "terminals", "rewards", "masks")
    if not folder.is_dir():
        partial = folder.with_name(f"{folder.name}.{platform.node()}.{os.getpid()}{_PARTIAL}")
        try:
            with writing_data(data_dir / CACHE):
                partial.mkdir(parents=True, exist_ok=True)
                written = _read(
                    environment,
                    paths,
                    limit,
                    lambda name, shape, dtype: np.lib.format.open_memmap(partial / f"{name}.npy", "w+", dtype, shape),
                )
                for array in written.values():
                    array.flush()  # type: ignore[attr-defined]
                del written
                try:
                    partial.rename(folder)
                except OSError:
                    if not folder.is_dir():  # else another process was faster, with the same
                        raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        for other in folder.parent.iterdir():
            if other != folder and not _being_written(other):
                shutil.rmtree(other, ignore_errors=True)
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in names}


def _digest(*values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:16]


def _being_written(path: Path) -> bool:
    """Whether it is the beginning of an entry whose process may be alive: those of other machines cannot be asked."""
    if path.suffix != _PARTIAL:
        return False
    host, _, process = path.stem.partition(".")[2].rpartition(".")
    if host != platform.node():
        return True
    try:
        os.kill(int(process), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:  # somebody else's
        pass
    return True
