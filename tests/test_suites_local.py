"""Suites on one machine: slots, failures, Ctrl-C, kills; and the lease that lets one worker at a time write."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from small_runs import lines, make_data, outcome
from uhm import cli
from uhm.errors import UhmError
from uhm.runs import Run
from uhm.runs.files import Lock
from uhm.suites import lease, local, runner, speed, worker
from uhm.suites.lease import Lease, lease_of
from uhm.suites.plan import populations
from uhm.suites.worker import Job
from uhm.train import start

# A worker that trains nothing: it notes when and on which GPU it was, and ends as its population's name says.
WORKER = """
import json, os, pathlib, signal, sys, time
job = json.loads(sys.stdin.readline())
directory = pathlib.Path(job["directory"])
begin = time.monotonic()
time.sleep(0.3)
record = {"name": directory.name, "gpu": os.environ.get("CUDA_VISIBLE_DEVICES"), "job": job}
with open(directory.parent / "log", "a") as file:
    file.write(json.dumps(record | {"step": 0, "begin": begin, "end": time.monotonic()}) + "\\n")
if directory.name.startswith("ghm"):
    os.kill(os.getpid(), signal.SIGKILL)
if directory.name.startswith("dtd"):
    sys.exit("no such thing")
failed = directory.name.startswith("mbtd")
print(json.dumps({"state": "failed" if failed else "done", "reason": "no room." if failed else ""}))
"""


@pytest.fixture
def two_gpus(monkeypatch):
    monkeypatch.setattr(local, "devices", lambda: speed.Devices("gpu", "NVIDIA H200", 2))
    monkeypatch.setattr(local, "usable_cores", lambda: list(range(6)))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")


def test_slots(two_gpus, monkeypatch):
    found = local.slots()
    assert [slot.environment for slot in found] == [{"CUDA_VISIBLE_DEVICES": "3"}, {"CUDA_VISIBLE_DEVICES": "5"}]
    assert [slot.cores for slot in found] == [(0, 2, 4), (1, 3, 5)]
    assert [(slot.label, slot.platform) for slot in found] == [("gpu 3", "gpu"), ("gpu 5", "gpu")]
    assert [slot.label for slot in local.slots("cpu")] == ["cpu"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,9")
    assert [slot.label for slot in local.slots()] == ["gpu 3", "gpu 5"]  # JAX sees two, whatever the third is
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert [slot.label for slot in local.slots()] == ["gpu 0", "gpu 1"]
    monkeypatch.setattr(local, "devices", lambda: speed.Devices("cpu", "cpu", 1))
    assert [slot.platform for slot in local.slots()] == ["cpu"]
    with pytest.raises(UhmError, match="JAX sees no GPU"):
        local.slots("gpu")


def test_a_directory_that_cannot_be_written_is_one_line(two_gpus, tmp_path):
    (tmp_path / "file").write_text("")
    wanted = populations(["rooms"], out=tmp_path / "file" / "runs")
    with pytest.raises(UhmError, match=r"cannot write .*file.*: Not a directory"):
        local.Local(local.slots()).start(wanted[0])


def test_gpus_side_by_side_and_failures_stop_nobody(two_gpus, monkeypatch, tmp_path):
    monkeypatch.setattr(local, "_COMMAND", ("-c", WORKER))
    wanted = populations(["rooms", "pointmaze-medium-navigate"], out=tmp_path)
    console = Console(width=200, record=True, file=(tmp_path / "said").open("w"))
    rows = runner.run(wanted, local.Local(local.slots()), console)
    assert {row.population.agent: row.state for row in rows} == {
        "rebrac-dagger": "done",
        "uhm": "done",
        "mbtd": "failed",
        "dtd": "failed",
        "ghm": "failed",
    }
    ran = lines(tmp_path / "log")
    assert sorted(record["name"] for record in ran) == sorted(population.name for population in wanted)
    assert {record["gpu"] for record in ran} == {"3", "5"}
    where = {row.population.name: row.where for row in rows}
    for record in ran:
        assert where[record["name"]] == record["job"]["where"] == f"gpu {record['gpu']}"
        assert record["job"]["platform"] == "gpu"
        assert record["job"]["cores"] == ([0, 2, 4] if record["gpu"] == "3" else [1, 3, 5])
    overlaps = 0
    for a in ran:
        for b in ran:
            if a["name"] < b["name"] and a["begin"] < b["end"] and b["begin"] < a["end"]:
                overlaps += 1
                assert a["gpu"] != b["gpu"]
    assert overlaps > 0
    assert runner.report(rows, console) == 1
    said = console.export_text()
    console.file.close()
    assert "mbtd-rooms failed: no room." in said
    assert "dtd-rooms failed: its process ended with status 1." in said
    assert "ghm-rooms failed: its process was ended by signal 9." in said
    assert "6 of 10 are not done; the same command tries them again." in said
    assert (tmp_path / ".suite" / "dtd-rooms.log").read_text() == "no such thing\n"


def test_a_worker_takes_its_device_and_cores(monkeypatch, tmp_path):
    taken = []
    monkeypatch.setattr(os, "sched_setaffinity", lambda *given: taken.append(given))
    monkeypatch.setenv("JAX_PLATFORMS", "any")
    worker._settle(Job("run", {}, "gpu", (1, 3)))
    assert (taken, os.environ["JAX_PLATFORMS"]) == ([(0, (1, 3))], "any")
    worker._settle(Job("run", {}, "cpu"))
    assert (taken, os.environ["JAX_PLATFORMS"]) == ([(0, (1, 3))], "cpu")
    with pytest.raises(UhmError, match="JAX does not see it"):  # it would train on the CPU for weeks
        worker._train(Job("run", {}, "gpu"), tmp_path / "run")


class Deaf:
    """An executor whose population never ends by itself; the user sends a signal whenever it is looked at."""

    def __init__(self, signals):
        self.signals, self.calls = list(signals), []

    def free(self):
        return self.calls[-1:] != ["start"]  # also when it was told to stop, and nobody may start any more

    def start(self, population):
        self.calls.append("start")

    def ended(self):
        signal.raise_signal(self.signals.pop(0))
        return {}

    def where(self, population):
        return "here"

    def stop(self):
        self.calls.append("stop")

    def kill(self):
        self.calls.append("kill")

    def close(self):
        self.calls.append("close")


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_who_asks_twice_does_not_wait(second, tmp_path):
    wanted = populations(["rooms"], ["uhm", "dtd"], out=tmp_path)
    executor = Deaf([signal.SIGTERM, second])
    console = Console(file=(tmp_path / "said").open("w"))
    with pytest.raises(KeyboardInterrupt, match="stopped with 0 of 2 done; the same command goes on"):
        runner.run(wanted, executor, console)
    console.file.close()
    assert executor.calls == ["start", "stop", "kill", "close"]


# ------------------------------------------------------------------------------------------------- real populations

SETTINGS: dict[str, Any] = {
    "seeds": 1,
    "steps": 200,
    "log_interval": 5,
    "checkpoint_interval": 10,
    "eval_interval": 100,
}
SETTINGS |= {"eval_episodes": 2, "batch_size": 16}


@pytest.fixture
def command(tmp_path, monkeypatch):
    """The words of `uhm suite run ...`; all processes share what they compile."""
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    given = {**SETTINGS, "hidden": 16, "data_dir": tmp_path / "data", "out": tmp_path / "out", "device": "cpu"}
    flags = [str(word) for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
    return ["suite", "run", "rooms-task1", "--agents", "rebrac-dagger", *flags]


def until(condition, alive=lambda: True):
    while alive() and not condition():
        time.sleep(0.002)


@pytest.mark.slow
def test_ctrl_c_and_a_kill(command, tmp_path, capsys):
    make_data(tmp_path / "data")
    settings = {**SETTINGS, "hidden": (16,), "data_dir": str(tmp_path / "data")}
    (whole,) = populations(["rooms-task1"], ["rebrac-dagger"], out=tmp_path / "whole", **settings)
    start(whole.plan, whole.directory)
    run = tmp_path / "out" / whole.name

    pipe = subprocess.PIPE
    process = subprocess.Popen([sys.executable, "-m", "uhm", *command], stdout=pipe, stderr=pipe, text=True)
    until((run / "checkpoints" / "20").exists, lambda: process.poll() is None)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130, (out, err)
    assert err.splitlines()[-1] == "uhm: stopped with 0 of 1 done; the same command goes on."
    stopped = Run.open(run, write=False).steps()[-1]
    assert lines(run / "metrics.jsonl")[-1]["step"] == stopped < SETTINGS["steps"]

    def kill():
        until(lambda: lines(run / "metrics.jsonl")[-1]["step"] > stopped)
        os.kill(json.loads(lease_of(run).read_text())["process"], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    assert cli.run(command) == 1
    killer.join()
    assert "ended by signal 9" in capsys.readouterr().out
    assert not (run / "summary.json").exists()

    assert cli.run(command) == 0
    assert outcome(run) == outcome(whole.directory)
    assert len(json.loads((run / "environment.json").read_text())["sessions"]) == 3
    assert not lease_of(run).exists()
    before = (run / "summary.json").stat().st_mtime_ns
    assert cli.run(command) == 0  # nothing is left
    assert (run / "summary.json").stat().st_mtime_ns == before


def test_an_agent_of_the_users_own(tmp_path, monkeypatch, capsys):
    """The worker is another process, and finds the module where the user stands."""
    shutil.copy(Path(__file__).parents[1] / "docs" / "examples" / "bc.py", tmp_path / "cloned.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # for this process, whose path may name another "."
    given = {"seeds": 1, "steps": 20, "eval_episodes": 2, "hidden": 8, "batch_size": 8}
    given |= {"data_dir": make_data(tmp_path / "data"), "out": tmp_path / "out", "device": "cpu"}
    flags = [str(word) for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
    assert cli.run(["suite", "run", "rooms-task1", "--agents", "module:cloned", *flags]) == 0
    assert "1 done" in capsys.readouterr().out
    summary = json.loads((tmp_path / "out" / "module-cloned-rooms-task1" / "summary.json").read_text())
    assert (summary["agent"], summary["steps"]) == ("module:cloned", 20)


# ------------------------------------------------------------------------------------------------------------ lease


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(lease, "BEAT", 0.05)
    monkeypatch.setattr(lease, "SILENCE", 0.5)


def test_a_dead_worker_of_this_machine_is_no_obstacle(tmp_path, quick):
    path = tmp_path / "lease"
    for _ in range(2):
        path.write_text(json.dumps({"token": "other", "host": "here", "process": 2**22 + 1}))  # no process has it
        begin = time.monotonic()
        with Lease(path, tmp_path / "run", 0, host="here") as mine:
            assert time.monotonic() - begin < 0.4
            assert json.loads(path.read_text())["token"] == mine.record["token"]
        assert not path.exists()


def test_a_worker_of_this_machine_that_lives_has_to_be_silent_first(tmp_path, quick):
    """It may not have come as far as the run's lock, which is made after JAX is loaded."""
    path = tmp_path / "lease"
    path.write_text(json.dumps({"token": "other", "host": "here", "process": os.getppid()}))
    begin = time.monotonic()
    with Lease(path, tmp_path / "run", 0, host="here"):
        assert time.monotonic() - begin > 0.5


def test_another_machine_has_to_be_silent_first(tmp_path, quick):
    path = tmp_path / "lease"
    path.write_text(json.dumps({"token": "other", "host": "there", "process": 1, "beat": 7}))
    begin = time.monotonic()
    with Lease(path, tmp_path / "run", 10, host="here"):
        assert time.monotonic() - begin >= 0.5


def test_whoever_beats_is_left_alone(tmp_path, quick):
    path = tmp_path / "lease"
    with (
        Lease(path, tmp_path / "run", 0, host="there") as theirs,
        pytest.raises(UhmError, match=f"run is in use by process {os.getpid()} on there"),
        Lease(path, tmp_path / "run", 0.2, host="here"),
    ):
        pass
    assert theirs.record["beat"] > 5


def test_a_lost_lease_ends_the_worker(tmp_path, quick, monkeypatch):
    ended = []
    monkeypatch.setattr(lease, "_end", lambda: ended.append(1))
    path = tmp_path / "lease"
    with Lease(path, tmp_path / "run", 0, host="here") as mine:
        time.sleep(0.2)
        assert not ended
        assert mine.record["beat"] > 0
        mine._stop.set()
        mine._thread.join()
        mine._stop.clear()
        path.write_text(json.dumps({"token": "other", "host": "there"}))
        monkeypatch.setattr(lease, "_end", lambda: (ended.append(1), mine._stop.set()))
        again = threading.Thread(target=mine._renew, daemon=True)
        again.start()
        again.join(2)
    assert ended


def test_the_runs_lock_is_waited_for(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    held = Lock(run / "lock")
    with pytest.raises(UhmError, match="in use"), Lease(tmp_path / "lease", run, 0.2):
        pass
    held.release()
    with Lease(tmp_path / "lease", run, 0):
        pass
