"""A real Ray cluster of two nodes on this machine, whose processes die while populations train."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from small_runs import make_data, outcome
from uhm.suites.lease import lease_of, read
from uhm.suites.plan import populations
from uhm.train import start

pytest.importorskip("ray")
# Ray's own: it starts processes and opens sockets and logs that it leaves to the end of the program.
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    # It forks to start its daemons, and other tests of this process may have started JAX.
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.*"),
    pytest.mark.filterwarnings("ignore::FutureWarning:ray.*"),
]

NAMES = ("rooms-task1", "rooms-task2")
AGENTS = ("rebrac-dagger", "dtd")
SETTINGS: dict[str, Any] = {
    "seeds": 1,
    "steps": 300,
    "log_interval": 10,
    "checkpoint_interval": 20,
    "eval_interval": 150,
}
SETTINGS |= {"eval_episodes": 3, "batch_size": 16}
LIMIT = 240  # seconds for what takes ten on an idle machine


def wanted(out, data):
    return populations(NAMES, AGENTS, out=out, data_dir=str(data), hidden=(16,), **SETTINGS)


@pytest.fixture(scope="module")
def variables(tmp_path_factory):
    """What one process compiled serves the next."""
    own = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}
    own |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    return os.environ | own


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    """What each population finds out if nothing happens, without Ray."""
    out = tmp_path_factory.mktemp("undisturbed")
    for population in wanted(out, data):
        start(population.plan, population.directory)
    return {population.name: outcome(population.directory) for population in wanted(out, data)}


@pytest.fixture(scope="module")
def cluster():
    """Two nodes, each with room for one population. Nodes that die are noticed within seconds."""
    from ray.cluster_utils import Cluster

    noticed = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 4}
    node = {"num_cpus": 1, "num_gpus": 0, "object_store_memory": 80_000_000, "include_dashboard": False}
    cluster = Cluster()
    try:
        cluster.add_node(**node, _system_config=noticed)
        cluster.add_node(**node)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        cluster.shutdown()


@pytest.fixture
def suite(cluster, data, variables, tmp_path):
    """`uhm suite run --on ray` in a process of its own, ended with the test."""
    given = {**SETTINGS, "hidden": 16, "data_dir": data, "out": tmp_path / "out", "address": cluster.address}
    flags = [str(word) for name, value in given.items() for word in (f"--{name.replace('_', '-')}", value)]
    command = [sys.executable, "-m", "uhm", "suite", "run", *NAMES, "--agents", ",".join(AGENTS), "--on", "ray", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables)
    yield process
    process.kill()
    process.communicate()


def until(process, condition):
    """Wait for `condition`, which has to come true while the process runs."""
    end = time.monotonic() + LIMIT
    while not (found := condition()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "took too long"
        time.sleep(0.01)
    return found


def in_the_middle(population):
    """The process that trains the population, once it has saved something and while it has not ended."""
    saved = [path for path in population.directory.glob("checkpoints/*") if path.name.isdecimal()]
    process = (read(lease_of(population.directory)) or {}).get("process")
    return process if saved and process and not (population.directory / "summary.json").exists() else None


def sessions(population):
    return len(json.loads((population.directory / "environment.json").read_text())["sessions"])


def parent(process):
    return int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])


def check(process, everything, undisturbed):
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0, (out, err)
    assert "2 done" in out
    for population in everything:
        assert outcome(population.directory) == undisturbed[population.name]


@pytest.mark.slow
def test_a_killed_worker(suite, undisturbed, data, tmp_path):
    everything = wanted(tmp_path / "out", data)
    victim = everything[0]
    os.kill(until(suite, lambda: in_the_middle(victim)), signal.SIGKILL)
    assert not (victim.directory / "summary.json").exists()
    check(suite, everything, undisturbed)
    assert [sessions(population) for population in everything] == [2, 1]


@pytest.mark.slow
def test_a_killed_node(suite, cluster, undisturbed, data, tmp_path):
    """Last, for the node does not come back. Its worker freezes first and goes on holding the run's lock, as one would
    on a machine that was given up for dead: whoever takes over has to wait until it is gone."""
    everything = wanted(tmp_path / "out", data)
    node = next(node for node in cluster.worker_nodes)
    raylet = node.all_processes["raylet"][0].process.pid

    def on_node():
        running = {index: in_the_middle(population) for index, population in enumerate(everything)}
        return next(((index, pid) for index, pid in running.items() if pid and parent(pid) == raylet), None)

    victim, process = until(suite, on_node)
    os.kill(process, signal.SIGSTOP)
    try:
        assert not (everything[victim].directory / "summary.json").exists()
        cluster.remove_node(node, allow_graceful=False)
    finally:
        os.kill(process, signal.SIGKILL)
    check(suite, everything, undisturbed)
    assert [sessions(p) for p in everything] == [2 if index == victim else 1 for index in range(len(everything))]
