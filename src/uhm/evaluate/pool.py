"""The worker processes of an evaluator: started, told to step, listened to, and ended whatever happens."""

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import weakref
from pathlib import Path
from typing import IO

from uhm.envs.own import Simulator, python_path
from uhm.errors import UhmError
from uhm.evaluate.board import FAILED, HALVES, READY, Board
from uhm.tasks import Environment

_WORKER: tuple[str, ...] = ("-m", "uhm.evaluate.worker")


class Pool:
    """`workers` processes with `lanes` environments between them, of a known kind or the user's own. All waits are
    blocking reads."""

    def __init__(self, what: Environment | Simulator, lanes: int, workers: int):
        self._processes: list[subprocess.Popen[bytes]] = []
        # Mazes leave their xml files here, MuJoCo its log, and workers what they print.
        self._folder = tempfile.TemporaryDirectory(prefix="uhm-evaluate-", ignore_cleanup_errors=True)
        # Also when nobody closes it: at the end of the program, or when it is forgotten.
        self._end = weakref.finalize(self, _end, self._processes, self._folder)
        try:
            memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
            with tempfile.TemporaryFile(dir=memory) as file:
                self.board = Board(file, lanes, what.observation_size, what.action_size)
                setup = {"what": dataclasses.asdict(what), "own": isinstance(what, Simulator)}
                setup |= {"lanes": lanes, "workers": workers}
                for worker in range(workers):
                    self._processes.append(_start(self._folder.name, setup | {"worker": worker}, file))
            self._active = [[w for w in range(workers) if self.board.owned(h, w, workers)] for h in HALVES]
        except BaseException:
            self.close()
            raise

    def wait_ready(self) -> None:
        """Until all environments are built."""
        for worker in range(len(self._processes)):
            self._hear(worker)

    def tell(self, half: int) -> None:
        """Have the workers step their lanes of one half."""
        for worker in self._active[half]:
            stdin = self._processes[worker].stdin
            assert stdin
            # The end of a dead worker is told when its answer is awaited.
            with contextlib.suppress(BrokenPipeError, ValueError):
                os.write(stdin.fileno(), bytes([half]))

    def wait(self, half: int) -> None:
        """Until that half is stepped. A worker answers in the order in which it was told."""
        for worker in self._active[half]:
            self._hear(worker)

    def _hear(self, worker: int) -> None:
        process = self._processes[worker]
        assert process.stdout
        try:
            answer = os.read(process.stdout.fileno(), 1)
        except (OSError, ValueError):  # closed by another thread
            answer = b""
        if answer == READY:
            return
        if not self._end.alive:
            raise UhmError("the evaluation was stopped: its evaluator is closed.")
        if answer == FAILED:
            raise UhmError(f"evaluation failed in an environment: {process.stdout.read().decode().rstrip('.')}.")
        status, log = process.wait(), (Path(self._folder.name) / f"{worker}.log").read_text(errors="replace")
        last = (log.strip().splitlines() or ["it left no message"])[-1]
        raise UhmError(f"an evaluation worker died (exit status {status}): {last.strip().rstrip('.')}.")

    def close(self) -> None:
        self._end()


def _start(folder: str, setup: dict, file: IO[bytes]) -> subprocess.Popen[bytes]:
    # A program of its own and not `multiprocessing`: that would import the caller's main module, and JAX with it.
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    own = {"PYTHONPATH": python_path(), "PYTHONWARNINGS": "ignore", "TMPDIR": folder}
    number = file.fileno()
    with (Path(folder) / f"{setup['worker']}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-P", *_WORKER, json.dumps(setup | {"file": number})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            bufsize=0,
            cwd=None if setup["own"] else folder,  # the user's own may look for its files where the user stands
            env=os.environ | single | own,
            pass_fds=(number,),
            start_new_session=True,  # Ctrl-C is for this process alone, which then ends the workers
        )


def _end(processes: list[subprocess.Popen[bytes]], folder: tempfile.TemporaryDirectory) -> None:
    for process in processes:
        process.kill()
    for process in processes:
        process.communicate()
    folder.cleanup()
