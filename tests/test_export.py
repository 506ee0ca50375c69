"""Exported policies: what another process with JAX alone computes from the file is what the run's policy does."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from small_runs import make_data, small_plan, small_run
from uhm import cli
from uhm.errors import UhmError
from uhm.export import export
from uhm.train import load_run

# Not in this process: nothing of the package may be needed.
LOAD = """
import sys
import numpy as np
from jax import export

file, rows, out = sys.argv[1:]
policy = export.deserialize(open(file, "rb").read())
parts = np.load(rows), np.load(rows)[:1]
found = [np.asarray(policy.call(part, np.uint32(seed))) for part in parts for seed in (0, 7)]
assert not any(name.split(".")[0] in ("uhm", "equinox", "orbax") for name in sys.modules)
np.savez(out, *found)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def elsewhere(folder: Path, rows: np.ndarray) -> list[np.ndarray]:
    """Actions of all rows with seeds 0 and 7, and of the first row alone."""
    np.save(folder / "rows.npy", rows)
    words = [sys.executable, "-c", LOAD, *(str(folder / name) for name in ("policy.bin", "rows.npy", "found.npz"))]
    subprocess.run(words, check=True, env={"JAX_PLATFORMS": "cpu"})
    with np.load(folder / "found.npz") as file:
        return [file[name] for name in file.files]


@pytest.mark.parametrize("settings", [{}, {"normalise": True}, {"compute_dtype": "bfloat16"}])
def test_the_file_acts_as_the_run_does(data, tmp_path, settings):
    small_run(tmp_path / "run", small_plan(data, "uhm", steps=4, seeds=2, **settings))
    facts, paths = export(tmp_path / "run", tmp_path / "out", task="rooms-task2", seed=1)
    assert json.loads(paths[1].read_text()) == facts
    assert (facts["member"], facts["draws"], facts["observation_size"], facts["action_size"]) == (3, False, 2, 2)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert facts["params_sha256"] == summary["members"][3]["params_sha256"]
    rows = np.random.default_rng(0).uniform(-3, 3, (7, 2)).astype(np.float32)
    policy = np.asarray(load_run(tmp_path / "run").policy(3)(rows))
    for found, wanted in zip(elsewhere(tmp_path / "out", rows), (policy, policy, policy[:1], policy[:1]), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6 if "compute_dtype" not in settings else 1e-2)
    assert np.abs(policy - np.asarray(load_run(tmp_path / "run").policy(0)(rows))).max() > 1e-3


@pytest.mark.parametrize(
    ("agent", "draws"), [("fql", True), pytest.param("mac", True, marks=pytest.mark.slow), ("iql", False)]
)
def test_a_policy_that_draws_is_drawn_by_its_seed(data, tmp_path, agent, draws):
    small_run(tmp_path / "run", small_plan(data, agent, "rooms-task1", steps=2))
    facts, _ = export(tmp_path / "run", tmp_path / "out")
    rows = np.random.default_rng(0).uniform(-3, 3, (5, 2)).astype(np.float32)
    first, other, *_ = elsewhere(tmp_path / "out", rows)
    assert facts["draws"] == draws == bool((first != other).any())
    assert (np.abs(first) <= 1).all()


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "run"
    small_run(directory, small_plan(data, steps=2))
    return directory


def test_the_verb(run, tmp_path, capsys):
    assert cli.run(["export", str(run), "--task", "rooms-task2", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["task"], said["files"][0]) == ("rooms-task2", str(run / "export" / "policy.bin"))
    assert cli.run(["export", str(run), "--out", str(tmp_path / "mine")]) == 0
    assert "2 numbers to 2 within [-1, 1]; its seed changes nothing" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["policy.bin", "policy.json"]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--task", "rooms-task5"], "unknown task of this run 'rooms-task5'"),
        (["--member", "9"], "the run has no member 9"),
        (["--step", "3"], "no checkpoint of step 3"),
        (["--step", "soon"], "--step is 'soon', and must be last, best or a number"),
        (["--out", "/dev/null/here"], "cannot write /dev/null/here"),
    ],
)
def test_bad_input_is_one_line_and_status_2(run, flags, message, capsys):
    assert cli.run(["export", str(run), *flags]) == 2
    said = capsys.readouterr()
    assert message in said.err
    assert len(said.err.splitlines()) == 1


def test_who_diverged_has_no_policy_to_export(data, tmp_path):
    with pytest.warns(UserWarning, match="diverged"):
        small_run(tmp_path / "run", small_plan(data, what="rooms-task1", steps=4, learning_rate=1e30))
    with pytest.raises(UhmError, match="member 0 diverged"):
        export(tmp_path / "run", tmp_path / "out")
    assert not (tmp_path / "out").exists()
