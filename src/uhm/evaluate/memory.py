"""How much memory may still be taken: what the machine has left, or a container or job if that is less.

Files that were read stay in memory until somebody needs it. They count as free here, or reading large data would leave
nothing to evaluate in.
"""

import os
from collections.abc import Iterator
from pathlib import Path

_UNKNOWN = 8e9


def free_megabytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> float:
    return min(_of_machine(proc), *_of_cgroups(proc, cgroups)) / 1e6


def _of_machine(proc: Path) -> float:
    try:
        return 1024 * _numbers(proc / "meminfo")["MemAvailable:"]  # in kB, which are KiB
    except (OSError, ValueError, KeyError):  # not on macOS
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return _UNKNOWN


def _of_cgroups(proc: Path, cgroups: Path) -> Iterator[float]:
    """What each control group (version 2) around this process has left: any of them may have a limit."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("0::/"):
            own = cgroups / line.removeprefix("0::/")
            for folder in (own, *own.parents):
                if folder.is_relative_to(cgroups):
                    yield _of_cgroup(folder)
    yield float("inf")


def _of_cgroup(folder: Path) -> float:
    try:
        limit, used = (int((folder / f"memory.{name}").read_text()) for name in ("max", "current"))
        about = _numbers(folder / "memory.stat")
    except (OSError, ValueError):  # no such group seen from here, or its limit is the word `max`
        return float("inf")
    return limit - used + about.get("active_file", 0) + about.get("inactive_file", 0)


def _numbers(path: Path) -> dict[str, int]:
    """The first two words of each line."""
    rows = [line.split() for line in path.read_text().splitlines()]
    return {row[0]: int(row[1]) for row in rows if len(row) > 1}
