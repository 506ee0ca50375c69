"""Behaviour cloning: the actor learns to do what the data did. An agent is four pure functions."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from uhm import nets
from uhm.agents import Agent, Spec
from uhm.data import transitions


@dataclasses.dataclass(frozen=True)
class Config:  # changes the compiled program
    hidden: tuple[int, ...] = (64, 64)
    batch_size: int = 256


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Hyper:  # may differ from member to member
    learning_rate: Any = 1e-3


class State(NamedTuple):
    params: nets.Actor
    adam: optax.OptState


def make(config: Config, spec: Spec) -> Agent:
    adam = optax.scale_by_adam()

    def init(key, hyper):
        actor = nets.Actor(spec.observation_size, spec.action_size, key, config.hidden)
        return State(actor, adam.init(actor))

    def update(state, hyper, batch, key):
        def error(actor):
            return jnp.square(actor(batch.observations) - batch.actions).sum(-1).mean()

        loss, gradient = jax.value_and_grad(error)(state.params)
        moves, optimiser = adam.update(gradient, state.adam)
        params = jax.tree.map(lambda p, m: p - hyper.learning_rate * m, state.params, moves)
        return State(params, optimiser), {"bc_error": loss}

    def act(state, observations, key):
        return state.params(observations)

    return Agent(init, transitions(config.batch_size), update, act)
