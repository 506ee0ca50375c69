"""`uhm doctor`: what is installed, what it runs on, whether it can draw, which data is here.

Whatever may crash, hang or take a GPU's memory (JAX's devices, OpenGL) is asked in a child process with a time limit,
so that a broken installation gets a report instead of becoming one more symptom.
"""

import json
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from rich.console import Group, RenderableType
from rich.filesize import decimal
from rich.markup import escape
from rich.table import Table

from uhm.runs.environment import versions

CHANGED_PHYSICS = (3, 5)  # the first MuJoCo release whose contacts differ
BACKENDS = ("egl", "osmesa")
PROBE_TIMEOUT = 60.0
NETWORK_TIMEOUT = 1.0

_DEVICES = """
import json, jax
def fused():
    try:
        from uhm import kernels
        return kernels.description()
    except Exception as error:
        return f"unknown ({error})"
def describe(device):
    try:
        stats = device.memory_stats() or {}
    except Exception:
        stats = {}
    return {"platform": device.platform, "kind": device.device_kind, "id": device.id,
            "memory": stats.get("bytes_limit"), "used": stats.get("bytes_in_use")}
print(json.dumps({"found": [describe(device) for device in jax.devices()], "kernels": fused()}))
"""

_PICTURE = """
import json, mujoco
model = mujoco.MjModel.from_xml_string(
    '<mujoco><worldbody><light pos="0 0 3"/><geom type="sphere" size="1" rgba="1 0 0 1"/></worldbody></mujoco>')
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
with mujoco.Renderer(model, 64, 64) as renderer:
    renderer.update_scene(data)
    picture = renderer.render()
assert picture.std() > 0, "the picture is empty"
print(json.dumps("works"))
"""


def report(data_dir: Path) -> dict[str, Any]:
    """Everything doctor knows, as plain data that can be written as JSON."""
    with ThreadPoolExecutor() as pool:  # the children and the network spend their time waiting
        devices, rendering, network = pool.submit(_devices), pool.submit(_rendering), pool.submit(_network)
        found = {
            "versions": versions(),
            "devices": devices.result(),
            "host": _host(),
            "rendering": rendering.result(),
            "data": _data(data_dir.expanduser()),
            "network": network.result(),
        }
    return found | {"warnings": _warnings(found)}


def _probe(code: str, timeout: float = PROBE_TIMEOUT, **environment: str) -> tuple[Any, str | None]:
    """Run `code` in a child: what it printed as JSON on its last line, or one line on what went wrong."""
    try:
        child = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout,
        )
    except subprocess.TimeoutExpired:
        return None, f"no answer within {timeout:g} s"
    except OSError as error:
        return None, str(error)
    if child.returncode == 0:
        try:
            return json.loads(child.stdout.strip().splitlines()[-1]), None
        except (ValueError, IndexError):
            return None, "unreadable answer"
    # The first error is the cause; what follows are its consequences, such as complaints of the clean-up at exit.
    lines = re.findall(r"^(\w[\w.]*(?:Error|Exception|Exit)\b.*)$", child.stderr, flags=re.MULTILINE)
    return None, lines[0] if lines else f"ended with status {child.returncode}"


def _devices() -> dict[str, Any]:
    # Without this JAX would reserve most of the GPU, perhaps beside a run that needs it.
    found, error = _probe(_DEVICES, XLA_PYTHON_CLIENT_PREALLOCATE="false")
    return (found or {"found": [], "kernels": None}) | {"error": error}


def _rendering() -> dict[str, Any]:
    """The first backend that draws a picture, and how each one that was tried fared."""
    chosen = os.environ.get("MUJOCO_GL", "").lower()
    tried: dict[str, str] = {}
    for backend in dict.fromkeys([chosen, *BACKENDS] if chosen in BACKENDS else BACKENDS):
        answer, error = _probe(_PICTURE, MUJOCO_GL=backend, PYOPENGL_PLATFORM=backend)
        tried[backend] = answer or error or "no answer"
        if answer:
            return {"backend": backend, "tried": tried}
    return {"backend": None, "tried": tried}


def _host() -> dict[str, Any]:
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not a Unix
        memory = None
    return {"system": platform.platform(), "cpus": os.cpu_count(), "memory": memory, "gpu": _has_nvidia_gpu()}


def _has_nvidia_gpu() -> bool:
    """Whether the driver is there, which JAX without CUDA would not notice."""
    return Path("/proc/driver/nvidia/version").exists() or shutil.which("nvidia-smi") is not None


def _data(folder: Path) -> dict[str, Any]:
    entries = []
    if folder.exists() and not folder.is_dir():
        return {"path": str(folder), "exists": True, "entries": entries, "error": "not a directory"}
    try:
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            if path.is_dir() and "-100m-" in path.name:
                shards = [shard.stat().st_size for shard in path.glob("*.npz")]
                entries.append({"name": f"{path.name}/", "files": len(shards), "bytes": sum(shards)})
            elif path.is_file() and path.suffix == ".npz":
                entries.append({"name": path.name, "files": 1, "bytes": path.stat().st_size})
    except OSError as error:
        return {"path": str(folder), "exists": True, "entries": entries, "error": error.strerror or str(error)}
    return {"path": str(folder), "exists": folder.is_dir(), "entries": entries, "error": None}


def _network() -> dict[str, Any]:
    """Whether the server of the data sets can be reached."""
    try:
        from uhm.data.download import official_url

        address = urlsplit(official_url())
    except Exception as error:  # a broken installation of anything below; the versions show what
        return {"host": None, "reachable": False, "error": f"{type(error).__name__}: {error}"}
    host, port = address.hostname or "", address.port or (443 if address.scheme == "https" else 80)
    answer: list[str] = []

    def connect() -> None:
        try:
            socket.create_connection((host, port), timeout=NETWORK_TIMEOUT).close()
            answer.append("")
        except OSError as error:
            answer.append(error.strerror or str(error))

    # A thread, for the look-up of the name has no time limit of its own.
    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(2 * NETWORK_TIMEOUT)
    error = answer[0] if answer else "no answer"
    return {"host": host, "reachable": error == "", "error": error or None}


def _warnings(found: dict[str, Any]) -> list[str]:
    versions = found["versions"]
    warnings = [f"{name} is not installed: pip install {name}" for name, version in versions.items() if version is None]
    if _release(versions["mujoco"]) >= CHANGED_PHYSICS:
        warnings.append(
            f"mujoco {versions['mujoco']} moves OGBench's cubes and ants differently (geom margins changed in 3.5), so"
            " scores are not comparable: pip install 'mujoco<3.5'"
        )
    if found["devices"]["error"]:
        warnings.append(f"JAX finds no device: {found['devices']['error']}")
    elif found["host"]["gpu"] and all(device["platform"] == "cpu" for device in found["devices"]["found"]):
        warnings.append("there is an NVIDIA GPU, but JAX runs on the CPU: pip install '.[cuda]' in the clone")
    data = found["data"]
    if data["error"]:
        why = f"{data['path']} ({data['error']})"
        warnings.append(f"data cannot be kept in {why}: name another with --data-dir or UHM_DATA_DIR")
    if found["rendering"]["backend"] is None:
        warnings.append("MuJoCo cannot draw, so there are no videos: install libEGL (libegl1) or OSMesa (libosmesa6)")
    return warnings


def _release(version: str | None) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", version or "")[:2])


def render(found: dict[str, Any]) -> RenderableType:
    """The report for people."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, version in found["versions"].items():
        table.add_row(name, version or "[red]missing[/]")
    table.add_section()
    for device in found["devices"]["found"]:
        memory = f", {_size(device['memory'])}, {_size(device['used'])} in use" if device["memory"] else ""
        table.add_row("device", escape(f"{device['platform']}:{device['id']} {device['kind']}{memory}"))
    if found["devices"]["kernels"]:
        table.add_row("kernels", escape(found["devices"]["kernels"]))
    if found["devices"]["error"]:
        table.add_row("device", f"[red]none[/] ({escape(found['devices']['error'])})")
    host = found["host"]
    table.add_row("host", escape(f"{host['system']}, {host['cpus']} CPUs, {_size(host['memory'])}"))
    rendering = found["rendering"]
    failed = "; ".join(f"{name}: {why}" for name, why in rendering["tried"].items() if name != rendering["backend"])
    table.add_row("rendering", (rendering["backend"] or "[red]none[/]") + (escape(f" ({failed})") if failed else ""))
    network = found["network"]
    state = "reachable" if network["reachable"] else f"not reachable ({network['error']})"
    table.add_row("network", escape(f"{network['host']} {state}"))
    data = found["data"]
    note = data["error"] or ("" if data["entries"] else "empty" if data["exists"] else "does not exist yet")
    table.add_row("data", escape(data["path"] + (f" ({note})" if note else "")))
    for entry in data["entries"]:
        count = f", {entry['files']} files" if entry["name"].endswith("/") else ""
        table.add_row("", escape(f"{entry['name']} {_size(entry['bytes'])}{count}"))
    return Group(table, *(f"[yellow]warning:[/] {escape(warning)}" for warning in found["warnings"]))


def _size(size: int | None) -> str:
    return "unknown" if size is None else decimal(size)
