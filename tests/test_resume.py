"""A run that is killed, interrupted or damaged ends as if nothing had happened. Real processes, real signals."""

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import warnings

import jax
import numpy as np
import pytest

from small_runs import lines, make_data, outcome, small_plan, small_run
from toys import assert_trees, random_data
from uhm import cli, population
from uhm.agents import family, spec_of
from uhm.errors import UhmError
from uhm.runs import FORMAT, Run, checkpoints
from uhm.train import load_run, resume, start

SETTINGS = {"seeds": 1, "alpha": [0.03, 0.1], "steps": 60, "log_interval": 5, "eval_interval": 10}
SETTINGS["checkpoint_interval"] = 10
MODEL = SETTINGS | {"flow_steps": 1}
EVALUATIONS = [10, 20, 30, 40, 50, 60]

# The command line, but the evaluation of one step waits for a file before it begins. Then `kill` ends the process; with
# `hold` training, too, waits for the file, after its next chunk, and the evaluation lasts until its result is wanted.
# With `stuck` it is the evaluation alone that waits, and training waits for it.
CHILD = """
import os, pathlib, signal, sys, threading, time
from uhm import cli
from uhm.evaluate import rooms
from uhm.train.loop import Training

at, what, path = int(sys.argv[1]), sys.argv[2], pathlib.Path(sys.argv[3])
usual_run, usual_report, usual_finish = rooms.run, Training._report_frozen, Training._finish_evaluation
asked_for = threading.Event()

def wait():
    while not path.exists():
        time.sleep(0.005)

def run(act, tasks, seeds, discounts, step, episodes):
    if step == at:
        wait()
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        asked_for.wait(5)
    return usual_run(act, tasks, seeds, discounts, step, episodes)

def report(self, *args):
    if what == "hold" and self.step == at + self.plan.log_interval:
        wait()
    return usual_report(self, *args)

def finish(self):
    if self.step > at:
        asked_for.set()
    return usual_finish(self)

rooms.run, Training._report_frozen, Training._finish_evaluation = run, report, finish
sys.argv[1:] = sys.argv[4:]
cli.main()
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """A run without any interruption."""
    directory = tmp_path_factory.mktemp("whole") / "run"
    small_run(directory, small_plan(data, **SETTINGS))
    return directory


@pytest.fixture(scope="module")
def child(tmp_path_factory):
    """Starts `uhm ...`. What one process compiled serves the next: the programs are the same, and that takes long."""
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}
    cache["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"

    def begin(*arguments, changed=()):
        code = ["-c", CHILD, *changed] if changed else ["-m", "uhm"]
        command = [sys.executable, *(str(a) for a in (*code, *arguments))]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | cache
        )

    return begin


def flags(data, agent, settings=SETTINGS):
    plan = small_plan(data, agent, **settings)
    given = ["train", agent, *plan.tasks, "--data-dir", data, "--hidden", 16, "--batch-size", 16]
    for name in ("eval_episodes", *settings):
        values = {**settings, "eval_episodes": plan.eval_episodes}[name]
        given += [f"--{name.replace('_', '-')}", *(values if isinstance(values, list) else [values])]
    return given


def until(process, condition):
    """Wait for `condition`, which has to come true while the process runs."""
    while not condition():
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.002)


def kill(process):
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_killed_again_and_again(data, child, tmp_path):
    """Before the first checkpoint, in an evaluation, after a checkpoint at some random moment."""
    small_run(tmp_path / "whole", small_plan(data, "uhm", **MODEL))
    run, delay = tmp_path / "run", random.uniform(0, 0.2)
    process = child(*flags(data, "uhm", MODEL), "--run", run)
    until(process, (run / "config.json").exists)
    kill(process)
    assert not (run / "checkpoints").exists()

    process = child("train", "--resume", run, changed=(20, "kill", run / "checkpoints" / "20"))
    said = process.communicate()
    assert process.returncode == -signal.SIGKILL, said
    assert Run.open(run, write=False).steps()[-1] == 20
    assert {episode["step"] for episode in lines(run / "episodes.jsonl")} == {10}

    process = child("train", "--resume", run)
    until(process, (run / "checkpoints" / "40").exists)
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    process.communicate()

    process = child("train", "--resume", run)
    said = process.communicate()
    assert process.returncode == 0, said
    assert outcome(run) == outcome(tmp_path / "whole"), f"killed {delay} s after checkpoint 40"
    assert len(json.loads((run / "environment.json").read_text())["sessions"]) == 4


@pytest.mark.slow
def test_killed_with_a_ring_of_imagined_transitions(data, child, tmp_path):
    """It holds 13 steps: at the checkpoint of step 20 it is in its second round, and later draws see both."""
    settings = {"seeds": 1, "penalty": [0.5, 2.0], "steps": 30, "log_interval": 5, "eval_interval": 10}
    settings |= {"checkpoint_interval": 10, "ensemble": 2, "rollouts": 3, "rollout_length": 2, "rollout_age": 13}
    small_run(tmp_path / "whole", small_plan(data, "mopo", **settings))
    run = tmp_path / "run"
    process = child(*flags(data, "mopo", settings), "--run", run, changed=(20, "kill", run / "checkpoints" / "20"))
    said = process.communicate()
    assert process.returncode == -signal.SIGKILL, said
    assert Run.open(run, write=False).steps()[-1] == 20

    process = child("train", "--resume", run)
    said = process.communicate()
    assert process.returncode == 0, said
    assert outcome(run) == outcome(tmp_path / "whole")


# Those that no test here kills; for IQL, ReBRAC and FQL see tests/test_model_free.py.
TINY = {
    "ghm": {"flow_steps": 1},
    "mbtd": {"flow_steps": 1},
    "dtd": {},
    "mobile": {"ensemble": 2, "rollouts": 2, "rollout_length": 2, "rollout_age": 3, "penalty_samples": 2},
    "mac": {"chunk": 2, "rollout_chunks": 2, "train_samples": 2, "flow_steps": 2},
}


@pytest.mark.parametrize("name", TINY)
def test_a_checkpoint_is_all_that_a_method_needs(name, tmp_path):
    """Stored and restored half-way, when a ring has been filled, every bit comes out as without."""
    rows, kind = random_data(2), family(name)
    members = population.grid(("t0", "t1"), [0], {"learning_rate": [1e-3, 1e-4]})
    agent = kind.make(kind.Config(hidden=(8,), batch_size=8, **TINY[name]), spec_of(rows, 3))
    hyper = population.stack_hyper(kind.Hyper(), members)
    rows = rows.with_task(np.array([member.column for member in members], np.int32)).to_device()
    half, _ = population.advance(agent, population.init(agent, members, hyper), hyper, rows, 5)
    before = jax.device_get(half.state.params.critic)
    with Run.create(tmp_path / "run", {}) as run:
        run.save(5, half, block=True)
        restored = run.restore(jax.eval_shape(lambda: half))
    assert restored is not None
    whole, resumed = (population.advance(agent, state, hyper, rows, 5)[0] for state in (half, restored[1]))
    assert_trees(np.testing.assert_array_equal, resumed.state, whole.state)
    changed = jax.tree.map(lambda a, b: bool((a != b).any()), before, jax.device_get(resumed.state.params.critic))
    assert all(jax.tree.leaves(changed))


@pytest.mark.slow
@pytest.mark.parametrize("signal_sent", [signal.SIGINT, signal.SIGTERM])
def test_in_use_and_ctrl_c(data, whole, child, tmp_path, capsys, signal_sent):
    """An evaluation that is under way when Ctrl-C comes is finished first: a resumed run would not make it again."""
    run, go_on = tmp_path / "run", tmp_path / "go on"
    process = child(*flags(data, "rebrac-dagger"), "--run", run, changed=(10, "hold", go_on))
    until(process, lambda: len(lines(run / "metrics.jsonl")) == 3)
    assert lines(run / "episodes.jsonl") == []

    assert cli.run([str(a) for a in (*flags(data, "rebrac-dagger"), "--run", run)]) == 2
    assert f"{run} holds a run already" in capsys.readouterr().err
    assert cli.run(["train", "--resume", str(run)]) == 2
    refused = capsys.readouterr().err
    assert f"{run} is in use by process {process.pid} on" in refused
    assert len(refused.splitlines()) == 1
    until(process, (run / "checkpoints" / "10").exists)
    assert int(load_run(run).state.step) == 10  # a reader disturbs nobody

    process.send_signal(signal_sent)
    time.sleep(0.2)
    go_on.touch()
    out, err = process.communicate()
    assert process.returncode == 130, err
    assert out == ""
    first, *progress, waiting, last = err.splitlines()
    assert first == f"run: {run}"
    assert all(line.startswith(("data: ", "rebrac-dagger rooms: step ")) for line in progress)
    assert waiting == "uhm: warning: waiting for the evaluation that is under way; interrupt again to lose it."
    assert last == f"uhm: stopped at step 15, all saved: go on with `uhm train --resume {run}`."
    assert Run.open(run, write=False).steps()[-1] == 15
    assert {episode["step"] for episode in lines(run / "episodes.jsonl")} == {10}

    assert resume(run) == json.loads((run / "summary.json").read_text())
    assert outcome(run) == outcome(whole)


@pytest.mark.slow
def test_a_second_ctrl_c_loses_the_evaluation_and_no_step(data, child, tmp_path):
    run = tmp_path / "run"
    process = child(*flags(data, "rebrac-dagger"), "--run", run, changed=(10, "stuck", tmp_path / "never"))
    until(process, lambda: len(lines(run / "metrics.jsonl")) == 4)
    process.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert process.poll() is None  # it waits for the evaluation
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    waiting, last = err.splitlines()[-2:]
    assert waiting == "uhm: warning: waiting for the evaluation that is under way; interrupt again to lose it."
    assert last == f"uhm: stopped at step 20, all saved: go on with `uhm train --resume {run}`."
    assert int(load_run(run).state.step) == 20
    assert lines(run / "episodes.jsonl") == []
    assert resume(run)["steps"] == 60
    assert [*dict.fromkeys(episode["step"] for episode in lines(run / "episodes.jsonl"))] == [20, 30, 40, 50, 60]


def test_a_damaged_checkpoint_falls_back_to_the_one_before(whole, tmp_path, capsys):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    (run / "summary.json").unlink()
    assert Run.open(run, write=False).steps()[-2:] == [50, 60]
    damaged = max((run / "checkpoints" / "60" / "tree").rglob("*"), key=lambda path: path.stat().st_size)
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 1
    damaged.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert cli.run(["train", "--resume", str(run)]) == 0
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if line.startswith("uhm:")] == said[:1]
    assert said[0].startswith("uhm: warning: checkpoint 60")
    assert said[0].endswith("using 50.")
    assert outcome(run) == outcome(whole)
    assert len(lines(run / "metrics.jsonl")) == 12


def test_an_evaluation_that_was_half_written_is_made_again(whole, tmp_path):
    """A kill amid the writing of the last one: of its twelve episodes seven are there, and half of the eighth."""
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    (run / "summary.json").unlink()
    records = (run / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    last = [index for index, record in enumerate(records) if json.loads(record)["step"] == 60]
    assert len(last) == 12
    (run / "episodes.jsonl").write_bytes(b"".join(records[: last[7]]) + records[last[7]][:50])
    resume(run)
    assert outcome(run) == outcome(whole)


def test_a_finished_run_stays_as_it_is(whole, capsys):
    names = ("summary.json", "metrics.jsonl", "episodes.jsonl")
    before = [(whole / name).read_bytes() for name in names]
    assert cli.run(["train", "--resume", str(whole)]) == 0
    said = capsys.readouterr()
    assert "rooms-task1" in said.out
    assert f"{whole} is finished; nothing is left to do." in said.out
    assert said.err == ""
    assert [(whole / name).read_bytes() for name in names] == before
    assert resume(whole) == json.loads(before[0])


def test_what_cannot_be_resumed(whole, tmp_path, capsys):
    (tmp_path / "notes").mkdir()
    shutil.copytree(whole, tmp_path / "old")
    about = json.loads((tmp_path / "old" / "environment.json").read_text())
    (tmp_path / "old" / "environment.json").write_text(json.dumps({**about, "format": FORMAT + 1}))
    for name, message in (
        ("nowhere", "no run directory"),
        ("notes", "is not a run: it holds no config.json"),
        ("old", f"was made by another version: its format is {FORMAT + 1}"),
    ):
        assert cli.run(["train", "--resume", str(tmp_path / name)]) == 2
        said = capsys.readouterr().err
        assert message in said
        assert len(said.splitlines()) == 1
    assert (tmp_path / "old" / "summary.json").read_bytes() == (whole / "summary.json").read_bytes()


def test_other_data_are_refused(whole, tmp_path, monkeypatch):
    run = tmp_path / "run"
    shutil.copytree(whole, run)
    (run / "summary.json").unlink()
    other = make_data(tmp_path / "data")
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps({**config, "data_dir": str(other), "transitions": 300}))
    with pytest.raises(UhmError, match=r"the data are not those that .* began with: observation_\w+ differs"):
        resume(run)
    assert lines(run / "metrics.jsonl") == lines(whole / "metrics.jsonl")


@pytest.mark.slow
def test_a_full_disk_costs_nothing_but_time(data, whole, tmp_path, monkeypatch):
    run, usual = tmp_path / "run", checkpoints._reserve

    def full(path, size):
        if path.parent.name.startswith("30."):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        usual(path, size)

    with monkeypatch.context() as patch, pytest.raises(UhmError, match="No space left on device") as error:
        patch.setattr(checkpoints, "_reserve", full)
        start(small_plan(data, **SETTINGS), run)
    assert "cannot save checkpoint 30" in str(error.value)
    assert "\n" not in str(error.value)
    assert int(load_run(run).state.step) == 20
    assert not (run / "summary.json").exists()
    resume(run)
    assert outcome(run) == outcome(whole)


def test_the_evaluations_of_the_whole_run(whole):
    summary = json.loads((whole / "summary.json").read_text())
    for member in summary["members"]:
        assert [evaluation["step"] for evaluation in member["evaluations"]] == EVALUATIONS
