"""In what a run differs from the preset of its agent and environment, also a run of an earlier version."""

import functools
from typing import Any

from uhm import presets
from uhm.errors import UhmError
from uhm.tasks import Environment

Setting = tuple[tuple[str, Any], ...]  # what differs, sorted by name
PRECISION = "compute_dtype"
# How long training lasts is no setting of the method; too short is marked instead.
_NO_SETTING = {"steps"}
# Settings that are no more, and the value of them that the runs of now have.
_GONE = {"flow_output": "velocity", "flag_scale": 1.0}


def setting(config: dict[str, Any], hyper: dict[str, Any], environment: Environment) -> Setting:
    """In what a member differs from the preset of its agent and environment."""
    usual = _usual(config["agent"], environment)
    own = {**config.get("config", {}), **hyper}
    if not usual:  # an agent of one's own whose module is not at hand: `collect` keeps what its members differ in
        return tuple(sorted((name, _plain(value)) for name, value in own.items() if name not in _NO_SETTING))
    # Any other value that this version does not know, or the run's version did not, is the same for all.
    differs = {n: v for n, v in own.items() if n in usual and n not in _NO_SETTING and _plain(v) != usual[n]}
    differs |= {name: own[name] for name, value in _GONE.items() if own.get(name, value) != value}
    if "flag_std" in usual and "flow_steps" in own and "flag_std" not in own:
        differs["flag_std"] = "none"  # the network said the flag's velocity then
    differs |= {name: config[name] for name in ("dataset", "transitions") if config.get(name) is not None}
    if config.get("normalise", False) != environment.own:  # the default: only logs are scaled
        differs["normalise"] = not environment.own
    return tuple(sorted((name, _plain(value)) for name, value in differs.items()))


def known(agent: str, environment: Environment) -> bool:
    """Whether there is a preset to differ from."""
    return bool(_usual(agent, environment))


@functools.cache
def _usual(agent: str, environment: Environment) -> dict[str, Any]:
    """All values of the preset, or those of the paper's tables where this version cannot train the agent."""
    from uhm.train.plan import resolve

    try:
        plan = resolve(agent, environment.tasks[0])
        found = {**plan.config, **plan.hyper}
    except UhmError:
        rows = presets.preset(agent, environment) if agent in presets.AGENTS else {}
        found = {name: row.value for name, row in rows.items()}
    return {name: _plain(value) for name, value in found.items()}


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def shown(value: Any) -> str:
    """A value of a setting as people write it."""
    if isinstance(value, float):
        return f"{value:g}".replace("e-0", "e-")
    return "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
