"""Loading: rewards and masks against OGBench's own relabelling, both placements, shards, and every kind of bad file."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import textwrap
import warnings
from typing import Any

import numpy as np
import ogbench
import pytest

from uhm import envs, tasks
from uhm.data import download, generate, source
from uhm.data.dataset import share_of_ends
from uhm.data.goals import goals
from uhm.errors import UhmError


def fabricate(environment, trajectories=6, rows=40, seed=0):
    """Rows that are scattered around the goals of all five tasks, so that every relabelling rule is exercised."""
    rng = np.random.default_rng(seed)
    n = trajectories * rows
    columns = {
        "observations": rng.normal(size=(n, environment.observation_size)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (n, environment.action_size)).astype(np.float32),
        "terminals": np.tile(np.arange(rows) == rows - 1, trajectories),
    }
    env = envs.make(environment.tasks[0])
    env.reset()
    raw = env.unwrapped
    pick = rng.integers(0, 5, n)
    if environment.domain == "locomotion":
        width = 2 if "pointmaze" in environment.name else 15 + 7 * ("soccer" in environment.name)
        qpos = rng.normal(size=(n, width))
        first = 15 if "soccer" in environment.name else 0
        targets = np.array([info["goal_xy"] for info in raw.task_infos])  # type: ignore[attr-defined]
        qpos[:, first : first + 2] = targets[pick] + rng.normal(0, 0.6, (n, 2))
    else:
        qpos = np.tile(raw._data.qpos, (n, 1))  # type: ignore[attr-defined]
        for task in range(5):
            raw._reward_task_id = task + 1  # type: ignore[attr-defined]
            env.reset()
            mine = pick == task
            for cube, target in enumerate(raw._data.mocap_pos):  # type: ignore[attr-defined]
                at = 14 + 7 * cube
                qpos[mine, at : at + 3] = target + rng.normal(0, 0.02, (mine.sum(), 3))
            buttons = getattr(raw, "_target_button_states", None)
            if buttons is not None:
                flips = rng.random((mine.sum(), len(buttons))) < 0.5 / len(buttons)
                columns.setdefault("button_states", np.zeros((n, len(buttons)), np.int64))[mine] = buttons ^ flips
            if environment.name.startswith("scene"):
                slides = np.array([raw._target_drawer_pos, raw._target_window_pos])  # type: ignore[attr-defined]
                qpos[mine, -2:] = slides + rng.normal(0, 0.03, (mine.sum(), 2))
    env.close()
    columns["qpos"] = qpos.astype(np.float32)
    columns["qvel"] = np.zeros((n, 1), np.float32)
    return columns


def write(folder, environment, columns, compressed=False):
    save = np.savez_compressed if compressed else np.savez
    for suffix in ("", "-val"):
        save(folder / f"{environment.dataset.replace('-100m', '')}{suffix}.npz", allow_pickle=True, **columns)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["cube-double-play", "scene-play", "puzzle-3x3-play", "pointmaze-medium-navigate", "antsoccer-arena-navigate"],
)
def test_rewards_and_masks_are_those_of_ogbench(name, tmp_path):
    environment = tasks.environment(name)
    columns = fabricate(environment)
    write(tmp_path, environment, columns, compressed=True)
    mine = source.load(environment, data_dir=tmp_path, placement="host")
    for index, task in enumerate(environment.tasks):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loaded: Any = ogbench.make_env_and_datasets(
                task.ogbench_id, dataset_dir=str(tmp_path), compact_dataset=True
            )
        env, train, _ = loaded
        env.close()
        np.testing.assert_array_equal(mine.rewards[index], train["rewards"])
        np.testing.assert_array_equal(mine.masks[index], train["masks"])
        np.testing.assert_array_equal(mine.observations, train["observations"])
        starts = np.flatnonzero(train["valids"])
        np.testing.assert_array_equal(np.sort(mine.starts), starts)
        assert 0 < (~mine.masks[index]).sum() < len(columns["actions"]), "the rows must tell the rules apart"


@pytest.fixture(scope="module")
def maze(tmp_path_factory):
    """A small pointmaze set as one file, compressed and not, and as a folder of three shards."""
    environment = tasks.environment("pointmaze-medium-navigate")
    folder = tmp_path_factory.mktemp("maze")
    columns = fabricate(environment)
    write(folder, environment, columns)
    (folder / "shards").mkdir()
    for shard in range(3):
        part = fabricate(environment, trajectories=2, seed=shard + 1)
        np.savez_compressed(
            folder / "shards" / f"pointmaze-medium-navigate-v0-{shard:03d}.npz", allow_pickle=True, **part
        )
    return environment, folder, columns


def same(a, b):
    for field in ("observations", "actions", "rewards", "masks", "starts", "last", "counts"):
        np.testing.assert_array_equal(getattr(a, field), getattr(b, field))


def test_host_and_device_placement_hold_the_same_rows(maze):
    environment, folder, _ = maze
    on_device = source.load(environment, data_dir=folder)
    mapped = source.load(environment, data_dir=folder, placement="host")
    again = source.load(environment, data_dir=folder, placement="host")
    assert isinstance(mapped.observations, np.memmap)
    assert not on_device.on_host
    same(on_device, mapped)
    same(mapped, again)


def entries(folder):
    return sorted(path.relative_to(folder / source.CACHE).as_posix() for path in (folder / source.CACHE).glob("*/*"))


def test_a_new_version_of_ogbench_or_of_the_data_is_read_anew(maze, tmp_path, monkeypatch):
    """Rewards come from OGBench's goals: other ones have to be seen, and what they replace is not kept."""
    environment, _, columns = maze
    write(tmp_path, environment, columns)

    def load(split: Any = "train"):
        return source.load(environment, data_dir=tmp_path, placement="host", split=split)

    before = load()
    (first,) = entries(tmp_path)
    usual, version = source.goals, importlib.metadata.version

    def never(environment):
        return usual(environment)._replace(solved=lambda c: np.zeros((5, len(c["qpos"]), 1), bool))

    with monkeypatch.context() as patch:
        patch.setattr(source, "goals", never)
        same(load(), before)  # as long as nothing says that there is something new
        patch.setattr(importlib.metadata, "version", lambda name: "99" if name == "ogbench" else version(name))
        assert not (np.asarray(before.masks).all())
        assert np.asarray(load().masks).all()
        (second,) = entries(tmp_path)
        assert second != first
    same(load(), before)
    assert entries(tmp_path) == [first]
    validation = tmp_path / f"{environment.dataset}-val.npz"
    shutil.copy(tmp_path / f"{environment.dataset}.npz", validation)
    load("val")
    load()
    assert len(entries(tmp_path)) == 2  # another file is no reason to forget this one
    os.utime(validation, (1, 1))
    load("val")
    assert len(entries(tmp_path)) == 2
    assert first in entries(tmp_path)


def test_what_a_killed_process_had_begun_to_write_goes(maze, tmp_path):
    environment, _, columns = maze
    write(tmp_path, environment, columns)
    source.load(environment, data_dir=tmp_path, placement="host")
    (entry,) = entries(tmp_path)
    path = tmp_path / source.CACHE / entry
    shutil.rmtree(path)
    with subprocess.Popen([sys.executable, "-c", ""]) as dead:
        pass
    here = platform.node()
    for process in (f"{here}.{dead.pid}", f"{here}.{os.getppid()}", f"else.where.{dead.pid}"):
        path.with_name(f"{path.name}.{process}.partial").mkdir()
    source.load(environment, data_dir=tmp_path, placement="host")
    alive = [f"{entry}.{process}.partial" for process in (f"{here}.{os.getppid()}", f"else.where.{dead.pid}")]
    assert entries(tmp_path) == sorted([entry, *alive])


def test_one_task_is_one_column_of_the_same_rows(maze):
    environment, folder, _ = maze
    every = source.load(environment, data_dir=folder)
    one = source.load("pointmaze-medium-navigate-task3", data_dir=folder)
    assert one.names == ("pointmaze-medium-navigate-task3",)
    np.testing.assert_array_equal(one.rewards[0], every.rewards[2])


@pytest.mark.parametrize("placement", ["device", "host"])
def test_how_often_tasks_end_does_not_depend_on_which_are_wanted(maze, placement):
    environment, folder, columns = maze
    every = source.load(environment, data_dir=folder, placement=placement)
    one = source.load("pointmaze-medium-navigate-task3", data_dir=folder, placement=placement)
    assert one.end_share == every.end_share
    shares = [share_of_ends(np.asarray(every.masks)[i : i + 1], columns["terminals"]) for i in range(5)]
    assert one.end_share == pytest.approx(np.mean(shares))
    assert one.end_share != pytest.approx(shares[2])


def test_shards_are_read_in_order_and_only_as_many_as_needed(maze):
    environment, folder, _ = maze
    every = source.load(environment, data_dir=folder, dataset="shards", placement="host", transitions=10_000)
    assert every.size == 3 * 2 * 39
    first = source.load(environment, data_dir=folder, dataset="shards", placement="host", transitions=100)
    # 39 transitions a trajectory: the third one passes 100, and trajectories are never cut.
    assert first.size == 3 * 39
    np.testing.assert_array_equal(first.observations, every.observations[: 3 * 40])


def test_actions_are_clipped_inside_the_reach_of_tanh(maze):
    environment, folder, columns = maze
    columns = {**columns, "actions": np.sign(columns["actions"])}
    other = folder / "clip"
    other.mkdir()
    write(other, environment, columns)
    actions = source.load(environment, data_dir=other, placement="host").actions
    assert np.abs(actions).max() < 1.0
    assert np.abs(actions).min() > 0.9999


def test_memory_for_loading_is_the_size_of_the_data_once(tmp_path):
    """A fresh process loads 100 MB of rows that lie compressed on disk; its peak grows by far less than 200 MB."""
    environment = tasks.environment("pointmaze-medium-navigate")
    rows = 4_000_000
    columns = {
        "observations": np.zeros((rows, 2), np.float32),
        "actions": np.zeros((rows, 2), np.float32),
        "terminals": np.arange(rows) % 1000 == 999,
        "qpos": np.zeros((rows, 2), np.float32),
    }
    np.savez_compressed(tmp_path / f"{environment.dataset}.npz", allow_pickle=True, **columns)
    script = f"""
        import resource, jax
        from uhm.data import source, load
        # What is imported and built once is no part of the data's cost.
        jax.numpy.zeros(1).block_until_ready()
        source.goals(source.tasks.environment({environment.name!r}))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        data = load({environment.name!r}, data_dir={str(tmp_path)!r})
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        held = sum(x.nbytes for x in jax.tree.leaves(data))
        print(held, (after - before) * 1024)
    """
    out = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True)
    held, grown = (float(x) for x in out.stdout.split())
    assert held > 100e6
    assert grown < 1.8 * held


BAD = {
    "missing": (None, "no train data for pointmaze-medium-navigate"),
    "half a file": ("half", "not a readable npz file .* half a download: delete it and get or make it again"),
    "not an npz": ("text", "not a readable npz file"),
    "no observations": ({"observations": None}, "field 'observations' is missing"),
    "no qpos": ({"qpos": None}, "field 'qpos' is missing"),
    "wrong dtype": ({"observations": lambda x: x.astype(np.int32)}, "field 'observations' has type int32"),
    "text": ({"actions": lambda x: x.astype(str)}, "field 'actions' has type <U32"),
    "pickle": ({"qvel": lambda x: np.array([{}] * len(x))}, "field 'qvel' holds Python objects"),
    "nan": ({"observations": lambda x: np.where(np.arange(len(x))[:, None] == 7, np.nan, x)}, "first at row 7"),
    "too large": ({"observations": lambda x: x.astype(float) + 1e39}, r"'observations' has 1e\+39 at row 0"),
    "no width": ({"qpos": lambda x: x[:, :0]}, "field 'qpos' has rows of width 0"),
    "inf": ({"actions": lambda x: np.where(np.arange(len(x))[:, None] == 9, np.inf, x)}, "'actions' has NaN or inf"),
    "wrong size": ({"observations": lambda x: x[:, :1]}, "has size 1, but pointmaze-medium-navigate has 2"),
    "wrong dimensions": ({"actions": lambda x: x[:, 0]}, "field 'actions' has shape"),
    "no terminals": ({"terminals": np.zeros_like}, "'terminals' is never set"),
    "no rows": (dict.fromkeys(("observations", "actions", "terminals", "qpos"), lambda x: x[:0]), "has no rows"),
    "terminals missing": ({"terminals": None}, "field 'terminals' is missing"),
    "one row": ({"terminals": lambda x: np.roll(x, 0) | (np.arange(len(x)) == 0)}, "trajectory at row 0 has one row"),
    "cut off": ({"terminals": lambda x: x & (np.arange(len(x)) < 100)}, "last trajectory is cut off"),
    "row counts differ": ({"actions": lambda x: x[:-1]}, "field 'actions' has 239 rows"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("placement", ["device", "host"])
def test_bad_files_get_one_line_that_names_file_and_field(case, placement, maze, tmp_path):
    environment, _, columns = maze
    change, message = BAD[case]
    path = tmp_path / f"{environment.dataset}.npz"
    if change == "text":
        path.write_text("observations, actions")
    elif change is not None:
        edits = {} if change == "half" else change
        edited = {k: edits[k](v) if edits.get(k) else v for k, v in columns.items() if edits.get(k, 1) is not None}
        np.savez(path, allow_pickle=True, **edited)
        if change == "half":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    with pytest.raises(UhmError, match=message) as error:
        source.load(environment, data_dir=tmp_path, placement=placement)
    assert "\n" not in str(error.value)
    assert change is None or str(path) in str(error.value)
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before, "nothing is written or deleted"


@pytest.mark.parametrize("name", tasks.ENVIRONMENTS)
def test_missing_data_come_with_advice_that_works(name, tmp_path):
    """What is advised is tried, as far as it goes without a network and without an hour of simulation."""
    environment = tasks.environment(name)
    with pytest.raises(UhmError) as caught:
        source.find(environment, tmp_path)
    said = str(caught.value)
    assert said.startswith(f"no train data for {name} in {tmp_path}: ")
    assert ("`uhm data get" in said) == (environment is not tasks.ROOMS)
    if "`uhm data get" in said:
        assert download.files(environment)
    try:
        generate.finished(environment, tmp_path)
    except UhmError:
        assert "uhm data make" not in said
    else:
        assert f"`uhm data make {name}`" in said
    assert environment.dataset in said
    assert ("folder" in said) == environment.sharded


def test_files_of_ogbench_load_whatever_else_they_hold(maze, tmp_path):
    environment, _, columns = maze
    extra = {name: np.zeros(len(columns["actions"])) for name in ("timeouts", "next_observations", "anything")}
    write(tmp_path, environment, {**columns, **extra})
    assert source.load(environment, data_dir=tmp_path).size == 6 * 39


def test_tasks_of_two_environments_are_refused():
    pair = [tasks.task("cube-single-play-task1"), tasks.task("scene-play-task1")]
    with pytest.raises(UhmError, match="one environment, not 2"):
        source.load(pair)


def test_goals_are_read_once_per_environment_not_per_row():
    """Labelling ten rows or none works alike: the environment is gone by then."""
    goal = goals(tasks.environment("pointmaze-medium-navigate"))
    rewards, masks = goal.label({"qpos": np.zeros((3, 2), np.float32)})
    assert rewards.shape == masks.shape == (5, 3)
    assert set(np.unique(rewards)) <= {-1, 0}
