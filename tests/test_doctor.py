"""Doctor has to survive what it diagnoses, so most tests break something on purpose."""

import errno
import io
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import uhm
from uhm import cli, doctor, kernels
from uhm.data import download


def text(found: dict[str, Any], width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(doctor.render(found))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One real report, with nothing replaced but the address of the data server."""
    folder = tmp_path_factory.mktemp("data")
    np.savez(folder / "rooms-v0.npz", observations=np.zeros((100, 2)))
    shards = folder / "cube-triple-play-100m-v0"
    shards.mkdir()
    (shards / "cube-triple-play-v0-000.npz").write_bytes(bytes(1500))
    (shards / "cube-triple-play-v0-000-val.npz").write_bytes(bytes(500))
    (shards / "cube-triple-play-v0-001.npz.part").write_bytes(bytes(9000))
    (folder / "notes.txt").write_text("not data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(download, "official_url", lambda: "http://127.0.0.1:1/data")
        return doctor.report(folder)


def test_importing_doctor_does_not_import_jax() -> None:
    code = "import sys, uhm.doctor; sys.exit('jax' in sys.modules or 'mujoco' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_versions_are_those_of_the_packages(found: dict[str, Any]) -> None:
    import jax
    import mujoco

    assert found["versions"]["uhm"] == uhm.__version__
    assert found["versions"]["jax"] == jax.__version__
    assert found["versions"]["mujoco"] == mujoco.__version__
    assert found["versions"]["python"] == sys.version.split()[0]
    assert None not in found["versions"].values()


def test_devices_are_those_of_jax(found: dict[str, Any]) -> None:
    import jax

    assert found["devices"]["error"] is None
    assert [d["kind"] for d in found["devices"]["found"]] == [d.device_kind for d in jax.devices()]
    assert found["devices"]["kernels"] == kernels.description()


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="an independent number comes from Linux")
def test_memory_is_that_of_the_machine(found: dict[str, Any]) -> None:
    kilobytes = int(Path("/proc/meminfo").read_text().split()[1])
    assert found["host"]["memory"] == pytest.approx(1024 * kilobytes, rel=0.01)


def test_data_lists_sets_and_folders_of_shards(found: dict[str, Any]) -> None:
    folder = Path(found["data"]["path"])
    assert found["data"]["entries"] == [
        {"name": "cube-triple-play-100m-v0/", "files": 2, "bytes": 2000},
        {"name": "rooms-v0.npz", "files": 1, "bytes": (folder / "rooms-v0.npz").stat().st_size},
    ]


def test_the_report_is_plain_data(found: dict[str, Any]) -> None:
    assert json.loads(json.dumps(found)) == found


def test_the_rendered_report_shows_everything(found: dict[str, Any]) -> None:
    shown = text(found)
    for expected in (uhm.__version__, "cpu:0", "CPUs", "rooms-v0.npz", "2 files", "127.0.0.1 not reachable"):
        assert expected in shown
    assert all(warning in text(found, width=1000) for warning in found["warnings"])


def test_brackets_in_names_are_not_markup(found: dict[str, Any]) -> None:
    odd = found | {"data": found["data"] | {"path": "/data/[bold]x"}, "warnings": ["pip install '.[cuda]'"]}
    assert "/data/[bold]x" in text(odd)
    assert ".[cuda]" in text(odd)


def test_a_missing_data_directory(tmp_path: Path) -> None:
    data = doctor._data(tmp_path / "none")
    assert (data["exists"], data["entries"]) == (False, [])


def test_a_data_directory_that_is_a_file(
    found: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file"
    path.write_text("")
    data = doctor._data(path)
    assert data["error"] == "not a directory"
    with_it = found | {"data": data}
    (warning,) = [line for line in doctor._warnings(with_it) if str(path) in line]
    assert warning == f"data cannot be kept in {path} (not a directory): name another with --data-dir or UHM_DATA_DIR"
    assert "does not exist yet" not in text(with_it)
    monkeypatch.setattr(doctor, "report", lambda _: with_it | {"warnings": [warning]})
    assert cli.run(["doctor", "--data-dir", str(path)]) == 1
    assert "not a directory" in capsys.readouterr().out
    monkeypatch.setattr(doctor, "report", lambda _: found)
    assert cli.run(["doctor"]) == 0


@pytest.mark.parametrize(
    ("version", "warned"),
    [("3.4.0", False), ("3.1.6", False), ("3.5.0", True), ("3.10.1", True), ("4.0.0rc1", True), (None, False)],
)
def test_newer_physics_are_warned_about(found: dict[str, Any], version: str | None, warned: bool) -> None:
    warnings = doctor._warnings(found | {"versions": found["versions"] | {"mujoco": version}})
    assert any("mujoco<3.5" in warning for warning in warnings) == warned
    assert any("mujoco is not installed" in warning for warning in warnings) == (version is None)


def test_a_gpu_that_jax_does_not_use_is_warned_about(found: dict[str, Any]) -> None:
    device = {"platform": "cpu", "kind": "cpu", "id": 0, "memory": None, "used": None}
    cpu = {"found": [device], "error": None, "kernels": "XLA's"}
    device = {"platform": "gpu", "kind": "H", "id": 0, "memory": 10**9, "used": 5}
    gpu = {"found": [device], "error": None, "kernels": "fused in bfloat16"}
    with_gpu = found | {"host": found["host"] | {"gpu": True}}
    assert any(".[cuda]" in w for w in doctor._warnings(with_gpu | {"devices": cpu}))
    assert not any(".[cuda]" in w for w in doctor._warnings(with_gpu | {"devices": gpu}))
    shown = text(with_gpu | {"devices": gpu})
    assert "gpu:0 H, 1.0 GB, 5 bytes in use" in shown
    assert re.search(r"kernels +fused", shown)
    assert re.search(r"kernels +XLA's", text(with_gpu | {"devices": cpu}))


def test_a_wrong_choice_of_kernels_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernels.VARIABLE, "on")
    assert "must be 'auto' or 'off'" in doctor._devices()["kernels"]


def test_a_failing_jax_is_reported(found: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_PLATFORMS", "no_such_platform")
    devices = doctor._devices()
    assert devices["found"] == []
    assert devices["kernels"] is None
    assert "no_such_platform" in devices["error"]
    assert any("no_such_platform" in warning for warning in doctor._warnings(found | {"devices": devices}))


@pytest.mark.parametrize(
    ("code", "answer", "error"),
    [
        ("print('noise'); print('[1]')", [1], None),
        ("import os; os.abort()", None, "ended with status -6"),
        ("raise ValueError('first')", None, "ValueError: first"),
        ("print('no json')", None, "unreadable answer"),
        ("pass", None, "unreadable answer"),
    ],
)
def test_probes_survive_their_child(code: str, answer: object, error: str | None) -> None:
    assert doctor._probe(code) == (answer, error)


def test_a_hanging_child_is_given_up() -> None:
    start = time.monotonic()
    assert doctor._probe("import time; time.sleep(60)", timeout=0.5) == (None, "no answer within 0.5 s")
    assert time.monotonic() - start < 10


def test_rendering_tries_one_backend_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code that draws is replaced by one that succeeds only under OSMesa."""
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    monkeypatch.setattr(
        doctor, "_PICTURE", "import os; assert os.environ['MUJOCO_GL'] == 'osmesa', 'no'; print('\"works\"')"
    )
    assert doctor._rendering() == {"backend": "osmesa", "tried": {"egl": "AssertionError: no", "osmesa": "works"}}
    monkeypatch.setenv("MUJOCO_GL", "osmesa")  # the user's choice comes first
    assert doctor._rendering() == {"backend": "osmesa", "tried": {"osmesa": "works"}}


def test_no_rendering_is_a_warning(found: dict[str, Any]) -> None:
    broken = found | {"rendering": {"backend": None, "tried": {"egl": "no EGL", "osmesa": "no OSMesa"}}}
    assert any("libegl1" in warning for warning in doctor._warnings(broken))
    assert "egl: no EGL; osmesa: no OSMesa" in text(broken)


def test_network_reached_and_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/data"
        monkeypatch.setattr(download, "official_url", lambda: url)
        assert doctor._network() == {"host": "127.0.0.1", "reachable": True, "error": None}
    refused = doctor._network()
    assert (refused["reachable"], refused["error"]) == (False, os.strerror(errno.ECONNREFUSED))


def test_a_slow_name_server_does_not_hold_doctor_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "NETWORK_TIMEOUT", 0.05)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: time.sleep(1) or [])
    start = time.monotonic()
    assert doctor._network()["error"] == "no answer"
    assert time.monotonic() - start < 0.9


def test_a_broken_ogbench_does_not_stop_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> str:
        raise ImportError("no ogbench")

    monkeypatch.setattr(download, "official_url", broken)
    assert doctor._network() == {"host": None, "reachable": False, "error": "ImportError: no ogbench"}
