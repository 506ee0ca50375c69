"""Members of a population are what they would be alone, whatever becomes of the others."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from toys import HYPER, A, S, agent, assert_trees, random_data, train
from uhm import kernels, population
from uhm.agents import descent, family, spec_of
from uhm.agents.core import Hyper
from uhm.data.sampling import batches
from uhm.errors import UhmError

TASKS = ("t0", "t1")
CHUNK = 5
exact = np.testing.assert_array_equal


def hyper(**changes):
    return Hyper(**(vars(HYPER) | changes))


def member(tree, index):
    return jax.tree.map(lambda x: x[index], tree)


# ------------------------------------------------------------------------------------------------------------ members


def test_grid_varies_tasks_slowest_and_the_last_hyperparameter_fastest():
    members = population.grid(TASKS, [7, 8], {"alpha": [0.1, 1.0], "terminal": [True, False]})
    assert len(members) == 16
    assert [m.task for m in members] == ["t0"] * 8 + ["t1"] * 8
    assert [m.column for m in members] == [0] * 8 + [1] * 8
    assert [m.seed for m in members[:8]] == [7] * 4 + [8] * 4
    assert [dict(m.hyper) for m in members[:4]] == [
        {"alpha": alpha, "terminal": terminal} for alpha in (0.1, 1.0) for terminal in (True, False)
    ]
    assert population.grid(TASKS, [0], {}) == [population.Member("t0", 0, 0), population.Member("t1", 1, 0)]

    stacked = population.stack_hyper(hyper(discount=0.5), members)
    exact(stacked.alpha, np.tile(np.array([0.1, 0.1, 1, 1], np.float32), 4))
    exact(stacked.terminal, [True, False] * 8)
    exact(stacked.discount, [0.5] * 16)
    # A flag that all share and a whole number: what was written as 1 is the same number as 1.0.
    assert (stacked.schedule.dtype, stacked.actor_period.dtype) == (bool, np.float32)


def test_keys_differ_between_tasks_and_seeds_but_not_between_hyperparameters():
    members = population.grid(TASKS, [0, 1], {"alpha": [0.1, 1.0]})
    keys = [tuple(jax.random.key_data(m.key).tolist()) for m in members]
    assert len(set(keys)) == 4
    assert all(keys[i] == keys[i + 1] for i in range(0, 8, 2))
    # Not by a task's place in the list: the same task in another run is the same member.
    assert tuple(jax.random.key_data(population.grid(["t1"], [0], {})[0].key).tolist()) == keys[4]
    # and what follows from the keys: the same networks for each alpha, others for each task and seed
    rebrac = agent("rebrac-dagger")
    pop = population.init(rebrac, members, population.stack_hyper(HYPER, members))
    first = np.asarray(pop.state.params.critic.ensemble.layers[0].weight).reshape(8, -1)
    assert len(np.unique(first, axis=0)) == 4
    assert len({tuple(k.tolist()) for k in jax.random.key_data(pop.key)}) == 4


# ----------------------------------------------------------------------------------------------------------- training


@pytest.fixture(scope="module")
def counted():
    """UHM that counts how often its update is traced."""
    traces = []

    def update(*args):
        traces.append(1)
        return agent("uhm").update(*args)

    return agent("uhm")._replace(update=update), traces


def test_a_schedule_and_other_hyperparameters_compile_nothing_anew(counted):
    uhm, traces = counted
    data, members = random_data(2), population.grid(TASKS, [0], {"alpha": [0.1, 1.0]})
    _, history = train(uhm, members, hyper(schedule=True), data, 15, CHUNK)
    once = len(traces)
    lam, cap = (np.array([chunk[name][0] for chunk in history]) for name in ("lambda", "k_max"))
    assert (np.diff(lam) > 0).all()
    assert (np.diff(cap) > 0).all()
    _, other = train(uhm, members, hyper(lambda_f=0.5, q=0.1, beta=1.0, terminal=False, alpha=3.0), data, 5, CHUNK)
    np.testing.assert_allclose(other[0]["lambda"], 0.5)
    assert len(traces) == once


def test_a_member_is_the_same_agent_trained_alone(counted):
    """The last of four (other task, seed and hyperparameters) against itself in a population of one, after 20 steps."""
    uhm, _ = counted
    data, members = random_data(2), population.grid(TASKS, [0], {"alpha": [0.1, 1.0]})
    many, many_metrics = train(uhm, members, HYPER, data, 20, CHUNK)
    alone, alone_metrics = train(uhm, members[-1:], HYPER, data, 20, CHUNK)
    # Products of other shapes round differently, and Adam's first steps make noise of it.
    assert_trees(np.testing.assert_allclose, member(many.state, -1), member(alone.state, 0), rtol=1e-5, atol=1e-5)
    for name, value in alone_metrics[-1].items():
        assert many_metrics[-1][name][-1] == pytest.approx(value[0], rel=1e-3, abs=1e-4), name
    # The bound is far below what the other members differ by.
    weight = many.state.params.actor.mlp.layers[0].weight
    assert (np.abs(weight[:3] - weight[3]).max((1, 2)) > 2e-3).all()


def in_turn(name, monkeypatch, **changes):
    """The agent as one whose networks are large; a new function, so that what is compiled is compiled for it."""
    monkeypatch.setattr(population, "LARGE", 1)
    one = agent(name, **changes)
    return one._replace(update=lambda *args: one.update(*args))


def scans(one, members, data, hypers=HYPER):
    """The outermost loops of a chunk's program."""
    stacked, columns = population.stack_hyper(hypers, members), np.array([m.column for m in members], np.int32)
    pop = jax.eval_shape(lambda: population.init(one, members, stacked))
    jaxpr = population.advance.trace(one, pop, stacked, data.with_task(columns), CHUNK).jaxpr
    return [equation.params for equation in jaxpr.eqns if equation.primitive.name == "scan"]


def loops(one, members, data):
    """How often they turn."""
    return [scan["length"] for scan in scans(one, members, data)]


def passes(one, members, data):
    """How many steps are one pass."""
    return [scan["unroll"] for scan in scans(one, members, data)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["uhm", "dtd"])
def test_members_in_turn_are_those_side_by_side(name, monkeypatch):
    data, members = random_data(2), population.grid(TASKS, [0], {"alpha": [0.1, 1.0]})
    stacked = population.stack_hyper(HYPER, members)
    side, side_metrics = train(agent(name), members, HYPER, data, 2 * CHUNK, CHUNK)
    assert loops(agent(name), members, data) == [CHUNK]
    turns, turns_metrics = train(in_turn(name, monkeypatch), members, HYPER, data, 2 * CHUNK, CHUNK)
    assert loops(in_turn(name, monkeypatch), members, data) == [len(members)]
    assert_trees(np.testing.assert_allclose, turns.state, side.state, rtol=1e-5, atol=1e-5)
    exact(jax.random.key_data(turns.key), jax.random.key_data(side.key))
    assert turns.alive.all()
    assert turns.step == side.step == 2 * CHUNK
    for now, then in zip(turns_metrics, side_metrics, strict=True):
        assert now.keys() == then.keys()
        for key, value in then.items():
            np.testing.assert_allclose(now[key], value, rtol=1e-3, atol=1e-4, err_msg=key)

    # And on batches from the host, each member its own.
    one, host = in_turn(name, monkeypatch), population.init(agent(name), members, stacked)
    columns = np.array([m.column for m in members], np.int32)
    keys = [population.sample_keys(host._replace(step=host.step + chunk * CHUNK), CHUNK) for chunk in range(2)]
    for batch in batches(one.sample, data.with_task(columns), keys):
        host, _ = population.advance_on(one, host, stacked, batch)
    assert_trees(np.testing.assert_allclose, host.state, side.state, rtol=1e-4, atol=1e-5)


class Carried(NamedTuple):
    """A state with something beside its parameters, as MOPO's ring is."""

    params: jax.ShapeDtypeStruct
    ring: jax.ShapeDtypeStruct


def test_only_large_networks_take_turns_and_only_on_a_cpu(monkeypatch):
    shape = lambda *size: jax.ShapeDtypeStruct(size, jnp.float32)  # noqa: E731
    large, small = shape(2, population.LARGE // 10, 10), shape(20, population.LARGE // 10)
    assert population._one_by_one(Carried(large, small))
    assert not population._one_by_one(Carried(small, large))
    assert population._one_by_one({"weights": large})  # an agent of one's own need not call them `params`
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert not population._one_by_one(Carried(large, large))


def test_two_steps_of_one_agent_on_a_gpu_are_one_pass(monkeypatch):
    """A chunk of five too, and it is the same training."""
    data, (first, second) = random_data(2), population.grid(TASKS, [0], {})
    usual, metrics = train(agent("rebrac-dagger"), [second], HYPER, data, CHUNK, CHUNK)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    one = agent("rebrac-dagger")
    one = one._replace(update=lambda *args: agent("rebrac-dagger").update(*args))  # compiled for itself
    assert (passes(one, [second], data), passes(one, [first, second], data)) == ([2], [1])
    got, got_metrics = train(one, [second], HYPER, data, CHUNK, CHUNK)
    assert_trees(np.testing.assert_allclose, got.state, usual.state, rtol=1e-5, atol=1e-5)
    assert got.step == CHUNK
    for name, value in metrics[0].items():
        np.testing.assert_allclose(got_metrics[0][name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("uhm", "bfloat16"), ("iql", "float32"), pytest.param("mopo", "bfloat16", marks=pytest.mark.slow)],
)
def test_many_agents_on_a_gpu_draw_ahead_and_pass_weights_on_in_halves(name, dtype, monkeypatch):
    """It is the same training. MOPO has a state of its own, which stays whole, and in float32 there are no halves."""
    data, members = random_data(2), population.grid(TASKS, [0], {})
    kind = family(name)
    mine = kind.make(kind.Config(hidden=(16,), batch_size=24, compute_dtype=dtype), spec_of(random_data(), 4))
    hypers = family(name).Hyper() if name != "uhm" else HYPER
    usual, metrics = train(mine, members, hypers, data, 2 * CHUNK, CHUNK)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(kernels, "MANY", 2)
    monkeypatch.setattr(descent, "HALVED", (16, 1))
    again = mine._replace(update=lambda *args: mine.update(*args))  # compiled for itself
    (scan,) = scans(again, members, data, hypers)
    carried = [variable.aval for variable in scan["jaxpr"].jaxpr.outvars]
    rows = 24 + getattr(kind.Config(), "rollouts", 0)
    assert any(aval.shape[:2] == (2, rows) for aval in carried)  # the next batch
    halves = [aval.shape for aval in carried if aval.dtype == jnp.int16]
    assert halves == ([(2, 2, 16, 1), (2, 16, 1), (2, 2, 16, 1)] if name == "uhm" else [])  # critics, reward, slow ones
    got, got_metrics = train(again, members, hypers, data, 2 * CHUNK, CHUNK)
    assert_trees(np.testing.assert_allclose, got.state, usual.state, rtol=1e-5, atol=1e-5)
    for now, then in zip(got_metrics, metrics, strict=True):
        for key, value in then.items():
            np.testing.assert_allclose(now[key], value, rtol=1e-4, atol=1e-5, err_msg=key)


@pytest.mark.parametrize("name", ["dtd", "rebrac-dagger"])
def test_data_on_the_host_train_the_same_agents(name):
    data, members = random_data(2), population.grid(TASKS, [0], {})
    stacked = population.stack_hyper(HYPER, members)
    device, metrics = train(agent(name), members, HYPER, data, 2 * CHUNK, CHUNK)
    host = population.init(agent(name), members, stacked)
    for chunk in range(2):
        keys = population.sample_keys(host, CHUNK)
        assert len(np.unique(jax.random.key_data(keys).reshape(-1, 2), axis=0)) == 2 * CHUNK
        (batch,) = batches(agent(name).sample, data.with_task(np.arange(2, dtype=np.int32)), [keys])
        host, host_metrics = population.advance_on(agent(name), host, stacked, batch)
        for key, value in metrics[chunk].items():
            np.testing.assert_allclose(host_metrics[key], value, rtol=1e-5, atol=1e-6)
    assert_trees(np.testing.assert_allclose, host.state, device.state, rtol=1e-4, atol=1e-5)
    exact(jax.random.key_data(host.key), jax.random.key_data(device.key))
    assert host.step == device.step == 2 * CHUNK


def test_chunks_do_not_matter_and_metrics_are_their_means():
    data, members = random_data(2), population.grid(TASKS, [0], {})
    one, single = train(agent("rebrac-dagger"), members, HYPER, data, CHUNK, 1)
    whole, (means,) = train(agent("rebrac-dagger"), members, HYPER, data, CHUNK, CHUNK)
    assert_trees(np.testing.assert_allclose, one.state, whole.state, rtol=1e-4, atol=1e-5)
    for name, value in means.items():
        assert value.shape == (2,)
        np.testing.assert_allclose(value, np.mean([step[name] for step in single], axis=0), rtol=1e-4, atol=1e-5)
    assert not np.allclose(single[0]["critic_loss"], single[1]["critic_loss"])


def test_what_an_agent_may_log():
    """Flags are shares of the steps; nothing at all will do; and what cannot be logged is named."""
    data, members = random_data(2), population.grid(TASKS, [0], {})
    usual = agent("rebrac-dagger")

    def logging(**metrics):
        def update(state, hyper, batch, key):
            return usual.update(state, hyper, batch, key)[0], metrics

        return usual._replace(update=update)

    _, (means,) = train(logging(sure=jnp.array(True)), members, HYPER, data, CHUNK, CHUNK)
    assert means["sure"].tolist() == [1.0, 1.0]
    state, (means,) = train(logging(), members, HYPER, data, CHUNK, CHUNK)
    assert means == {} and state.alive.all()
    for name, value, message in (
        ("step", 1.0, "'step', which every"),
        ("wide", jnp.ones(3), r"'wide' has shape \(3,\)"),
    ):
        with pytest.raises(UhmError, match=message):
            train(logging(**{name: value}), members, HYPER, data, CHUNK, CHUNK)


# --------------------------------------------------------------------------------------------------------- divergence


@pytest.mark.parametrize("turns", [False, True], ids=["side by side", "in turn"])
def test_a_gradient_that_is_nan_at_the_end_of_a_chunk_is_noticed(turns, monkeypatch):
    """The loss is that of the parameters before the step, and finite; those after it are not."""

    def update(state, hyper, batch, key):
        broken = (state["step"] == CHUNK - 1) & (hyper.alpha > 0.5)
        new = {"w": jnp.where(broken, jnp.nan, state["w"] + 1), "step": state["step"] + 1}
        return new, {"critic_loss": state["w"].sum()}

    if turns:
        monkeypatch.setattr(population, "LARGE", 1)
    made = agent("rebrac-dagger")
    made = made._replace(init=lambda key, hyper: {"w": jnp.zeros(3), "step": jnp.zeros((), jnp.int32)}, update=update)
    members = population.grid(TASKS[:1], [0], {"alpha": [0.1, 1.0]})
    pop, _ = train(made, members, HYPER, random_data(2), CHUNK, CHUNK)
    exact(pop.alive, [True, False])
    exact(pop.state["w"], [[CHUNK] * 3, [0] * 3])


@pytest.mark.parametrize("turns", [False, True], ids=["side by side", "in turn"])
def test_a_member_that_meets_nan_is_frozen_and_the_others_do_not_notice(turns, monkeypatch):
    data, members = random_data(2), population.grid(TASKS, [0], {})
    row = int(data.starts[7])
    rewards = np.array(data.rewards)
    rewards[1, row] = np.nan
    poisoned = eqx.tree_at(lambda d: d.rewards, data, rewards)
    small = {"batch_size": 4}  # small batches meet the row late
    rebrac = in_turn("rebrac-dagger", monkeypatch, **small) if turns else agent("rebrac-dagger", **small)
    pop, history = train(rebrac, members, HYPER, poisoned, 4 * CHUNK, 2)
    exact(pop.alive, [True, False])
    met = next(i for i, metrics in enumerate(history) if np.isnan(metrics["critic_loss"][1]))
    assert 0 < met < len(history) - 1  # it lived for a while, and was dead for a while

    # The survivor is bitwise what it is beside a healthy member; the dead one is what that was when the chunk began in
    # which it met the row.
    healthy, _ = train(rebrac, members, HYPER, data, 4 * CHUNK, 2)
    assert healthy.alive.all()
    assert_trees(exact, member(pop.state, 0), member(healthy.state, 0))
    before, _ = train(rebrac, members, HYPER, data, 2 * met, 2)
    assert_trees(exact, member(pop.state, 1), member(before.state, 1))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(pop.state))


def test_a_member_that_explodes_is_frozen_for_good():
    data = random_data(2)
    members = population.grid(TASKS[:1], [0], {"learning_rate": [1e-3, 1e30]})
    pop, history = train(agent("rebrac-dagger"), members, HYPER, data, 3 * CHUNK, CHUNK)
    exact(pop.alive, [True, False])
    exact(pop.state.step, [3 * CHUNK, 0])  # it went back to where the chunk began
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(pop.state))
    assert np.isfinite(history[-1]["critic_loss"][0])
    # A loss that is finite but of no use counts as diverged too; a lost metric does whatever its name is.
    metrics = {"critic_loss": jnp.array([1.0, 1e13, 1.0]), "other": jnp.array([1.0, 1.0, jnp.nan])}
    exact(population.healthy(metrics), [True, False, False])
    exact(population.healthy({"other": metrics["other"]}), [True, True, False])


# ------------------------------------------------------------------------------------------------------------- acting


def test_each_member_acts_with_its_own_actor():
    members = population.grid(TASKS, [0], {})
    rebrac = agent("rebrac-dagger")
    pop = population.init(rebrac, members, population.stack_hyper(HYPER, members))
    observations = jax.random.normal(jax.random.key(0), (2, 5, S))
    actions = population.act(rebrac, pop.state, observations, jax.random.key(1))
    assert actions.shape == (2, 5, A)
    assert np.abs(actions).max() <= 1
    exact(actions, population.act(rebrac, pop.state, observations, jax.random.key(2)))
    for i in range(2):
        alone = rebrac.act(member(pop.state, i), observations[i], jax.random.key(0))
        np.testing.assert_allclose(actions[i], alone, rtol=1e-5, atol=1e-6)
    swapped = population.act(rebrac, pop.state, observations[::-1], jax.random.key(1))
    assert np.abs(swapped[0] - actions[1]).max() > 1e-4
