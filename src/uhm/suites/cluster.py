"""Populations on a Ray cluster: each is a task with its GPU, retried after the death of its process or its node.

A retry finds the run directory on shared storage and goes on from the last checkpoint; that the dead one is really
dead, and writes no more, is what the run's lock and the lease are for. All nodes need the same `uhm` and see the run
directories and the data under the same paths.
"""

import logging
import os
import time
from typing import Any

from uhm.data.source import data_directory
from uhm.errors import UhmError
from uhm.suites.lease import lease_of, read
from uhm.suites.plan import Population
from uhm.suites.task import task
from uhm.suites.worker import Job, Outcome

RETRIES = 5
_PATIENCE = 120.0  # a worker whose node was given up may take this long to notice
_STOPPING = 300.0  # seconds that all may take to save after Ctrl-C
# What the compiler does has to be the same everywhere.
_CARRIED = ("JAX_", "XLA_", "UHM_", "MUJOCO_")


def connect(address: str | None) -> Any:
    """Ray, connected to the cluster at `address`, to $RAY_ADDRESS or the one that runs here, or to a new one here."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError:
        raise UhmError("--on ray needs Ray: `pip install '.[cluster]'` in the clone.") from None
    if not ray.is_initialized():
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
        except (ConnectionError, RuntimeError, ValueError) as error:
            line = str(error).strip().splitlines()[0]
            raise UhmError(f"no Ray cluster at {address or 'the default address'}: {line}") from None
    return ray


def resources(nodes: list[dict[str, Any]], device: str = "auto") -> dict[str, int]:
    """What one population asks for: a GPU and its share of the cores, or, without GPUs, a whole node's cores."""
    alive = [node["Resources"] for node in nodes if node.get("Alive", True)]
    with_gpu = [r for r in alive if r.get("GPU", 0) >= 1]
    if device == "gpu" or (device == "auto" and with_gpu):
        share = min((int(r.get("CPU", 0) // r["GPU"]) for r in with_gpu), default=1)
        return {"num_gpus": 1, "num_cpus": share}
    cores = [int(r["CPU"]) for r in alive if r.get("CPU", 0) >= 1]
    if not cores:
        raise UhmError("no node of the Ray cluster has a GPU or a CPU to give.")
    return {"num_gpus": 0, "num_cpus": min(cores)}


class OnRay:
    """Hands all populations to Ray at once; Ray queues them."""

    def __init__(self, ray: Any, device: str = "auto", retries: int = RETRIES):
        self.ray = ray
        self.asked = resources(ray.nodes(), device)
        # max_calls=1: the process ends with its population and gives back the GPU's memory.
        settings = {**self.asked, "max_retries": retries, "max_calls": 1, "scheduling_strategy": "SPREAD"}
        self.remote = ray.remote(**settings)(task)
        self.pending: dict[Any, str] = {}

    def free(self) -> bool:
        return True

    def start(self, population: Population) -> None:
        directory = population.directory.absolute()
        platform = "gpu" if self.asked["num_gpus"] else "cpu"
        job = Job(str(directory), population.plan.to_json(), platform, patience=_PATIENCE)
        variables = {k: v for k, v in os.environ.items() if k.startswith(_CARRIED)}
        variables["UHM_DATA_DIR"] = str(data_directory().absolute())
        self.pending[self.remote.remote(job._asdict(), variables)] = population.name

    def ended(self) -> dict[str, Outcome]:
        if not self.pending:
            return {}
        ready, _ = self.ray.wait(list(self.pending), num_returns=len(self.pending), timeout=0)
        return {self.pending.pop(reference): self._outcome(reference) for reference in ready}

    def _outcome(self, reference: Any) -> Outcome:
        errors = self.ray.exceptions
        try:
            return Outcome(*self.ray.get(reference))
        except errors.TaskCancelledError:
            return Outcome("stopped")
        except errors.RayTaskError as error:  # `work` catches what it can, so this is a broken environment there
            return Outcome("failed", f"on its node: {str(error).strip().splitlines()[-1][:200]}")
        except errors.RayError as error:
            line = str(error).strip().splitlines()[0][:200]
            return Outcome("failed", f"its process or node died too often: {line}")

    def where(self, population: Population) -> str:
        return str((read(lease_of(population.directory)) or {}).get("where", ""))

    def stop(self) -> None:
        for reference in self.pending:
            self.ray.cancel(reference, recursive=False)

    def kill(self) -> None:
        for reference in self.pending:
            self.ray.cancel(reference, force=True, recursive=False)

    def close(self) -> None:
        """Give whoever is still there, after an error of ours, time to save."""
        if self.pending:
            self.stop()
            end = time.monotonic() + _STOPPING
            while self.ended() or (self.pending and time.monotonic() < end):
                time.sleep(0.2)
        self.ray.shutdown()
