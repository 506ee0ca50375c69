"""Populations on this machine: one process for each GPU side by side, or one at a time on the CPU."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import uhm.suites.worker
from uhm.errors import UhmError, writing
from uhm.suites.lease import LOST, log_of
from uhm.suites.plan import Population
from uhm.suites.speed import devices
from uhm.suites.worker import Job, Outcome, share, usable_cores

_COMMAND: tuple[str, ...] = ("-P", "-m", uhm.suites.worker.__name__)


@dataclass
class Slot:
    """A GPU, or the CPU, and the worker on it."""

    label: str
    environment: dict[str, str]
    platform: str
    cores: tuple[int, ...]
    name: str = ""
    process: subprocess.Popen[bytes] | None = field(default=None)


def slots(device: str = "auto") -> list[Slot]:
    """One for each GPU that JAX sees here, with its share of the cores; without any, one for the CPU."""
    found = None if device == "cpu" else devices()
    if device == "gpu" and found is not None and found.platform == "cpu":
        raise UhmError("JAX sees no GPU here: in the clone, pip install '.[cuda]', or leave out --device gpu.")
    if found is None or found.platform == "cpu":
        return [Slot("cpu", {}, "cpu", ())]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = visible.split(",") if visible else [str(index) for index in range(found.number)]
    cores = usable_cores()
    return [
        Slot(f"gpu {name}", {"CUDA_VISIBLE_DEVICES": name}, "gpu", share(cores, index, found.number))
        for index, name in enumerate(names[: found.number])
    ]


class Local:
    """Runs workers in the slots."""

    def __init__(self, places: list[Slot]):
        self.places = places

    def free(self) -> bool:
        return any(slot.process is None for slot in self.places)

    def start(self, population: Population) -> None:
        slot = next(slot for slot in self.places if slot.process is None)
        job = Job(str(population.directory), population.plan.to_json(), slot.platform, slot.cores, where=slot.label)
        root = str(Path(uhm.suites.worker.__file__).parents[2])
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        log = log_of(population.directory)
        with writing(log):
            log.parent.mkdir(parents=True, exist_ok=True)
            file = log.open("ab")
        with file:
            process = subprocess.Popen(
                [sys.executable, *_COMMAND],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=os.environ | {"PYTHONPATH": path} | slot.environment,
                start_new_session=True,  # Ctrl-C is for this process alone, which then asks the workers to stop
            )
        slot.name, slot.process = population.name, process
        assert process.stdin
        process.stdin.write(json.dumps(job._asdict()).encode() + b"\n")
        process.stdin.flush()

    def ended(self) -> dict[str, Outcome]:
        found = {}
        for slot in self.places:
            if slot.process is not None and slot.process.poll() is not None:
                found[slot.name] = _outcome(slot.process)
                slot.process = None
        return found

    def where(self, population: Population) -> str:
        return next((slot.label for slot in self.places if slot.name == population.name), "")

    def stop(self) -> None:
        for slot in self.places:
            if slot.process is not None and slot.process.stdin:
                slot.process.stdin.close()

    def kill(self) -> None:
        for slot in self.places:
            if slot.process is not None:
                slot.process.kill()

    def close(self) -> None:
        """Whoever is still there, after an error of ours, saves and stops."""
        self.stop()
        for slot in self.places:
            if slot.process is not None:
                slot.process.wait()
                _outcome(slot.process)


def _outcome(process: subprocess.Popen[bytes]) -> Outcome:
    assert process.stdin
    assert process.stdout
    process.stdin.close()
    with process.stdout as pipe:
        lines = pipe.read().splitlines()
    if process.returncode == 0 and lines:
        return Outcome(**json.loads(lines[-1]))
    if process.returncode == LOST:
        return Outcome("failed", "another process took it over.")
    if process.returncode < 0:
        return Outcome("failed", f"its process was ended by signal {-process.returncode}.")
    return Outcome("failed", f"its process ended with status {process.returncode}.")
