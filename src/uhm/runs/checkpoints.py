"""Checkpoints: written by Orbax in the background, complete or invisible, verified when read.

A checkpoint is written below a temporary name and renamed when done, so a kill never leaves half of one under its
name. What a kill cannot do, a disk can: `manifest.json` holds a digest of every file and one of the tree itself.
"""

import contextlib
import errno
import hashlib
import itertools
import json
import logging
import math
import os
import shutil
import warnings
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import orbax.checkpoint as ocp

from uhm.errors import UhmError
from uhm.runs.files import write_json
from uhm.runs.trees import Record, digest, from_host, to_host

_TEMPORARY = ".tmp"
_REMOVED = ".removed"
_MANIFEST = "manifest.json"  # written last: a directory that has it is complete
_SLACK = 1 << 20  # what a checkpoint takes beyond its arrays


def _not_orbax(record: logging.LogRecord) -> bool:
    return "orbax" not in record.pathname


# Orbax tells its story through absl's logger, which others may use too. Its errors are raised as well as logged.
logging.getLogger("absl").addFilter(_not_orbax)


class Checkpoints:
    """The checkpoints below one directory: the last `keep` and the one with the highest score."""

    def __init__(self, directory: Path, keep: int):
        self.directory = directory.resolve()  # Orbax wants an absolute path
        self._keep = keep
        self._orbax = ocp.Checkpointer(ocp.PyTreeCheckpointHandler())
        self._worker = ThreadPoolExecutor(1, "checkpoint")
        self._pending: Future[None] | None = None
        self._attempts = itertools.count()
        self._scores: dict[int, float | None] = {}

    def steps(self) -> list[int]:
        """The steps with a complete checkpoint, in order."""
        paths = self.directory.iterdir() if self.directory.is_dir() else ()
        return sorted(int(path.name) for path in paths if path.name.isdecimal())

    def best(self) -> int | None:
        """The step with the highest score, the later of two equal ones."""
        self.wait()
        return self._best()

    def clean(self) -> None:
        """Finish or undo what a killed process was doing. Only for the one process that may write."""
        for path in self.directory.glob(f"*{_REMOVED}"):
            shutil.rmtree(path, ignore_errors=True)  # it was out of the way already
        for path in self.directory.glob(f"*{_TEMPORARY}"):
            if (path / _MANIFEST).exists():
                self._publish(path)
            else:
                shutil.rmtree(path, ignore_errors=True)

    def save(self, step: int, tree: Any, score: float | None) -> None:
        """Copy `tree` to host memory and return; the writing goes on in the background."""
        self.wait()  # at most one copy in memory, and a failed write is reported before the next begins
        arrays, records = to_host(tree)
        score = float(score) if score is not None and math.isfinite(score) else None
        self._pending = self._worker.submit(self._write, step, arrays, records, score)

    def rate(self, step: int, score: float) -> None:
        """Give the checkpoint of `step`, if it is still there, the score that was found out after it was saved."""
        self.wait()
        path = self.directory / str(step)
        if step not in self.steps() or not math.isfinite(score):
            return
        write_json(path / _MANIFEST, _manifest(path) | {"score": float(score)})
        self._scores[step] = float(score)
        self._prune()

    def wait(self) -> None:
        """Wait for the last save; UhmError if it failed."""
        pending, self._pending = self._pending, None
        if pending:
            pending.result()

    def close(self) -> None:
        try:
            self.wait()
        finally:
            self._worker.shutdown()
            self._orbax.close()

    def drop_after(self, step: int) -> None:
        self.wait()
        for later in reversed([s for s in self.steps() if s > step]):  # a kill in between leaves a shorter past
            self._remove(self.directory / str(later))

    def restore(self, template: Any, step: int | None) -> tuple[int, Any] | None:
        """The newest checkpoint that is intact (or the one of `step`) as a tree like `template`; None without any."""
        self.wait()
        tried: dict[int, str] = {}
        # Look again each time: a reader without the lock may see its checkpoint replaced by a newer one.
        while steps := [s for s in self.steps() if s not in tried and step in (None, s)]:
            newest = steps[-1]
            try:
                arrays, records = self._read(newest)
            except Exception as error:  # whatever Orbax and its storage raise for files that are not what they were
                tried[newest] = _first_line(error)
                continue
            for damaged in sorted(s for s in set(tried) & set(self.steps()) if s > newest):
                warnings.warn(
                    f"checkpoint {damaged} in {self.directory} is damaged ({tried[damaged]}); using {newest}.",
                    stacklevel=3,
                )
            return newest, from_host(arrays, records, template)
        if tried:
            why = "; ".join(f"{s}: {reason}" for s, reason in sorted(tried.items()))
            if step is not None:
                others = [s for s in self.steps() if s not in tried]
                raise UhmError(f"checkpoint {step} in {self.directory} cannot be read ({why}); others are {others}.")
            raise UhmError(f"no checkpoint in {self.directory} can be read ({why}): start again in a new directory.")
        if step is not None:
            raise UhmError(f"no checkpoint of step {step} in {self.directory}; there are {self.steps()}.")
        return None

    def _write(self, step: int, arrays: list[np.ndarray], records: list[Record], score: float | None) -> None:
        path = self._unused(step, _TEMPORARY)  # after a failure Orbax may still be writing in the other directory
        try:
            path.mkdir(parents=True)
            _reserve(path / "reserved", sum(array.nbytes for array in arrays) + _SLACK)
            tree = {_name(i): array for i, array in enumerate(arrays) if array.size}  # Orbax refuses empty arrays
            if tree:
                self._orbax.save(path / "tree", args=ocp.args.PyTreeSave(tree))
            files = {str(file.relative_to(path)): _file_digest(file) for file in path.rglob("*") if file.is_file()}
            manifest = {"step": step, "score": score, "sha256": digest(arrays, records), "leaves": records}
            write_json(path / _MANIFEST, manifest | {"files": files})
            self._publish(path)
            self._scores[step] = score
            self._prune()
        except Exception as error:  # a full disk reaches us as one of several types, depending on the layer
            shutil.rmtree(path, ignore_errors=True)  # gives its space back
            raise UhmError(
                f"cannot save checkpoint {step} in {self.directory}: {_first_line(error)}; the earlier ones are intact."
            ) from error

    def _prune(self) -> None:
        for old in set(self.steps()) - {*self.steps()[-self._keep :], self._best()}:
            # The new one is safe, and training must not end for an old one. If it stays, the next save tries again.
            with contextlib.suppress(OSError):
                self._remove(self.directory / str(old))

    def _read(self, step: int) -> tuple[list[np.ndarray], list[Record]]:
        path = self.directory / str(step)
        manifest = _manifest(path)
        # Before Orbax sees a file: it reads all leaves at once, and answers damage with a traceback for each.
        for name, sha in manifest["files"].items():
            if _file_digest(path / name) != sha:
                raise ValueError(f"{name} changed after it was written")
        records: list[Record] = manifest["leaves"]
        stored = {_name(i): 0 for i, record in enumerate(records) if 0 not in record["shape"]}
        kinds = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in stored}
        args = ocp.args.PyTreeRestore(stored, restore_args=kinds)
        tree = self._orbax.restore(path / "tree", args=args) if stored else {}
        arrays = [
            tree[_name(i)] if _name(i) in tree else np.empty(record["shape"], np.dtype(record["dtype"]))
            for i, record in enumerate(records)
        ]
        if manifest["step"] != step or digest(arrays, records) != manifest["sha256"]:
            raise ValueError("its contents changed after they were written")
        return arrays, records

    def _best(self) -> int | None:
        scores = {step: score for step in self.steps() if (score := self._score(step)) is not None}
        return max(scores, key=lambda step: (scores[step], step), default=None)

    def _score(self, step: int) -> float | None:
        if step not in self._scores:
            try:
                self._scores[step] = _manifest(self.directory / str(step))["score"]
            except (OSError, ValueError, KeyError):  # damaged, and so the best of nothing
                self._scores[step] = None
        return self._scores[step]

    def _publish(self, temporary: Path) -> None:
        path = temporary.with_name(temporary.name.split(".")[0])
        if path.exists():  # saved once more; a kill before the last line is made good by `clean`
            self._remove(path)
        temporary.rename(path)

    def _remove(self, path: Path) -> None:
        # The rename makes it disappear at once: a kill amid the deletion leaves no half-deleted checkpoint.
        removed = self._unused(int(path.name), _REMOVED)
        path.rename(removed)
        self._scores.pop(int(path.name), None)
        # On NFS a file that somebody has open keeps its folder; `clean` removes what is left.
        shutil.rmtree(removed, ignore_errors=True)

    def _unused(self, step: int, ending: str) -> Path:
        """A name that nothing has, nor had in this session."""
        names = (self.directory / f"{step}.{attempt}{ending}" for attempt in self._attempts)
        return next(path for path in names if not path.exists())


def _manifest(path: Path) -> dict[str, Any]:
    return json.loads((path / _MANIFEST).read_bytes())


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _reserve(path: Path, size: int) -> None:
    """Allocate and give back `size` bytes, which fails for whatever reason writing them would."""
    # Amid the writing Orbax answers a full disk with a traceback for each leaf, and other leaves go on in threads.
    with path.open("wb") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, size)
        except AttributeError:  # not on macOS
            pass
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # not on every file system
                raise
    path.unlink()


def _name(index: int) -> str:
    return f"leaf-{index:05d}"


def _first_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror}: {Path(error.filename).name}" if error.filename else error.strerror
    lines = str(error).strip().splitlines()
    return lines[0][:200].rstrip(".") if lines else type(error).__name__
