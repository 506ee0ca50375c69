"""Reading npz files without trust and without a second copy in memory.

`NpzFile` looks at the headers only; `rows` streams chosen arrays in blocks of rows, so that a file of any size,
compressed or not, passes through a fixed amount of memory on its way to where it will live. Object arrays, and with
them pickles, are refused before a single byte of them is read.
"""

import contextlib
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from uhm.errors import UhmError

LARGEST = 1e18  # networks and losses square and add what they are given, and 32 bits end at 3e38
# What zipfile raises on a damaged file, and on one that it cannot read: locked, or compressed in another way.
_UNREADABLE = (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError)


class ArrayInfo(NamedTuple):
    """What an array's header says."""

    shape: tuple[int, ...]
    dtype: np.dtype


class NpzFile:
    """The headers of an npz file: `arrays` maps a field's name to its shape and type.

    `remedy` is what to do about a damaged one, which depends on where it came from. `note` is the archive's comment.
    """

    def __init__(self, path: Path, remedy: str = "save it again, with numpy.savez"):
        self.path, self.remedy = path, remedy
        self.note = b""
        self.arrays: dict[str, ArrayInfo] = {}
        if not path.is_file():
            raise UhmError(f"{path}: no such file.")
        try:
            with zipfile.ZipFile(path) as archive:
                self.note = archive.comment
                for member in archive.namelist():
                    if member.endswith(".npy"):
                        with archive.open(member) as stream:
                            name = member.removesuffix(".npy")
                            self.arrays[name] = _read_header(stream, path, name)
        except _UNREADABLE as error:
            raise UhmError(f"{path}: not a readable npz file ({error}); {remedy}.") from error

    def require(self, name: str, ndim: int) -> ArrayInfo:
        """The header of field `name`, which must exist, be numeric and have `ndim` dimensions."""
        if name not in self.arrays:
            raise UhmError(f"{self.path}: field '{name}' is missing; it has {', '.join(self.arrays) or 'no fields'}.")
        info = self.arrays[name]
        if info.dtype.kind not in "fiub":
            raise UhmError(f"{self.path}: field '{name}' has type {info.dtype}, expected numbers.")
        if len(info.shape) != ndim:
            raise UhmError(f"{self.path}: field '{name}' has shape {info.shape}, expected {ndim} dimension(s).")
        if not info.shape[0]:
            raise UhmError(f"{self.path}: field '{name}' has no rows.")
        if 0 in info.shape:
            raise UhmError(f"{self.path}: field '{name}' has rows of width 0; each needs at least one number.")
        return info

    def rows(self, names: Iterable[str], block: int = 1 << 16) -> Iterator[dict[str, np.ndarray]]:
        """The named arrays in step, `block` rows at a time; they must have the same number of rows."""
        names = list(names)
        total = self.arrays[names[0]].shape[0]
        for name in names:
            if self.arrays[name].shape[0] != total:
                raise UhmError(
                    f"{self.path}: field '{name}' has {self.arrays[name].shape[0]} rows, '{names[0]}' has {total}."
                )
        with contextlib.ExitStack() as stack:
            try:
                archive = stack.enter_context(zipfile.ZipFile(self.path))
                streams = {name: stack.enter_context(archive.open(f"{name}.npy")) for name in names}
                for name, stream in streams.items():
                    _read_header(stream, self.path, name)
                for start in range(0, total, block):
                    count = min(block, total - start)
                    yield {name: _read_rows(streams[name], self.arrays[name], count) for name in names}
            except _UNREADABLE as error:
                raise UhmError(f"{self.path}: damaged ({error}); {self.remedy}.") from error


def check_finite(values: np.ndarray, field: str, source: str, first_row: int = 0) -> None:
    """Refuse what is no number, or none that can be learned from, in the 32 bits that are kept; names the first row."""
    with np.errstate(over="ignore"):
        kept = values.astype(np.float32, copy=False)
    if kept.min() >= -LARGEST and kept.max() <= LARGEST:  # neither is true where there is a NaN
        return
    at = tuple(np.argwhere(~(np.abs(kept) <= LARGEST))[0])
    row = first_row + int(at[0])
    if np.isfinite(values[at]):
        raise UhmError(
            f"{source}: field '{field}' has {values[at]:.6g} at row {row}, "
            f"and cannot be learned from beyond {LARGEST:g}: scale the field, or drop that trajectory."
        )
    raise UhmError(f"{source}: field '{field}' has NaN or infinite values, the first at row {row}.")


def _read_header(stream: Any, path: Path, name: str) -> ArrayInfo:
    try:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(stream)
        else:
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(stream)
    except ValueError as error:
        raise UhmError(f"{path}: field '{name}' is not a numpy array ({error}).") from error
    if dtype.hasobject:
        raise UhmError(f"{path}: field '{name}' holds Python objects (a pickle), which are never loaded.")
    if fortran and len(shape) > 1:
        raise UhmError(f"{path}: field '{name}' is stored column by column; save it in C order.")
    return ArrayInfo(shape, dtype)


def _read_rows(stream: Any, info: ArrayInfo, count: int) -> np.ndarray:
    out = np.empty((count, *info.shape[1:]), info.dtype)
    view = out.reshape(-1).view(np.uint8).data
    filled = 0
    while filled < len(view):
        data = stream.read(len(view) - filled)
        if not data:
            raise EOFError(f"ends after {filled} of {len(view)} bytes")
        view[filled : filled + len(data)] = data
        filled += len(data)
    return out


def aligned(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    """An empty array on a 64-byte boundary, which JAX's CPU device takes over as it is instead of copying."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size].view(dtype).reshape(shape)
