"""Small files that survive a kill: whole-file JSON, append-only JSON lines, and the lock."""

import fcntl
import gzip
import io
import json
import math
import mmap
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from uhm.errors import UhmError, writing


def plain(value: Any) -> Any:
    """The same value as JSON knows it. JSON has no NaN and no infinity: they become null."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # arrays and scalars of NumPy and JAX
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, os.PathLike) else value


def write_atomically(path: Path, data: bytes) -> None:
    """Write a temporary neighbour that takes the name of `path` once it is safely on disk."""
    temporary = path.with_name(f"{path.name}.tmp")  # one name is enough: the lock leaves one writer
    with writing(path):
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


def write_figure(path: Path, figure: Any, **options: Any) -> None:
    """A figure of matplotlib in the format that `path` ends in, whole or not at all.

    Drawn in memory: where the disk is full, its PDFs would end in another error than the disk's.
    """
    drawn = io.BytesIO()
    figure.savefig(drawn, format=path.suffix[1:], **options)
    write_atomically(path, drawn.getvalue())


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise UhmError(f"cannot read {path}: {error}.") from error
    if not isinstance(value, dict):
        raise UhmError(f"cannot read {path}: it does not hold a JSON object.")
    return value


class JsonLines:
    """A file with one JSON object per line, each with a `step`. A kill can only tear its last line."""

    def __init__(self, path: Path):
        self.path = path

    def append(self, records: Iterable[dict[str, Any]], sync: bool = False) -> None:
        """Add all records in one write, or none of them; `sync` waits until they are on disk."""
        data = b"".join(json.dumps(plain(record), allow_nan=False).encode() + b"\n" for record in records)
        with writing(self.path), self.path.open("ab", buffering=0) as file:
            before = file.seek(0, os.SEEK_END)
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[file.write(rest) :]
                if sync:
                    os.fsync(file.fileno())
            except OSError:
                file.truncate(before)  # or the next line would be appended to half a line
                raise

    def sync(self) -> None:
        if self.path.exists():
            with writing(self.path), self.path.open("ab") as file:
                os.fsync(file.fileno())

    def read(self) -> list[dict[str, Any]]:
        return [record for _, record in self._records()]

    def repair(self) -> None:
        """Drop a torn last line, of a file that may be large: only its end is read."""
        if not self.path.exists() or not self.path.stat().st_size:
            return
        with writing(self.path), self.path.open("r+b") as file:
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                size, end = len(data), data.rfind(b"\n") + 1
                start = data.rfind(b"\n", 0, max(0, end - 1)) + 1
                if _parsed(data[start:end]) is None:
                    end = start
            if end < size:
                file.truncate(end)

    def cut(self, step: int) -> None:
        """Drop what is later than `step`."""
        records = self._records()
        kept = [line for line, record in records if record["step"] <= step]
        if len(kept) < len(records):
            write_atomically(self.path, b"".join(kept))

    def open(self) -> io.BufferedIOBase:
        """The lines as they are, plain or, in the copy of a run that `publish` made, compressed; or none."""
        packed = self.path.with_name(f"{self.path.name}.gz")
        if self.path.exists():
            return self.path.open("rb")
        return gzip.GzipFile(packed) if packed.exists() else io.BytesIO()

    def _records(self) -> list[tuple[bytes, dict[str, Any]]]:
        """Every line and what it says, but for a torn last one."""
        with self.open() as file:
            lines = file.readlines()
        records: list[tuple[bytes, dict[str, Any]]] = []
        for number, line in enumerate(lines, 1):
            record = _parsed(line)
            if record is not None:
                records.append((line, record))
            elif number < len(lines):
                raise UhmError(f"{self.path} is damaged: line {number} is not JSON.")
        return records


def _parsed(line: bytes) -> dict[str, Any] | None:
    """The JSON object on a whole line; None if it is not one."""
    try:
        record = json.loads(line) if line.endswith(b"\n") else None
    except ValueError:
        return None
    return record if isinstance(record, dict) else None


class Lock:
    """One writer per directory. The system releases the lock when the process ends, however it ends."""

    def __init__(self, path: Path):
        with writing(path):
            self._file = path.open("a+")
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self._file.seek(0)
                owner = self._file.read().strip() or "another process"
                self._file.close()
                raise UhmError(f"{path.parent} is in use by {owner}.") from None
            except OSError:
                self._file.close()
                raise
            self._file.truncate(0)
            self._file.write(f"process {os.getpid()} on {platform.node()}\n")
            self._file.flush()

    def release(self) -> None:
        self._file.close()
