"""One process at a time works on a run, also across machines.

On one machine the run's own lock decides: it ends with its process, however that ends. Between machines that share
storage a lock may not reach (NFS without it), and a machine that was given up for dead may not be dead. So the worker
also keeps a lease beside the run and renews it every `BEAT` seconds. Another machine takes over only after `SILENCE`
seconds without a beat; a worker that finds the lease in other hands, or cannot renew it for half that time, ends at
once, before it could write again.
"""

import os
import platform
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from uhm.errors import UhmError
from uhm.runs.files import Lock, read_json, write_json

BEAT = 2.0
SILENCE = 20.0
LOST = 76  # exit status of a worker whose lease went to another


class Lease:
    """Held inside `with`. Waits up to `patience` seconds for whoever holds it."""

    def __init__(self, path: Path, directory: Path, patience: float, where: str = "", host: str | None = None):
        self.path, self.directory, self.patience = path, directory, patience
        self.record: dict[str, Any] = {
            "token": uuid.uuid4().hex,
            "host": host or platform.node(),
            "process": os.getpid(),
            "where": where,
            "beat": 0,
        }
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True, name="uhm-lease")

    def __enter__(self) -> "Lease":
        end = time.monotonic() + self.patience
        self._await_silence(end)
        self._await_lock(end)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.path, self.record)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        if (read(self.path) or {}).get("token") == self.record["token"]:
            self.path.unlink(missing_ok=True)

    def _await_silence(self, end: float) -> None:
        """Until the holder, if any, lets go or has been silent for long enough. One of this machine that has ended is
        not waited for; one that has not may not have come as far as the run's lock."""
        last, since = read(self.path), time.monotonic()
        while last is not None and (last.get("host") != self.record["host"] or _alive(last.get("process"))):
            time.sleep(min(BEAT, SILENCE) / 4)
            now = read(self.path)
            if now != last:
                last, since = now, time.monotonic()
            elif time.monotonic() - since > SILENCE:
                return
            if time.monotonic() > end + SILENCE and last is not None:
                raise UhmError(f"{self.directory} is in use by process {last.get('process')} on {last.get('host')}.")

    def _await_lock(self, end: float) -> None:
        """Until the run's lock is free: a worker that was given up for dead takes a moment to die."""
        while self.directory.is_dir():
            try:
                Lock(self.directory / "lock").release()
            except UhmError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)
            else:
                return

    def _renew(self) -> None:
        good = time.monotonic()
        while not self._stop.wait(BEAT):
            try:
                there = read(self.path)
                if there is not None and there.get("token") != self.record["token"]:
                    _end()
                self.record["beat"] += 1
                write_json(self.path, self.record)
                good = time.monotonic()
            except (OSError, UhmError):  # storage that is away for a moment; for longer, another may have taken over
                if time.monotonic() - good > SILENCE / 2:
                    _end()


def _alive(process: Any) -> bool:
    """Whether there is a process of this number on this machine, other than this one."""
    if not isinstance(process, int) or process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        pass
    return True


def _end() -> None:
    os._exit(LOST)  # no clean-up: that would write


def read(path: Path) -> dict[str, Any] | None:
    """The lease, or None if nobody holds one."""
    with suppress(UhmError):
        return read_json(path)
    return None


def lease_of(directory: Path) -> Path:
    """Beside the run, for a run's directory has to be empty when it begins."""
    return directory.parent / ".suite" / f"{directory.name}.lease"


def log_of(directory: Path) -> Path:
    return directory.parent / ".suite" / f"{directory.name}.log"
