"""Samplers on random trajectory layouts: nothing ever crosses a trajectory's end, every valid start is drawn."""

import dataclasses
import itertools

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import strategies as st

from uhm import tasks as known
from uhm.agents import spec_of
from uhm.data import sampling
from uhm.data.dataset import make_dataset, share_of_ends
from uhm.errors import UhmError

layouts = st.lists(st.integers(2, 9), min_size=1, max_size=6)
settings = hypothesis.settings(max_examples=12, deadline=None)


def build(lengths, tasks=1):
    """Row i of trajectory j has observation (j, i), action (-j, -i), and per task the reward -(task + 1) * i."""
    trajectory = np.repeat(np.arange(len(lengths)), lengths)
    step = np.concatenate([np.arange(n) for n in lengths])
    terminals = np.concatenate([np.arange(n) == n - 1 for n in lengths])
    rows = np.stack([trajectory, step], 1).astype(np.float32)
    rewards = np.stack([-(t + 1.0) * step for t in range(tasks)]).astype(np.float32)
    return make_dataset(rows, -rows, terminals, rewards, rewards > -3, tuple(f"t{i}" for i in range(tasks)))


@settings
@hypothesis.given(layouts)
def test_counts_and_starts_list_exactly_the_valid_rows(lengths):
    data = build(lengths)
    ends = np.cumsum(lengths) - 1
    for h in range(1, max(lengths)):
        valid = {row for end, n in zip(ends, lengths, strict=True) for row in range(end - n + 1, end - h + 1)}
        assert set(data.starts[: data.counts[h]].tolist()) == valid
    assert data.size == sum(lengths) - len(lengths)


@settings
@hypothesis.given(layouts, st.integers(0, 2**31 - 1))
def test_transitions_stay_in_their_trajectory(lengths, seed):
    batch = sampling.transitions(64)(build(lengths).to_device(), jax.random.key(seed))
    np.testing.assert_array_equal(batch.next_observations - batch.observations, np.tile([0.0, 1.0], (64, 1)))
    np.testing.assert_array_equal(batch.next_actions, -batch.next_observations)
    np.testing.assert_array_equal(batch.rewards, -batch.observations[:, 1])
    np.testing.assert_array_equal(batch.masks, batch.observations[:, 1] < 3)


@settings
@hypothesis.given(layouts, st.integers(0, 2**31 - 1), st.integers(1, 12))
def test_windows_count_only_rows_of_the_same_trajectory(lengths, seed, k):
    batch = sampling.windows(64, k)(build(lengths).to_device(), jax.random.key(seed))
    trajectory, step = batch.observations[..., 0], batch.observations[..., 1]
    left = np.asarray(lengths)[np.asarray(trajectory[:, 0], int)] - 1 - step[:, 0]
    np.testing.assert_array_equal(batch.valid, np.minimum(left, k))
    assert (batch.valid >= 1).all()
    assert (trajectory == trajectory[:, :1]).all()
    expected = step[:, :1] + np.minimum(np.arange(k + 1), batch.valid[:, None])
    np.testing.assert_array_equal(step, expected)


@settings
@hypothesis.given(layouts, st.integers(0, 2**31 - 1), st.data())
def test_chunks_have_their_successor_in_the_same_trajectory(lengths, seed, data):
    h = data.draw(st.integers(1, max(lengths) - 1))
    batch = sampling.chunks(64, h)(build(lengths).to_device(), jax.random.key(seed))
    np.testing.assert_array_equal(batch.next_observations - batch.observations, np.tile([0.0, h], (64, 1)))
    np.testing.assert_array_equal(-batch.actions[..., 1], batch.observations[:, 1:] + np.arange(h))
    np.testing.assert_array_equal(-batch.actions[..., 0], np.tile(batch.observations[:, :1], (1, h)))


@pytest.mark.parametrize(("make", "valid"), [(sampling.transitions, 8), (lambda n: sampling.chunks(n, 3), 3)])
def test_draws_are_uniform_over_valid_starts(make, valid):
    data = build([5, 2, 4]).to_device()
    n = 40_000
    rows = make(n).draw(data, jax.random.key(1))
    counts = np.unique(np.asarray(rows), return_counts=True)[1]
    assert len(counts) == valid
    # Pearson's statistic has mean valid - 1; 30 is beyond the 99.9th percentile for both.
    assert ((counts - n / valid) ** 2 / (n / valid)).sum() < 30


def test_members_read_their_own_task_from_shared_rows():
    data = build([6, 7], tasks=3).with_task(np.array([2, 0], np.int32)).to_device()
    keys = jax.random.split(jax.random.key(0), 2)
    batch = jax.jit(jax.vmap(sampling.transitions(16), in_axes=(data.member_axes(), 0)))(data, keys)
    np.testing.assert_array_equal(batch.rewards[0], -3 * batch.observations[0, :, 1])
    np.testing.assert_array_equal(batch.rewards[1], -batch.observations[1, :, 1])


@pytest.mark.parametrize("on_device", [False, True])
def test_tasks_go_by_index_from_0_or_by_name(on_device):
    data = build([6, 7], tasks=3)
    data = data.to_device() if on_device else data
    rewards = sampling.transitions(16)(data.with_task(2), jax.random.key(0)).rewards
    for task in ("t2", np.array(2), jnp.array(2)):
        np.testing.assert_array_equal(
            sampling.transitions(16)(data.with_task(task), jax.random.key(0)).rewards, rewards
        )
    for task in (3, -1, np.array([0, 3]), np.array([-1, 0]), jnp.array(5), True):
        with pytest.raises(UhmError, match=r"task .* must be 0 to 2, counted from 0, or a name: t0, t1, t2"):
            data.with_task(task)
    with pytest.raises(UhmError, match=r"unknown task 't3'.* t0, t1, t2"):
        data.with_task("t3")
    # What is traced has no value yet, and is left to the one who traces.
    assert jax.jit(lambda task: data.to_device().with_task(task).task)(7) == 7


@pytest.mark.parametrize("name", ["cube-double-play-task2", "/where/ever/log.npz", "minari:a/b-v0"])
def test_tasks_are_known_by_their_task(name):
    task = known.task(name)
    names = tuple(other.name for other in task.environment.tasks)
    data = build([6, 7], tasks=len(names))
    data = dataclasses.replace(data, names=names if len(names) > 1 else (name.removeprefix("minari:"),))
    column = [0, 1][len(names) > 1]
    assert data.with_task(task).task == column
    assert data.with_task(task.name).task == column
    with pytest.raises(UhmError, match="unknown task 'scene-play-task1'"):
        data.with_task(known.task("scene-play-task1"))


@pytest.mark.parametrize("sampler", [sampling.transitions(8), sampling.windows(8, 3), sampling.chunks(8, 2)])
@pytest.mark.parametrize("shape", [(), (2,), (4, 2)])
def test_host_and_device_placement_give_the_same_batches(sampler, shape):
    data = build([5, 9, 3], tasks=2)
    data = data.with_task(np.array([1, 0], np.int32)) if shape else data.with_task(1)
    keys = [jax.random.split(jax.random.key(i), shape) if shape else jax.random.key(i) for i in range(5)]
    host = list(sampling.batches(sampler, data, keys))
    device = list(sampling.batches(sampler, data.to_device(), keys))
    assert len(host) == len(device) == 5
    for a, b in zip(jax.tree.leaves(host), jax.tree.leaves(device), strict=True):
        assert isinstance(a, jax.Array)
        np.testing.assert_array_equal(a, b)


def test_an_abandoned_or_failing_stream_ends_its_thread():
    data = build([5])
    endless = (jax.random.key(i) for i in itertools.count())
    stream = sampling.batches(sampling.transitions(4), data, endless)
    next(stream)
    stream.close()  # would hang if the thread did not stop

    def broken():
        yield jax.random.key(0)
        raise RuntimeError("no more keys")

    stream = sampling.batches(sampling.transitions(4), data, broken())
    next(stream)
    with pytest.raises(RuntimeError, match="no more keys"):
        next(stream)


def test_sampling_inside_scan_compiles_once_for_all_tasks():
    data = build([30, 20], tasks=2).to_device()
    traces = []

    @jax.jit
    def run(data, key):
        traces.append(1)
        step = lambda total, k: (total + sampling.transitions(4)(data, k).rewards.sum(), None)  # noqa: E731
        return jax.lax.scan(step, jnp.zeros(()), jax.random.split(key, 10))[0]

    first, second = run(data.with_task(0), jax.random.key(0)), run(data.with_task(1), jax.random.key(0))
    assert len(traces) == 1
    np.testing.assert_allclose(second, 2 * first)


@pytest.mark.parametrize(
    ("terminals", "message"),
    [
        ([0, 0, 0, 0], "'terminals' is never set"),
        ([0, 1, 0, 0], "last trajectory is cut off"),
        ([0, 1, 1, 0, 1], "trajectory at row 2 has one row"),
    ],
)
def test_impossible_layouts_are_refused(terminals, message):
    rows = np.zeros((len(terminals), 1), np.float32)
    columns = np.zeros((1, len(terminals)), np.float32)
    with pytest.raises(UhmError, match=message):
        make_dataset(rows, rows, np.array(terminals), columns, columns == 0, ("t",))


def test_whole_number_rewards_take_one_byte_and_others_keep_their_value():
    assert build([3]).rewards.dtype == np.int8
    rows = np.zeros((2, 1), np.float32)
    odd = make_dataset(rows, rows, np.array([0, 1]), np.array([[0.5, -1.25]]), np.ones((1, 2), bool), ("t",))
    assert odd.rewards.dtype == np.float32
    np.testing.assert_array_equal(odd.rewards, [[0.5, -1.25]])


def test_the_share_of_ends_is_that_of_rows_with_a_step_and_within_a_trajectory():
    """Two trajectories, of 12 and 3 rows; the task is solved at rows 9 and 10, and at the last row of the second."""
    terminals = np.zeros(15, bool)
    terminals[[11, 14]] = True
    masks = np.ones((2, 15), bool)
    masks[0, [9, 10, 14]] = False
    # Rows 0 to 10 and 12, 13 have a step. Within eight of them rows 2 to 10 reach row 9 or 10; row 14 has no step.
    assert share_of_ends(masks[:1], terminals) == pytest.approx(9 / 13)
    assert share_of_ends(masks, terminals) == pytest.approx(9 / 26)  # the second task never ends
    zeros = np.zeros((15, 1), np.float32)
    built = make_dataset(zeros, zeros, terminals, np.zeros((2, 15)), masks, ("a", "b"))
    assert built.end_share == pytest.approx(9 / 26)
    assert spec_of(built, 1).flag_std == pytest.approx(np.sqrt(9 / 26 * 17 / 26))
    never = make_dataset(zeros, zeros, terminals, np.zeros((1, 15)), masks[1:], ("b",))
    assert spec_of(never, 1).flag_std == 0.02
