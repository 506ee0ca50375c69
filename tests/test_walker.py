"""How ants walk: by which policy, how well by ours, and the program that taught it (benchmarks/walker.py)."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experts import write_expert
from programs import program
from uhm import tasks
from uhm.data import collect, expert, generate
from uhm.data.collect_mazes import Maze
from uhm.data.generate_worker import episode_rng
from uhm.errors import UhmError


def test_expert_policy(tmp_path: Path) -> None:
    w0, b0 = np.array([[1.0, -1.0], [0.0, 2.0]]), np.array([0.5, 0.0])
    w1, b1 = np.array([[1.0], [3.0]]), np.array([-1.0])
    path = write_expert(tmp_path / "e.npz", (2, 2, 1), w0=w0, b0=b0, w1=w1, b1=b1)
    x = np.array([1.0, 0.25])  # hidden layer: (1.5, -0.5)
    np.testing.assert_allclose(expert.load(path, 2, 1)(x), [np.tanh(0.5)], rtol=1e-6)
    path = write_expert(tmp_path / "t.npz", (2, 2, 1), w0=w0, b0=b0, w1=w1, b1=b1, activation="tanh")
    wanted = np.tanh(np.tanh(1.5) + 3 * np.tanh(-0.5) - 1)
    np.testing.assert_allclose(expert.load(path, 2, 1)(x), [wanted], rtol=1e-5)


def test_antmaze_with_an_expert_of_ones_own(tmp_path: Path) -> None:
    environment = tasks.environment("antmaze-large-navigate")
    path = write_expert(tmp_path / "e.npz")
    asked: Any = {"episodes": 1, "workers": 1, "rows": 20, "progress": False}
    train, _ = generate.make(environment, tmp_path, expert=path, **asked)
    with np.load(train) as file:
        assert file["observations"].shape == (20, 29) and file["actions"].shape == (20, 8)
    with pytest.raises(UhmError, match="exists, made with expert"):
        generate.make(environment, tmp_path, **asked)


def test_official_antmaze_data_pass_for_what_our_ant_would_make(tmp_path: Path) -> None:
    environment = tasks.environment("antmaze-large-navigate")
    for split, name in enumerate((environment.dataset, f"{environment.dataset}-val")):
        np.savez(tmp_path / f"{name}.npz", terminals=np.zeros((20, 2)[split] * 10, bool))
    assert generate.finished(environment, tmp_path, episodes=20, rows=10)
    with pytest.raises(UhmError, match="does not say that it was made with expert"):
        generate.finished(environment, tmp_path, episodes=20, rows=10, expert=write_expert(tmp_path / "e.npz"))


@pytest.mark.slow
def test_our_ant_goes_where_it_is_told() -> None:
    """Along a corridor, by what the simulator says of its place, and from goal to goal."""
    policy = expert.load(expert.ANT, 29, 8)
    env = collect.Simulation("antmaze-large-v0", terminate_at_goal=False, max_episode_steps=1001).env
    observation, _ = env.reset(options={"task_info": {"init_ij": (1, 1), "goal_ij": (7, 1)}}, seed=0)
    start = env.get_xy()
    for _ in range(60):  # along a straight corridor of five cells, four metres each
        observation, *_ = env.step(policy(np.concatenate([observation[2:], [0.0, 1.0]])))
    moved = env.get_xy() - start
    assert moved[1] > 5 and abs(moved[0]) < 2.5, moved
    collector = Maze("antmaze-large", "navigate", 501, policy)
    ways = [collector.episode(episode_rng(0, 0, k))["qpos"][:, :2] for k in range(3)]
    assert max(len({env.xy_to_ij(xy) for xy in way}) for way in ways) > 8  # one of them may fall


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"w1": np.zeros((5, 8))}, r"w1 and b1 have shapes \(5, 8\) and \(8,\), expected \(6, 8\)"),
        ({"b1": np.zeros(7)}, "expected"),
        ({"w0": np.full((29, 6), np.nan)}, "finite"),
        ({"w1": None}, "must hold w0, b0"),
        ({"activation": "sine"}, "sine"),
        ({"w0": np.array([object()], dtype=object)}, "not an npz file of arrays"),
    ],
)
def test_ill_shaped_experts_are_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = write_expert(tmp_path / "e.npz", **changes)
    with pytest.raises(UhmError, match=message):
        generate.make(tasks.environment("antmaze-large-navigate"), tmp_path, episodes=1, expert=path)


def test_an_expert_is_an_npz_file(tmp_path: Path) -> None:
    np.save(tmp_path / "e.npy", np.zeros(3))
    with pytest.raises(UhmError, match="is not an npz file of arrays"):
        expert.load(tmp_path / "e.npy", 29, 8)


# --- the program ------------------------------------------------------------------------------------------------------


@pytest.fixture
def walker(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The program, with stretches so short that a training takes seconds."""
    found = program("benchmarks/walker.py")
    monkeypatch.setattr(found, "STRETCH", 80)
    monkeypatch.setattr(found, "RANDOM_STEPS", 40)
    monkeypatch.setattr(found, "BATCH", 4)
    monkeypatch.setattr(found, "HIDDEN", (8,))
    return found


def test_an_ant_is_paid_for_the_way_it_is_told(walker: Any) -> None:
    ant = walker.Ant(np.random.default_rng(0), ends=False)
    start, direction = ant._env.data.qpos[:2].copy(), ant.observation[27:].copy()
    np.testing.assert_allclose(np.linalg.norm(direction), 1, rtol=1e-6)
    rng, ways = np.random.default_rng(1), []
    for _ in range(walker.TURN - 1):
        ahead, aside, _, then = ant.step(rng.uniform(-1, 1, 8))
        ways.append((ahead, aside))
        np.testing.assert_array_equal(then[27:], direction)
    # The two parts put together are where it is now.
    across = np.array([-direction[1], direction[0]])
    np.testing.assert_allclose(
        np.sum(ways, 0)[0] * direction + np.sum(ways, 0)[1] * across, ant._env.data.qpos[:2] - start, atol=1e-5
    )
    *_, then = ant.step(np.zeros(8))
    assert not np.allclose(then[27:], direction)  # and now another way


def test_an_ant_on_its_back(walker: Any) -> None:
    ant = walker.Ant(np.random.default_rng(0))
    for quaternion, on_its_back in (((1, 0, 0, 0), False), ((0, 1, 0, 0), True), ((0.6, 0, 0, 0.8), False)):
        ant._env.data.qpos[3:7] = quaternion  # upright, turned over, turned about the vertical
        assert ant.on_its_back == on_its_back


def learned(walker: Any, rows: Any) -> Any:
    """The state after 2,000 steps on batches of all rows."""
    batches = walker.Rows(*(jnp.broadcast_to(jnp.asarray(x, jnp.float32), (500, *x.shape)) for x in rows))
    state, metrics = walker.fresh(jax.random.key(0)), {}
    for key in jax.random.split(jax.random.key(1), 4):
        state, metrics = walker.updates(state, batches, key)
    return state, metrics


@pytest.mark.slow
def test_the_critic_learns_what_steps_are_worth(walker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each step pays 1 and half of what follows counts, going on for ever is worth 2, and a last step 1."""
    for name, value in (("DISCOUNT", 0.5), ("LEARNING_RATE", 3e-3), ("ETA", 0.1), ("HIDDEN", (16,))):
        monkeypatch.setattr(walker, name, value)
    states = np.repeat([0.0, 1.0], 256)[:, None] * np.ones(29)  # the first go on, the others end
    actions = np.random.default_rng(0).uniform(-1, 1, (512, 8))
    state, _ = learned(walker, walker.Rows(states, actions, np.ones(512), 1 - states[:, 0], states))
    q = state.params.critic(*(jnp.asarray(x, jnp.float32) for x in (states, actions)))
    np.testing.assert_allclose(q[:, :256], 2, atol=0.1)
    np.testing.assert_allclose(q[:, 256:], 1, atol=0.1)


@pytest.mark.slow
def test_the_actor_learns_what_pays_and_how_much_to_try(walker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is how near each number of the action is to a half; the temperature holds the entropy at -8 / 2."""
    for name, value in (("LEARNING_RATE", 1e-2), ("HIDDEN", (16,))):
        monkeypatch.setattr(walker, name, value)
    actions, states = np.random.default_rng(0).uniform(-1, 1, (256, 8)), np.zeros((256, 29))
    paid = -np.square(actions - 0.5).sum(1)
    state, metrics = learned(walker, walker.Rows(states, actions, paid, np.zeros(256), states))
    action = jnp.tanh(state.params.actor(jnp.zeros(29))[0])
    assert action.min() > 0
    assert float(action.mean()) == pytest.approx(0.5, abs=0.1)  # 256 rows in 8 dimensions do not tell each exactly
    assert float(metrics["entropy"]) == pytest.approx(-4, abs=1)


@pytest.mark.slow
def test_a_training_that_was_stopped_goes_on_exactly(
    walker: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(walker, "EPISODE", 30)
    walker.train(tmp_path / "whole", 160, seed=0)
    stretch, done = walker.stretch, []

    def once(*args: Any) -> Any:
        if done:
            raise KeyboardInterrupt
        done.append(args)
        return stretch(*args)

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(walker, "stretch", once)
        walker.train(tmp_path / "parts", 160, seed=0)
    assert not (tmp_path / "parts" / "ant.npz").exists()
    for seed, steps in ((1, 160), (0, 80)):
        with pytest.raises(
            UhmError, match=r"training\.npz is of --(seed 0, not 1|steps 160, not 80): train in another"
        ):
            walker.train(tmp_path / "parts", steps, seed=seed)
    walker.train(tmp_path / "parts", 160, seed=0)
    whole, parts = ((tmp_path / name / "training.npz").read_bytes() for name in ("whole", "parts"))
    assert whole == parts
    assert "160 of 160" in capsys.readouterr().out
    # The file is the actor's mean.
    kept = tmp_path / "whole" / "training.npz"
    state, rows = walker.restore(kept, walker.fresh(jax.random.key(0)), walker.blank(160), 0)
    assert rows == 160
    seen = np.random.default_rng(0).normal(size=29).astype(np.float32)
    policy = expert.load(tmp_path / "whole" / "ant.npz", 29, 8)
    np.testing.assert_allclose(policy(seen), jnp.tanh(state.params.actor(jnp.asarray(seen))[0]), atol=1e-6)
