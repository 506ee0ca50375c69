"""A cache of compiled programs on a GPU, where XLA takes half a minute to compile an update.

XLA autotunes each matmul by timing alternatives, so a program that is compiled again need not give the same results to
the last bit. A resumed run that loads the program it was stopped with does.
"""

import os
from pathlib import Path
from typing import Any

import jax

_LIMIT = 4 << 30  # bytes; the compiled update of 25 UHM agents takes 3 million


def keep() -> Path | None:
    """Start caching and return the folder, or None. Call it before anything is compiled.

    There is no cache on a CPU, where compiling takes seconds and a program may not run on another machine that shares
    the folder. JAX's own setting (JAX_COMPILATION_CACHE_DIR) takes precedence. Without write access nothing is cached.
    """
    if jax.default_backend() != "gpu":
        return None
    config: Any = jax.config
    if chosen := config.jax_compilation_cache_dir:
        return Path(chosen)
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "uhm" / "programs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    if not os.access(folder, os.W_OK):
        return None
    prune(folder, _LIMIT)
    jax.config.update("jax_compilation_cache_dir", str(folder))
    return folder


def prune(folder: Path, limit: int) -> None:
    """Delete the oldest files until what is left has at most so many bytes."""
    found = []
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                about = path.stat()
                found.append((about.st_mtime, about.st_size, path))
        except OSError:  # another process has just deleted it
            continue
    left = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if left <= limit:
            return
        path.unlink(missing_ok=True)
        left -= size
