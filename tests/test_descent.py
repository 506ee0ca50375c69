"""One step of Adam by hand, and weights that are rounded once a step."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Var

from toys import HYPER, agent, random_data
from uhm import nets, numerics
from uhm.agents import FAMILIES, descent
from uhm.agents.descent import State, descend, halved, start, whole, working
from uhm.bench.subject import Setting, make
from uhm.data.sampling import gather_transitions
from uhm.nets import MLP


class Two(NamedTuple):
    net: Any
    other: Any


def test_a_step_by_hand():
    """Adam's first step is the learning rate along the sign of the gradient, whatever its size."""
    state = start(Two(jnp.array([1.0, -2.0]), jnp.array(5.0)), slow=["net"])
    loss = lambda p: ((jnp.array([3.0, -0.01]) * p.net).sum() - p.other, {"first": p.net[0]})  # noqa: E731
    after, metrics = descend(state, loss, 0.1, 0.5)
    np.testing.assert_allclose(after.params.net, [0.9, -1.9], rtol=1e-5)
    np.testing.assert_allclose(after.params.other, 5.1, rtol=1e-5)
    np.testing.assert_allclose(after.targets.net, [0.95, -1.95], rtol=1e-5)
    assert after.targets.other is None
    assert (metrics["first"], after.step, after.rounded) == (1.0, 1, Two([], []))
    # The second, with the opposite gradient: its moments by the formula.
    after, _ = descend(after, lambda p: (-loss(p)[0], {}), 0.1, 0.5)
    mean, square = (0.9 * 0.1 - 0.1) * 3 / (1 - 0.9**2), 0.001 * (0.999 + 1) * 9 / (1 - 0.999**2)
    np.testing.assert_allclose(after.params.net[0], 0.9 - 0.1 * mean / square**0.5, rtol=1e-5)


def test_slow_copies_are_of_networks_that_there_are():
    with pytest.raises(AssertionError, match="nest"):
        start(Two(jnp.zeros(1), jnp.zeros(1)), slow=["nest"])


def test_networks_move_apart_from_one_another():
    """Between what two networks share and what comes of either there is a barrier, and between that and the state."""
    state = start(Two(jnp.ones(2), jnp.ones(3)), slow=["net"])
    loss = lambda p: (p.net.sum() + p.other.sum(), {})  # noqa: E731
    traced = jax.make_jaxpr(lambda state, rate: descend(state, loss, rate, rate)[0])(state, 0.1)
    made_by = {variable: equation for equation in traced.eqns for variable in equation.outvars}
    shared, readers = {traced.jaxpr.invars[-1]}, []  # the rate, and the pairs that are made of it
    for equation in traced.eqns:
        if not shared.isdisjoint(variable for variable in equation.invars if isinstance(variable, Var)):
            if equation.primitive.name in ("stack", "broadcast_in_dim", "concatenate"):
                shared |= {*equation.outvars}
            else:
                readers.append(equation.primitive.name)
    assert readers == ["optimization_barrier"] * 2
    moved = [made_by[variable] for variable in traced.jaxpr.outvars if variable in made_by]
    barriers = {id(one) for one in moved if one.primitive.name == "optimization_barrier"}
    assert len(barriers) == 2
    # Three arrays of each network and a slow copy; the two counters are everybody's.
    assert sum(one.primitive.name == "optimization_barrier" for one in moved) == 7


def test_losses_see_rounded_weights_and_adam_does_not():
    mlp = jax.jit(lambda key: MLP(2, 1, key, (4,), compute_dtype="bfloat16"))(jax.random.key(0))
    plain = jax.jit(lambda key: MLP(2, 1, key, (4,)))(jax.random.key(0))
    state = start(Two(mlp, plain), slow=["net"])
    params, targets = working(state)
    weights = [layer.weight for layer in mlp.layers]
    for seen in (params.net, targets.net):
        assert [layer.weight.dtype for layer in seen.layers] == [jnp.bfloat16] * 2
        assert all(np.array_equal(a.weight, b.astype(jnp.bfloat16)) for a, b in zip(seen.layers, weights, strict=True))
        assert [layer.bias.dtype for layer in seen.layers] == [jnp.float32] * 2
    assert {layer.weight.dtype for layer in params.other.layers} == {np.dtype(np.float32)}  # it rounds nothing

    x = jnp.array([[1.0, -1.0], [0.5, 2.0]])
    loss = lambda p: (jnp.square(p.net(x) + p.other(x)).sum(), {})  # noqa: E731
    after, _ = descend(state, loss, 1e-4, 0.5)
    assert {leaf.dtype for leaf in jax.tree.leaves(after[:3])} == {np.dtype(np.float32), np.dtype(np.int32)}
    # The gradient of a weight was rounded before Adam, and nothing else.
    adam: Any = after.adam
    of_weight = np.asarray(adam.mu.net.layers[0].weight) / np.float32(0.1)
    np.testing.assert_allclose(of_weight, of_weight.astype(jnp.bfloat16).astype(np.float32), rtol=1e-6)
    of_bias = np.asarray(adam.mu.net.layers[0].bias) / np.float32(0.1)
    assert np.abs(of_bias - of_bias.astype(jnp.bfloat16).astype(np.float32)).max() > 1e-5 * np.abs(of_bias).max()
    # So small a step is lost in bfloat16, but not here.
    moved = np.abs(after.params.net.layers[0].weight - weights[0])
    np.testing.assert_allclose(moved[moved > 0], 1e-4, rtol=0.01)
    assert (moved > 0).any()
    for kept, weight in zip(after.rounded.net, nets.rounded((after.params.net, after.targets.net)), strict=True):
        np.testing.assert_array_equal(kept, weight)


def test_halves_are_the_whole():
    """Every kind of float32 by its bits; the rounded one is the nearest, or one of two."""
    rng = np.random.default_rng(0)
    bits = np.concatenate([rng.integers(-(2**31), 2**31, 10_000), [0, -(2**31), 0x3F808000, 0x3F818000, 0x00000001]])
    x = bits.astype(np.int32).view(np.float32)
    x = x[~np.isnan(x)]
    rounded, rest = numerics.halves(jnp.asarray(x))
    assert (rounded.dtype, rest.dtype) == (jnp.bfloat16, jnp.int16)
    np.testing.assert_array_equal(np.asarray(numerics.whole(rounded, rest)).view(np.int32), x.view(np.int32))
    nearest = x.astype(jnp.bfloat16)
    halfway = (x.view(np.int32) & 0xFFFF) == 0x8000
    np.testing.assert_array_equal(np.asarray(rounded)[~halfway], nearest[~halfway])
    assert halfway.sum() >= 2
    # 1 + 2^-8 is between 1 and 1 + 2^-7.
    np.testing.assert_array_equal(
        np.asarray(numerics.halves(jnp.float32([1, -1]) * 1.00390625)[0]), [1.0078125, -1.0078125]
    )


def test_weights_in_halves_learn_the_same(monkeypatch: pytest.MonkeyPatch):
    """Two steps; what does not round its weights, what has no slow copy, and both ends stay as they are."""
    monkeypatch.setattr(descent, "HALVED", (4, 4))
    rounding = jax.jit(lambda key: MLP(2, 1, key, (4, 4), compute_dtype="bfloat16"))(jax.random.key(0))
    plain = jax.jit(lambda key: MLP(2, 1, key, (4, 4)))(jax.random.key(1))
    x = jnp.array([[1.0, -1.0], [0.5, 2.0]])
    loss = lambda p: (jnp.square(p.net(x) + p.other(x)).sum(), {})  # noqa: E731
    for params in (Two(rounding, plain), Two(plain, rounding), Two(rounding, rounding)):
        state = start(jax.tree.map(jnp.copy, params), slow=["net"])
        small = halved(state)
        networks = len(nets.weights(params)) // 3
        assert [w.dtype for w in nets.weights(small.params)] == [jnp.float32, jnp.int16, jnp.float32] * networks
        assert len(jax.tree.leaves(small)) == len(jax.tree.leaves(state))
        assert_same(whole(small), state)
        for _ in range(2):
            state, small = (jax.jit(lambda state: descend(state, loss, 0.1, 0.5)[0])(each) for each in (state, small))
        # XLA may add and multiply in one instruction here and in two there.
        for got, wanted in zip(jax.tree.leaves(whole(small)), jax.tree.leaves(state), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-6 if got.dtype == np.float32 else 2**-8, atol=1e-8)
        assert not np.array_equal(state.params.net.layers[1].weight, params.net.layers[1].weight)


def assert_same(a: Any, b: Any) -> None:
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        np.testing.assert_array_equal(x, y)


def test_an_agent_learns_as_if_every_product_rounded_its_weights():
    """The first losses are equal to the last bit; only gradients of weights are rounded more."""
    mine = agent("uhm", compute_dtype="bfloat16")
    data: Any = random_data().to_device()
    state = jax.jit(mine.init)(jax.random.key(0), HYPER)
    batch, key = gather_transitions(data, data.starts), jax.random.key(1)
    after, metrics = jax.jit(mine.update)(state, HYPER, batch, key)
    unrounded = state._replace(rounded=type(state.rounded)(*_weights(state)))
    wanted, in_products = jax.jit(mine.update)(unrounded, HYPER, batch, key)
    assert {name: float(value) for name, value in metrics.items()} == {n: float(v) for n, v in in_products.items()}
    # A tenth of the gradient, after one step.
    pairs = list(zip(jax.tree.leaves(after.adam.mu), jax.tree.leaves(wanted.adam.mu), strict=True))
    assert any(not np.array_equal(a, b) for a, b in pairs)
    for a, b in pairs:
        np.testing.assert_allclose(a, b, rtol=2**-8, atol=1e-6)


def _weights(state: Any) -> list[list[jax.Array]]:
    """Those of each network and its slow copy."""
    return [
        [layer.weight for node in jax.tree.leaves(both, is_leaf=_is_mlp) if _is_mlp(node) for layer in node.layers]
        for both in zip(state.params, state.targets, strict=True)
    ]


def _is_mlp(node: Any) -> bool:
    return isinstance(node, MLP)


@pytest.mark.parametrize("name", FAMILIES)
def test_no_agent_rounds_a_weight_again(name: str):
    """Whatever reads a weight that was rounded before says NaN here."""
    made = make(name, Setting((8,), batch_size=4, observation=3, action=2, k_max=2, compute_dtype="bfloat16"))
    state = jax.jit(made.agent.init)(jax.random.key(0), made.hyper)
    weights = _weights(state)
    assert [len(rounded) for rounded in state.rounded] == [len(mine) for mine in weights]
    nothing = jax.tree.map(lambda weight: jnp.full_like(weight, jnp.nan), weights)
    learner = State(state.params, state.targets, state.adam, state.step, type(state.rounded)(*nothing))
    params, targets = working(learner)
    poisoned = state._replace(params=params, targets=targets)
    batch = made.agent.sample(made.data.to_device().with_task(0), jax.random.key(1))
    after, metrics = jax.jit(made.agent.update)(poisoned, made.hyper, batch, jax.random.key(2))
    assert all(np.isfinite(value) for value in metrics.values()), metrics
    assert all(np.isnan(np.float32(weight)).all() for weight in jax.tree.leaves(after.rounded))
