"""Write npz files piece by piece, so that a data set larger than memory can be put together from its episodes.

The files are uncompressed, and the same data always gives the same bytes (no dates). A file appears under its name only
when it is whole.
"""

import contextlib
import io
import os
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from uhm.errors import writing


def writing_data(data_dir: Path) -> contextlib.AbstractContextManager[None]:
    """`uhm.errors.writing`, with the ways out that data have."""
    return writing(data_dir, "free some space there, or name another directory with --data-dir or UHM_DATA_DIR")


def atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Call `write` on a temporary neighbour of `path` that takes its name once it is safely on disk."""
    temporary = path.with_name(f"{path.name}.tmp-{os.getpid()}")
    try:
        with temporary.open("w+b") as file:  # readable too, for what goes back to write a note
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def save(path: Path, arrays: dict[str, np.ndarray], note: bytes = b"") -> None:
    """An npz file of `arrays`, with `note` as the archive's comment."""

    def write(file: IO[bytes]) -> None:
        np.savez(file, allow_pickle=False, **arrays)
        with zipfile.ZipFile(file, "a") as archive:
            archive.comment = note

    atomically(path, write)


def concatenate(path: Path, parts: Sequence[Path], note: bytes = b"") -> None:
    """Join npz files, all with the same arrays, row after row into one, reading one array of one part at a time."""
    with np.load(parts[0], allow_pickle=False) as first:
        names = first.files
    rows = sum(_read(part, names[0]).shape[0] for part in parts)

    def write(file: IO[bytes]) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            archive.comment = note
            for name in names:
                member = zipfile.ZipInfo(f"{name}.npy")  # its date defaults to 1980
                with archive.open(member, "w", force_zip64=True) as stream:
                    for chunk in _array(name, rows, parts):
                        stream.write(chunk)

    atomically(path, write)


def _array(name: str, rows: int, parts: Sequence[Path]) -> Iterator[bytes]:
    """The bytes of an npy file with the arrays called `name` of all parts, `rows` in total."""
    for k, part in enumerate(parts):
        array = _read(part, name)
        if k == 0:
            header = io.BytesIO()
            shape = (rows, *array.shape[1:])
            np.lib.format.write_array_header_1_0(
                header, np.lib.format.header_data_from_array_1_0(array) | {"shape": shape}
            )
            yield header.getvalue()
        yield array.tobytes()


def _read(part: Path, name: str) -> np.ndarray:
    with np.load(part, allow_pickle=False) as file:
        return file[name]
