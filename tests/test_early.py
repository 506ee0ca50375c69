"""A way back that is taken before errors are known leads to the gradient that JAX finds."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Var

from toys import HYPER, agent, assert_trees, random_data, train
from uhm import early, kernels, nets, population
from uhm.nets import MLP, Critic

WIDTH, ROWS = 8, 5


def network(dtype: str | None = None, hidden: tuple[int, ...] = (WIDTH, WIDTH, WIDTH)) -> MLP:
    """With norms that do something."""
    mlp = jax.jit(lambda key: MLP(3, 1, key, hidden, layer_norm=True, compute_dtype=dtype))(jax.random.key(0))
    leaves, tree = jax.tree.flatten(mlp)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    return jax.tree.unflatten(
        tree, [x + 0.3 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)]
    )


def given() -> tuple[jax.Array, jax.Array]:
    key_x, key_y = jax.random.split(jax.random.key(2))
    return jax.random.normal(key_x, (ROWS, 3)), jax.random.normal(key_y, (ROWS, 1))


def loss(apply: Any, mlp: MLP, x: jax.Array, y: jax.Array) -> jax.Array:
    return jnp.square(apply(mlp, x) - y).mean()


def learned(apply: Any, mlp: MLP) -> Any:
    """The loss, and its gradient by all parameters and by x."""
    return jax.value_and_grad(lambda mlp, x: loss(apply, mlp, x, given()[1]), argnums=(0, 1))(mlp, given()[0])


@pytest.mark.parametrize("hidden", [(WIDTH,), (WIDTH, 6, 4)])
def test_it_is_the_gradient(hidden: tuple[int, ...]):
    mlp = network(hidden=hidden)
    got, wanted = learned(early.values, mlp), learned(MLP.__call__, mlp)
    for mine, true in zip(jax.tree.leaves(got), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(mine, true, rtol=1e-4, atol=1e-5 * np.abs(true).max())
    assert all(np.abs(slope).max() > 1e-3 for slope in jax.tree.leaves(wanted))


@pytest.mark.parametrize("rounded", [False, True])
def test_in_bfloat16_it_is_as_near_to_the_truth_and_slopes_are_rounded_as_weights_are(rounded: bool):
    exact, mlp = network(), network("bfloat16")
    mlp = nets.with_weights(mlp, nets.rounded(mlp)) if rounded else mlp
    got, plain = (learned(how, mlp) for how in (early.values, MLP.__call__))
    assert [leaf.dtype for leaf in jax.tree.leaves(got)] == [leaf.dtype for leaf in jax.tree.leaves(plain)]
    truth, far = learned(MLP.__call__, exact), []
    for some in (got, plain):
        pairs = zip(jax.tree.leaves(some), jax.tree.leaves(truth), strict=True)
        far.append(np.array([np.abs(a - b).max() / np.abs(b).max() for a, b in pairs]))
    assert far[0].mean() < 1.5 * far[1].mean()
    assert far[0].max() < 2**-4


def test_only_products_that_make_slopes_of_weights_wait_for_the_target():
    """And none of them for another; in JAX's own way back each layer waits for the one after it."""
    mlp = network()

    def waiting(apply: Any) -> list[int]:
        """Of each product that the target leads to, how many such products there are on the way, itself included."""
        traced = jax.make_jaxpr(lambda y: jax.grad(lambda mlp: loss(apply, mlp, given()[0], y))(mlp))(given()[1])
        return [depth for depth in depths(traced.jaxpr, [0])[1] if depth]

    hidden = len(mlp.norms)
    assert waiting(early.values) == [1] * hidden
    # The last layer and each hidden one: the slope of its weight, and but for the first that of what it is given.
    assert sorted(waiting(MLP.__call__)) == sorted(
        [1, 1, *(d for i in range(2, hidden + 1) for d in (i, i)), hidden + 1]
    )


def depths(jaxpr: Any, inputs: list[int | None]) -> tuple[list[int | None], list[int | None]]:
    """Of outputs and of all products: how many products lead there from an input that counts; None where none does."""
    depth: dict[Any, int | None] = dict(zip(jaxpr.invars, inputs, strict=True))
    products: list[int | None] = []
    for equation in jaxpr.eqns:
        read = [depth.get(variable) if isinstance(variable, Var) else None for variable in equation.invars]
        inner = [getattr(value, "jaxpr", value) for value in equation.params.values() if hasattr(value, "eqns")]
        if inner:
            made, more = depths(inner[0], read)
            products += more
        else:
            known = [one for one in read if one is not None]
            is_product = equation.primitive.name == "dot_general"
            here = max(known) + is_product if known else None
            made = [here] * len(equation.outvars)
            products += [here] if is_product else []
        depth.update(zip(equation.outvars, made, strict=True))
    return [depth.get(variable) if isinstance(variable, Var) else None for variable in jaxpr.outvars], products


def test_an_ensemble_of_critics():
    critic = jax.jit(lambda key: Critic(2, 1, key, (WIDTH, WIDTH), members=2))(jax.random.key(0))
    x, y = given()

    def of(apply: Any) -> Any:
        return jax.value_and_grad(lambda critic: jnp.square(critic(x[:, :2], x[:, 2:], apply) - y[:, 0]).mean())(critic)

    for mine, true in zip(jax.tree.leaves(of(early.values)), jax.tree.leaves(of(MLP.__call__)), strict=True):
        np.testing.assert_allclose(mine, true, rtol=1e-4, atol=1e-6)


def test_it_is_for_one_agent_on_a_gpu_in_bfloat16(monkeypatch: pytest.MonkeyPatch):
    one = network("bfloat16")
    assert not early.pays(one)
    monkeypatch.setattr(kernels, "chosen", lambda: True)
    assert early.pays(one)
    assert not early.pays(network())
    with kernels.for_agents(5):
        assert not early.pays(one)


@pytest.mark.parametrize(("name", "calls"), [("uhm", 1), ("rebrac-dagger", 0)])
def test_an_agent_learns_the_same(name: str, calls: int, monkeypatch: pytest.MonkeyPatch):
    """Only one whose target takes a model has it."""
    data, members = random_data(), [population.Member("t0", 0, seed=0)]
    usual, _ = train(agent(name), members, HYPER, data, 3, 3)
    monkeypatch.setattr(early, "pays", lambda _: True)
    seen, values = [], early.values
    monkeypatch.setattr(early, "values", lambda *of: seen.append(of) or values(*of))
    again = agent(name)._replace(update=lambda *of: agent(name).update(*of))  # compiled for itself
    got, _ = train(again, members, HYPER, data, 3, 3)
    assert len(seen) == calls
    assert_trees(np.testing.assert_allclose, got.state, usual.state, rtol=1e-4, atol=1e-5)
