"""A policy as a file that runs wherever JAX does, without this package, its checkpoints or the run.

`policy.bin` holds the compiled-for-anything form (StableHLO, by `jax.export`) of one member's policy with its weights:

```python
from jax import export

policy = export.deserialize(open("policy.bin", "rb").read())
actions = policy.call(observations, seed)  # float32 [any number of rows, S], uint32 -> float32 [rows, A]
```

`policy.json` beside it says where it comes from. JAX promises to read such files for six months of its own versions.
"""

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from uhm import kernels
from uhm.errors import UhmError, writing
from uhm.runs import params_sha256
from uhm.runs.environment import versions
from uhm.runs.files import write_atomically, write_json
from uhm.train.choice import choose
from uhm.train.restore import Restored, Step, load_run

PLATFORMS = ("cpu", "cuda")


def export(
    run: Path | str,
    out: Path | str,
    *,
    task: str | None = None,
    seed: int | None = None,
    member: int | None = None,
    step: Step = "last",
) -> tuple[dict[str, Any], list[Path]]:
    """Write `policy.bin` and `policy.json` of one member into the folder `out`; what the latter holds, and both paths.

    The member is the first one of `task` (default: the run's first) and `seed`, or that at the place `member`.
    """
    restored, out = load_run(run, step), Path(out).expanduser()
    index = choose(restored.plan, task, seed, member)
    if not restored.state.alive[index]:
        raise UhmError(f"member {index} diverged and has no policy worth keeping: choose another one with --member.")
    state = jax.tree.map(lambda x: x[index], restored.state.state)

    def policy(observations: Any, seed: Any) -> Any:
        return restored.agent.act(state, observations, jax.random.key(seed))

    size = restored.spec.observation_size
    data, facts = _serialised(policy, size), _facts(restored, index, state, _draws(policy, size))
    paths = [out / "policy.bin", out / "policy.json"]
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    write_atomically(paths[0], data)
    write_json(paths[1], facts)
    return facts, paths


def _serialised(policy: Callable[..., Any], size: int) -> bytes:
    try:
        importlib.import_module("flatbuffers")
    except ImportError:
        raise UhmError("export needs the package flatbuffers: pip install flatbuffers.") from None
    rows = jax.export.symbolic_shape("rows")[0]
    inputs = jax.ShapeDtypeStruct((rows, size), np.float32), jax.ShapeDtypeStruct((), np.uint32)
    with kernels.left_out():  # the file must run anywhere
        exported = jax.export.export(jax.jit(policy), platforms=PLATFORMS)(*inputs)
    return bytes(exported.serialize())


def _draws(policy: Callable[..., Any], size: int) -> bool:
    """Whether actions depend on the seed."""
    rows = jax.random.normal(jax.random.key(0), (16, size))
    return bool((policy(rows, np.uint32(0)) != policy(rows, np.uint32(1))).any())


def _facts(restored: Restored, index: int, state: Any, draws: bool) -> dict[str, Any]:
    plan, member = restored.plan, restored.plan.members()[index]
    return {
        "agent": plan.agent,
        "environment": plan.environment.title,
        "task": member.task if not plan.environment.own else plan.environment.title,
        "seed": member.seed,
        "member": index,
        "hyper": plan.hyper_of(member),
        "step": int(restored.state.step),
        "observation_size": restored.spec.observation_size,
        "action_size": restored.spec.action_size,
        "actions": "within [-1, 1]",
        "draws": draws,
        "params_sha256": params_sha256(getattr(state, "params", state)),
        "platforms": list(PLATFORMS),
        "versions": versions(),
    }
