"""What a call of `uhm.data.generate.make` asks for: which files with which episodes, made with what.

All that can be refused is refused here, before anything is made.
"""

import importlib.metadata
from pathlib import Path
from typing import Any, NamedTuple

from uhm.data import collect
from uhm.data import expert as experts
from uhm.data.existing import as_asked, never_overwritten
from uhm.data.parts import Parts
from uhm.errors import UhmError
from uhm.tasks import ROOMS, Environment

EPISODES_PER_SHARD = 1000
_FORMAT = 1

Job = tuple[int, int]  # split, episode


class Shard(NamedTuple):
    """A pair of files to make, training and validation, and the episodes they are made of."""

    stem: Path
    episodes: tuple[range, range]

    def path(self, split: int) -> Path:
        return self.stem.with_name(f"{self.stem.name}{('', '-val')[split]}.npz")

    def jobs(self) -> list[Job]:
        return [(split, episode) for split, episodes in enumerate(self.episodes) for episode in episodes]


class Order(NamedTuple):
    """What is asked for: the files, and what decides about their contents."""

    environment: Environment
    data_dir: Path
    shards: list[Shard]
    manifest: dict[str, Any]
    expert: Path | None

    @property
    def files(self) -> dict[Path, tuple[int, int]]:
        """The files, each with its split and its number of episodes."""
        return {shard.path(split): (split, len(shard.episodes[split])) for shard in self.shards for split in (0, 1)}

    @property
    def parts(self) -> Parts:
        return Parts(self.data_dir / f"{self.environment.dataset}.parts")

    def finished(self) -> bool:
        """Whether all files are there; those that are not what is asked for are refused, unless a run is under way."""
        if self.environment.sharded:
            folder = next(iter(self.files)).parent
            others = {path.stem: path for path in folder.glob("*.npz") if path not in self.files}
            if others:
                raise never_overwritten(f"{others[min(others)]} exists and is not part of what is asked for")
        if self.parts.folder.exists():
            return False
        missing = [path for path, (_, count) in self.files.items() if not as_asked(path, count, self.manifest)]
        there = [path for path in self.files if path not in missing]
        if there and missing and self.environment is not ROOMS:
            # Perhaps OGBench's own, to which nothing made here is to be added.
            raise never_overwritten(f"{there[0]} exists without {missing[0].name}")
        return not missing


def order(
    environment: Environment, data_dir: Path, episodes: int | None, seed: int, expert: Path | None, rows: int | None
) -> Order:
    """The order for a data set of `environment`; `make` explains the arguments."""
    data_dir = data_dir.expanduser().resolve()
    rows = rows or (ROOMS.episode_limit + 1 if environment is ROOMS else collect.recipe(environment).rows)
    expert = _expert(environment, expert)
    episodes = environment.transitions // (rows - 1) if episodes is None else episodes
    for name, value, least in (("episodes", episodes, 1), ("seed", seed, 0)):
        if value < least:
            raise UhmError(f"{name} is {value}, and must be at least {least}.")
    shards = plan(environment, data_dir, episodes)
    return Order(environment, data_dir, shards, _manifest(environment, seed, rows, expert), expert)


def plan(environment: Environment, data_dir: Path, episodes: int) -> list[Shard]:
    """The files of a data set with that many training episodes: one pair, or a folder with a pair per 1000."""
    stem = data_dir / environment.dataset
    if not environment.sharded:
        return [Shard(stem, (range(episodes), _validation(0, episodes)))]
    stem = stem / environment.dataset.replace("-100m-", "-")
    shards = []
    for number, start in enumerate(range(0, episodes, EPISODES_PER_SHARD)):
        train = range(start, min(start + EPISODES_PER_SHARD, episodes))
        shards.append(Shard(stem.with_name(f"{stem.name}-{number:03d}"), (train, _validation(start, len(train)))))
    return shards


def _validation(start: int, episodes: int) -> range:
    return range(start // 10, start // 10 + max(1, round(episodes / 10)))


def _expert(environment: Environment, given: Path | None) -> Path | None:
    """The policy to walk by: the given one, or the package's where the environment needs one."""
    usual = None if environment is ROOMS else collect.recipe(environment).expert
    if usual is None and given is not None:
        raise UhmError(f"{environment.name} has its own scripted oracle: leave out --expert.")
    chosen = given or usual
    if chosen is not None:
        experts.load(chosen, environment.observation_size, environment.action_size)
    return chosen


def _manifest(environment: Environment, seed: int, rows: int, expert: Path | None) -> dict[str, Any]:
    """What must be the same for episodes of two runs to belong to one data set."""
    manifest = {
        "format": _FORMAT,
        "environment": environment.name,
        "seed": seed,
        "rows": rows,
        "expert": experts.digest(expert),
    }
    simulators = () if environment is ROOMS else ("mujoco", "ogbench")
    return manifest | {name: importlib.metadata.version(name) for name in simulators}
