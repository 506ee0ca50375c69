"""What a session of a run was made of: versions, source revision, hardware, command line."""

import datetime
import os
import platform
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "uhm",
    "jax",
    "jaxlib",
    "equinox",
    "optax",
    "orbax-checkpoint",
    "mujoco",
    "dm_control",
    "ogbench",
    "gymnasium",
    "numpy",
)


def session() -> dict[str, Any]:
    """A record of this process, as plain JSON."""
    return {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": sys.argv,
        "directory": str(Path.cwd()),
        "versions": versions(),
        "source": source(Path(__file__).parents[1]),
        "hardware": hardware(),
        # These change what the compiler does, and with it the last bits of the results.
        "variables": {
            k: v for k, v in sorted(os.environ.items()) if k.startswith(("JAX_", "XLA_", "MUJOCO_", "UHM_KERNELS"))
        },
    }


def versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def source(package: Path) -> dict[str, Any] | None:
    """The git revision that `package` is checked out at and whether it was changed since; None if it is installed."""
    # A package installed below somebody else's checkout is not of that checkout: git has to know this very file.
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    revision, changes = _git(package, "rev-parse", "HEAD"), _git(package, "status", "--porcelain", "--", ".")
    if revision is None or changes is None:
        return None
    return {"revision": revision, "dirty": bool(changes)}


def hardware() -> dict[str, Any]:
    import jax  # initialises the devices; kept out of commands that only read

    from uhm import kernels

    return {
        "host": platform.node(),
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cpus": os.cpu_count(),
        "devices": [{"platform": d.platform, "kind": d.device_kind} for d in jax.local_devices()],
        "kernels": kernels.description(),
    }


def _cpu() -> str:
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        found = None
    return found[1] if found else platform.processor() or platform.machine()


def _git(folder: Path, *command: str) -> str | None:
    try:
        child = subprocess.run(
            # Without the option `status` may take a lock that a user's own git command then trips over.
            ["git", "--no-optional-locks", "-C", str(folder), *command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return child.stdout.strip() if child.returncode == 0 else None
