"""The folder in which a data set grows: one file per finished episode, and a note of what they belong to.

Everything that lets a run be killed at any moment and go on later is here. An episode's file appears under its name
only when whole; a manifest says which run the episodes are of, so that two runs are never mixed; a lock says that a
run is in progress.
"""

import contextlib
import fcntl
import json
import os
import shutil
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from uhm.data.npz_write import atomically
from uhm.errors import UhmError

SPLITS = ("train", "val")


class Parts:
    """The folder of one data set's finished episodes."""

    def __init__(self, folder: Path):
        self.folder = folder

    def path(self, split: int, episode: int) -> Path:
        return self.folder / f"{SPLITS[split]}-{episode:06d}.npz"

    def save(self, split: int, episode: int, arrays: dict[str, np.ndarray]) -> None:
        def write(file: IO[bytes]) -> None:
            np.savez(file, allow_pickle=False, **arrays)

        atomically(self.path(split, episode), write)

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Hold the folder, made if need be, for this process alone."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "lock"
        with path.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise UhmError(f"another process is making {self.folder.stem} in {self.folder.parent}.") from None
            # A run that ended between the two lines above has removed the folder, and the lock held is of nothing.
            if not path.exists() or not os.path.samestat(path.stat(), os.fstat(file.fileno())):
                raise UhmError(f"another process has just finished {self.folder.stem} in {self.folder.parent}.")
            yield

    def belong_to(self, manifest: dict[str, Any]) -> None:
        """Refuse episodes that another run made; the first run leaves its manifest."""
        path = self.folder / "manifest.json"
        if not path.exists():
            if any(self.folder.glob("*.npz")):
                raise UhmError(f"{self.folder} holds episodes but no manifest.json: delete that folder.")
            atomically(path, lambda file: file.write(as_note(manifest)))
            return
        try:
            found = json.loads(path.read_text())
        except ValueError:
            raise UhmError(f"{path} is damaged: delete the folder {self.folder} to begin anew.") from None
        for key, wanted in manifest.items():
            if found.get(key) != wanted:
                raise UhmError(
                    f"{self.folder} holds episodes made with {key} {found.get(key)}, not {wanted}: "
                    f"use the same {key} to go on with them, or delete that folder to begin anew."
                )

    def refuse_more_than(self, wanted: Iterable[tuple[int, int]]) -> None:
        """Refuse to go on where there are other episodes than the wanted ones, which would be lost in the end."""
        names = {self.path(*job).name for job in wanted}
        others = [path for path in self.folder.glob("*.npz") if path.name not in names]
        if others:
            raise UhmError(
                f"{self.folder} holds {len(others)} episodes of a larger set that is not finished: "
                "ask for as many again to go on with it, or delete that folder."
            )

    @property
    def note(self) -> bytes:
        """The manifest, for the files that the episodes become."""
        return (self.folder / "manifest.json").read_bytes()

    def has(self, split: int, episode: int) -> bool:
        """Whether the episode is here and can be read to the end; one that cannot is removed."""
        path = self.path(split, episode)
        return path.exists() and _readable(path)

    def discard(self, split: int, episode: int) -> None:
        self.path(split, episode).unlink(missing_ok=True)

    def clean(self) -> None:
        """Remove what killed processes left half-written."""
        for path in self.folder.glob("*.tmp-*"):
            path.unlink(missing_ok=True)

    def remove(self) -> None:
        shutil.rmtree(self.folder)


def as_note(manifest: dict[str, Any]) -> bytes:
    """A manifest as it is kept, in the folder and in finished files."""
    return json.dumps(manifest, indent=1).encode()


def _readable(path: Path) -> bool:
    # A rename can reach the disk before the data when the power fails; zip's checksums tell.
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is None:
                return True
    except zipfile.BadZipFile:
        pass
    path.unlink()
    return False
