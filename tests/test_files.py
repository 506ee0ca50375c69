"""A user's own data: npz files and Minari."""

import json
import subprocess
import sys
import textwrap
from typing import Any

import gymnasium
import numpy as np
import pytest

from uhm import cli
from uhm.agents import spec_of
from uhm.data import load
from uhm.errors import UhmError
from uhm.train import load_run, train


def columns(n=12):
    rng = np.random.default_rng(0)
    return {
        "observations": rng.normal(size=(n, 3)),
        "actions": rng.uniform(-1, 1, (n, 2)),
        "terminals": np.arange(n) % 4 == 3,
        "rewards": rng.normal(size=n),
        "masks": (np.arange(n) % 4 != 1).astype(float),
    }


def at(row, value, n=12):
    """Observations, all zero but for one row."""
    return np.where(np.arange(n)[:, None] == row, value, np.zeros((n, 3)))


def test_own_npz(tmp_path):
    mine = columns()
    np.savez(tmp_path / "log.npz", allow_pickle=True, **mine)
    data = load(str(tmp_path / "log.npz"), placement="host")
    assert data.names == ("log",)
    assert data.size == 9
    np.testing.assert_allclose(data.rewards[0], mine["rewards"], rtol=1e-6)
    np.testing.assert_array_equal(data.masks[0], mine["masks"] == 1)
    assert data.observations.dtype == np.float32


def test_blocks_of_rows_are_put_together_and_bad_ones_are_found_in_all(tmp_path):
    """More rows than are read at once; in the file as float64, and one of them bad."""
    mine: dict[str, Any] = {name: np.resize(values, (150_000, *values.shape[1:])) for name, values in columns().items()}
    mine["observations"] = np.arange(450_000.0).reshape(-1, 3)
    np.savez(tmp_path / "log.npz", allow_pickle=True, **mine)
    data = load(str(tmp_path / "log.npz"), placement="host")
    np.testing.assert_array_equal(data.observations, mine["observations"].astype(np.float32))
    np.testing.assert_allclose(data.actions, mine["actions"], rtol=1e-5)
    np.testing.assert_allclose(data.rewards[0], mine["rewards"], rtol=1e-6)
    np.testing.assert_array_equal(data.masks[0], mine["masks"] == 1)
    np.testing.assert_array_equal(data.last, np.arange(150_000) // 4 * 4 + 3)
    mine["observations"][140_001] = np.nan
    np.savez(tmp_path / "log.npz", allow_pickle=True, **mine)
    with pytest.raises(UhmError, match="'observations' has NaN or infinite values, the first at row 140001"):
        load(str(tmp_path / "log.npz"))


@pytest.mark.parametrize("placement", ["device", "host"])
def test_memory_for_own_logs_is_their_size_once(placement, tmp_path):
    """A fresh process loads 100 MB; its peak grows by that, the index of rows and the block that is being read."""
    rows = 500_000
    zeros = np.zeros((rows, 46), np.float32)
    mine: dict[str, Any] = {"observations": zeros, "actions": zeros[:, :4].copy()}
    mine |= {"terminals": np.arange(rows) % 1000 == 999, "rewards": np.zeros(rows, np.float32)}
    np.savez(tmp_path / "log.npz", allow_pickle=True, **mine)
    script = f"""
        import resource, jax
        from uhm.data import load
        jax.numpy.zeros(1).block_until_ready()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        data = load({str(tmp_path / "log.npz")!r}, placement={placement!r})
        jax.block_until_ready(jax.tree.leaves(data))
        print(sum(x.nbytes for x in jax.tree.leaves(data)))
        print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024)
    """
    out = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    held, grown = (float(x) for x in out.stdout.split())
    assert held > 100e6
    assert grown < 1.5 * held


def test_masks_are_optional(tmp_path):
    mine = columns()
    del mine["masks"]
    np.savez(tmp_path / "log.npz", allow_pickle=True, **mine)
    assert load(str(tmp_path / "log.npz")).masks.all()


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ({"rewards": None}, "field 'rewards' is missing"),
        ({"actions": 3.0 * np.ones((12, 2))}, r"'actions' reaches 3; scale actions to \[-1, 1\]"),
        ({"actions": 1.0005 * np.ones((12, 2))}, r"'actions' reaches 1\.0005; scale"),
        ({"actions": np.ones((12, 0))}, "field 'actions' has rows of width 0; each needs at least one number"),
        ({"observations": np.ones((12, 0))}, "field 'observations' has rows of width 0"),
        ({"observations": at(5, 1e39)}, r"'observations' has 1e\+39 at row 5, .* beyond 1e\+18: scale the field"),
        ({"observations": at(7, -3e38)}, r"'observations' has -3e\+38 at row 7"),
        ({"observations": at(7, np.inf)}, "'observations' has NaN or infinite values, the first at row 7"),
        ({"observations": (at(9, 1.0) * 2e18).astype(np.int64)}, r"'observations' has 2e\+18 at row 9"),
        ({"rewards": at(4, 1e300)[:, 1]}, r"'rewards' has 1e\+300 at row 4"),
        ({"next_observations": np.zeros((12, 3))}, r"'next_observations' .*uhm data convert .*log.npz log-rows.npz"),
        ({"timeouts": np.zeros(12)}, r"'timeouts' .*uhm data convert .*log.npz log-rows.npz"),
        ({"truncations": np.zeros(12)}, r"'truncations' .*uhm data convert .*log.npz log-rows.npz"),
        ({"terminals": None, "terminations": np.zeros(12)}, r"'terminations' .*uhm data convert .*log.npz"),
        ({"masks": np.full(12, 0.5)}, "'masks' must be 0"),
        ({"terminals": np.where(np.arange(12) == 11, 1, 0.3)}, "'terminals' must be 0, or 1 in the last row"),
        ({"rewards": np.full(12, np.nan)}, "'rewards' has NaN"),
        ({name: values[:0] for name, values in columns().items()}, "field 'observations' has no rows"),
    ],
)
def test_bad_own_files(edit, message, tmp_path):
    mine = {k: v for k, v in {**columns(), **edit}.items() if v is not None}
    np.savez(tmp_path / "log.npz", allow_pickle=True, **mine)
    with pytest.raises(UhmError, match=message) as caught:
        load(str(tmp_path / "log.npz"))
    assert "\n" not in str(caught.value)


def test_large_values_that_can_be_kept_are(tmp_path):
    """At the limit the statistics that training takes of the rows are still numbers."""
    np.savez(tmp_path / "log.npz", allow_pickle=True, **{**columns(), "observations": at(5, 1e18)})
    spec = spec_of(load(str(tmp_path / "log.npz")), 3)
    for name in ("observation_mean", "observation_std", "change_std"):
        assert np.isfinite(np.square(getattr(spec, name))).all()


def test_fields_that_nothing_reads_are_named(tmp_path):
    """Most of all because one of them may be a misspelt `masks`."""
    np.savez(tmp_path / "log.npz", allow_pickle=True, **columns(), mask=np.zeros(12), infos=np.zeros(12))
    with pytest.warns(UserWarning, match=r"log\.npz: nothing reads the fields 'mask', 'infos'") as caught:
        assert load(str(tmp_path / "log.npz")).size == 9
    assert len(caught) == 1


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("damage", ["text", "half", "middle"])
def test_a_damaged_file_of_ones_own_was_not_downloaded(damage, compressed, tmp_path):
    path = tmp_path / "log.npz"
    (np.savez_compressed if compressed else np.savez)(path, allow_pickle=True, **columns(500))
    whole = path.read_bytes()
    middle = whole[:1000] + bytes(64) + whole[1064:]
    path.write_bytes({"text": b"no npz", "half": whole[: len(whole) // 2], "middle": middle}[damage])
    with pytest.raises(UhmError, match=r"log\.npz: (not a readable npz file|damaged) .*; save it again") as caught:
        load(str(path))
    assert "download" not in str(caught.value) and "delete" not in str(caught.value)


@pytest.mark.parametrize("given", [{"transitions": 100}, {"split": "val"}, {"dataset": "other"}])
def test_what_own_files_do_not_have_is_not_ignored(given, tmp_path):
    np.savez(tmp_path / "log.npz", allow_pickle=True, **columns())
    with pytest.raises(UhmError, match="split, transitions and dataset are for OGBench"):
        load(str(tmp_path / "log.npz"), **given)


def test_no_such_file():
    with pytest.raises(UhmError, match="no such file"):
        load("nowhere.npz")


class Line(gymnasium.Env):
    """Walks to the end and terminates; Minari wants an environment that can be found by name."""

    observation_space = gymnasium.spaces.Box(-10, 10, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-2, 2, (1,), np.float32)

    def __init__(self, end=3):
        self.end = end

    def reset(self, *, seed=None, options=None):
        self.x = np.zeros(1, np.float32)
        return self.x, {}

    def step(self, action):
        self.x = self.x + 1
        return self.x, -1.0, bool(self.x[0] >= self.end), False, {}


@pytest.mark.filterwarnings("ignore")
def test_minari(tmp_path, monkeypatch, capsys):
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))

    gymnasium.register("uhm-line-v0", entry_point=f"{__name__}:Line")
    env = minari.DataCollector(gymnasium.make("uhm-line-v0"))
    for _ in range(2):
        env.reset()
        while not env.step(-np.ones(1, np.float32))[2]:
            pass
    env.create_dataset(
        "line/three-v0",
        eval_env=gymnasium.make("uhm-line-v0", end=4),
        algorithm_name="none",
        author="none",
        author_email="a@b.c",
        ref_min_score=-5.0,
        ref_max_score=-1.0,
    )
    data = load("minari:line/three-v0", placement="host")
    np.testing.assert_array_equal(data.actions[[0, -1]], [[-0.5], [-0.5]])  # -1 in a space from -2 to 2
    np.testing.assert_array_equal(data.observations[:, 0], [0, 1, 2, 3, 0, 1, 2, 3])
    np.testing.assert_array_equal(data.masks[0], [1, 1, 0, 1, 1, 1, 0, 1])
    np.testing.assert_array_equal(data.rewards[0], [-1, -1, -1, 0, -1, -1, -1, 0])
    assert data.size == 6
    small: dict[str, Any] = {"steps": 4, "hidden": (8,), "batch_size": 4}
    small |= {"env": "minari:line/three-v0", "eval_episodes": 1}
    summary = train("iql", "minari:line/three-v0", run=tmp_path / "run", **small)
    assert (summary["environment"], summary["steps"]) == ("minari:line/three-v0", 4)
    # Evaluated where the data say: four steps, whatever is done, and a quarter of the way between the reference scores.
    (found, *_) = summary["members"][0]["evaluations"]
    assert (found["return"], found["normalised"]) == (-4.0, 0.25)
    assert load_run(tmp_path / "run").policy()([1.0]).shape == (1,)
    assert cli.run(["eval", str(tmp_path / "run"), "--episodes", "2", "--json"]) == 0
    (member,) = json.loads(capsys.readouterr().out)["members"]
    assert (member["length"], member["return"], member["normalised"]) == (4.0, -4.0, 0.25)
    with pytest.raises(UhmError, match="minari download no/such-v0"):
        load("minari:no/such-v0")
