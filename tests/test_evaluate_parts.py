"""The parts of evaluation that need no workers: policies on the CPU, scores, films."""

import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from uhm import envs, tasks
from uhm.envs import rooms
from uhm.errors import UhmError
from uhm.evaluate import Episode, by_step, complete, make_act, means_by_step, record_video, score, video
from uhm.evaluate.memory import free_megabytes
from uhm.evaluate.policy import act_rows, by_member

POINT = tasks.environment("pointmaze-medium-navigate")


def test_scores_worked_out_by_hand() -> None:
    def record(member: int, step: int, episode: int, success: float, *values: float) -> Episode:
        return Episode(member, "t", 0, step, episode, success, -1.0, 1, *values)

    made = [
        record(0, step, e, s)
        for step, pair in ((3, (1, 1)), (1, (1, 1)), (2, (0, 1)), (4, (0, 0)))
        for e, s in enumerate(pair)
    ]
    made += [record(1, 4, 0, 1.0)]
    assert by_step(made) == {0: {1: 1.0, 2: 0.5, 3: 1.0, 4: 0.0}, 1: {4: 1.0}}
    assert score(made) == {0: 0.5, 1: 1.0}
    assert score(made, last=1) == {0: 0.0, 1: 1.0}
    known = [record(0, 5, 0, 1.0, -2.0, -8.0), record(0, 5, 1, 0.0, -4.0, -1.0), record(1, 5, 0, 1.0, -2.0)]
    assert means_by_step([*known, record(1, 5, 1, 1.0)]) == {
        0: {5: {"success": 0.5, "return": -1.0, "discounted": -3.0, "value": -4.5}},
        1: {5: {"success": 1.0, "return": -1.0}},  # one of its episodes knows the one, none the other
    }


def test_an_evaluation_is_complete_with_all_episodes_of_all_members() -> None:
    def record(member: int, step: int, episode: int) -> Episode:
        return Episode(member, "t", 0, step, episode, 1.0, -1.0, 1)

    first = [record(m, 10, e) for m in (0, 1) for e in (0, 1, 2)]
    assert complete([*first, record(0, 20, 0)], 2, 3) == first
    assert complete(first[:-1], 2, 3) == []
    assert complete([], 2, 3) == []


def linear(state: dict[str, Any], observations: Any, key: Any) -> Any:
    noise = state["noise"] * jax.random.normal(key, (*observations.shape[:-1], 2))
    return observations @ state["weight"] + noise


def states(members: int, noise: float) -> dict[str, Any]:
    weight = jnp.arange(members * 6, dtype=jnp.float32).reshape(members, 3, 2)
    return {"weight": weight, "noise": jnp.full(members, noise), "unused": jnp.ones((members, 100))}


@pytest.mark.parametrize("observation_size", [None, 3])
def test_a_policy_acts_as_its_agent_and_keeps_its_own_copy(observation_size: int | None) -> None:
    stacked = states(2, 0.0)
    act = make_act(linear, stacked, jax.random.key(0), observation_size=observation_size)
    weight = np.array(stacked["weight"])
    for leaf in jax.tree.leaves(stacked):
        leaf.delete()  # what a training step that reuses its memory does
    assert len(act._leaves) == (2 if observation_size else 3)
    observations = np.random.default_rng(0).normal(size=(2, 4, 3)).astype(np.float32)
    expected = np.einsum("mls,msa->mla", observations, weight)
    np.testing.assert_allclose(np.asarray(act(observations, 0)), expected, rtol=1e-5)
    np.testing.assert_allclose(np.asarray(act.member(1, observations[1], 0)), expected[1], rtol=1e-5)


def test_noise_is_fresh_for_every_call_and_member() -> None:
    act = make_act(linear, states(2, 1.0), jax.random.key(0))
    nothing = np.zeros((2, 4, 3), np.float32)
    first, again, second = (np.asarray(act(nothing, count)) for count in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.isclose(first, second).any()
    assert not np.isclose(first[0], first[1]).any()
    np.testing.assert_allclose(np.asarray(act.member(1, nothing[1], 0)), first[1], rtol=1e-5)


@pytest.mark.parametrize("kind", ["agent", "function"])
def test_rows_of_any_members_get_their_own_actions(kind: str) -> None:
    act: Any = make_act(linear, states(4, 0.0), jax.random.key(0))
    shapes = []

    def function(observations: np.ndarray, count: int) -> Any:
        shapes.append(observations.shape)
        return act(observations, count)

    members, acting = np.array([3, 1, 1, 3, 3, -1]), np.array([True, True, False, True, True, False])
    observations = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    found = np.full((6, 2), np.nan)
    groups = by_member(members, acting)
    for rows, actions in act_rows(act if kind == "agent" else function, 4, groups, observations, 0):
        found[rows] = np.asarray(actions)[: len(rows)]
    weight = np.asarray(states(4, 0.0)["weight"])
    np.testing.assert_allclose(found[acting], np.einsum("rs,rsa->ra", observations, weight[members])[acting], rtol=1e-5)
    assert np.isnan(found[~acting]).all()
    assert shapes == ([] if kind == "agent" else [(4, 4, 3)])


def test_a_film_of_rooms(tmp_path: Path) -> None:
    from PIL import Image

    task = tasks.ROOMS.tasks[4]
    path = record_video(task, lambda o: 10 * (rooms.GOALS[4] - o), tmp_path / "new" / "rooms", episodes=2)
    assert path.suffix in (".gif", ".mp4") and path.parent == tmp_path / "new"
    if path.suffix == ".gif":
        with Image.open(path) as film:
            frames: int = getattr(film, "n_frames")  # noqa: B009  not every image has it
            assert film.size == (video.SIZE, video.SIZE) and 2 <= frames <= 200


def test_a_film_in_mujoco_or_a_reason_why_not(tmp_path: Path) -> None:
    maze: Any = envs.make(POINT.tasks[4]).unwrapped
    goal = maze.ij_to_xy(maze.task_infos[4]["goal_ij"])
    try:
        path = record_video(POINT.tasks[4], lambda o: maze.get_oracle_subgoal(o, goal)[0] - o, tmp_path / "maze.mp4")
    except UhmError as error:
        assert "MuJoCo cannot draw here" in str(error)
        pytest.skip(str(error))
    assert path.stat().st_size > 10_000


def test_a_machine_that_cannot_draw_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = """
import os
if os.environ["MUJOCO_GL"] == "egl":
    print('{"drew": false, "error": "no library"}', end="")
else:
    os.abort()
"""
    monkeypatch.setattr(video, "_CAMERA", ("-c", broken))
    monkeypatch.delenv("MUJOCO_GL", raising=False)
    with pytest.raises(UhmError) as caught:
        record_video(POINT.tasks[0], lambda o: np.zeros(2), tmp_path / "film.mp4")
    assert str(caught.value) == (
        "MuJoCo cannot draw here, so there is no video (egl: no library; osmesa: the process died (exit status -6)): "
        "install libegl1 or libosmesa6."
    )


def a_machine(folder: Path, cgroup: str, **groups: tuple[str, int]) -> tuple[Path, Path]:
    """24 GiB, of which 1 is free and 20 could be, and control groups by name with their limit and use."""
    (folder / "proc" / "self").mkdir(parents=True)
    lines = ("MemTotal: 25165824 kB", "MemFree: 1048576 kB", "MemAvailable: 20971520 kB", "HugePages_Total: 0")
    (folder / "proc" / "meminfo").write_text("\n".join(lines) + "\n")
    (folder / "proc" / "self" / "cgroup").write_text(f"4:memory:/old\n0::{cgroup}\n")
    for name, (limit, used) in groups.items():
        group = folder / "cgroup" / name.replace("__", "/")
        group.mkdir(parents=True, exist_ok=True)
        (group / "memory.max").write_text(f"{limit}\n")
        (group / "memory.current").write_text(f"{used}\n")
        (group / "memory.stat").write_text(f"anon {used}\ninactive_file 3000000000\nactive_file 500000000\nshmem 7\n")
    return folder / "proc", folder / "cgroup"


def test_files_in_memory_count_as_free(tmp_path: Path) -> None:
    assert free_megabytes(*a_machine(tmp_path, "/")) == 20971520 * 1024 / 1e6


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ({"job": ("max", 5_000_000_000)}, 20971520 * 1024 / 1e6),
        ({"job": ("8000000000", 5_000_000_000)}, 8000 - 5000 + 3500),
        # A limit of the job counts for its step, which has none or a larger one of its own.
        ({"job": ("8000000000", 5_000_000_000), "job__step": ("max", 0)}, 6500),
        ({"job": ("8000000000", 5_000_000_000), "job__step": ("9000000000", 1_000_000_000)}, 6500),
        ({"job": ("9000000000", 1_000_000_000), "job__step": ("8000000000", 5_000_000_000)}, 6500),
        ({"other": ("1000", 1000)}, 20971520 * 1024 / 1e6),
    ],
)
def test_a_container_or_job_has_what_its_limit_leaves(groups: Any, expected: float, tmp_path: Path) -> None:
    assert free_megabytes(*a_machine(tmp_path, "/job/step", **groups)) == expected


def test_the_root_of_a_container_is_its_own(tmp_path: Path) -> None:
    proc, cgroup = a_machine(tmp_path, "/", **{".": ("8000000000", 5_000_000_000)})
    assert free_megabytes(proc, cgroup) == 6500


def test_where_nothing_is_known_the_system_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", {"SC_AVPHYS_PAGES": 1000, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert free_megabytes(tmp_path, tmp_path) == 4.096
    monkeypatch.delattr(os, "sysconf")
    assert free_megabytes(tmp_path, tmp_path) == 8000
