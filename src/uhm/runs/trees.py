"""A pytree as a list of NumPy arrays with a record of each, and back onto the devices of a template.

Orbax then stores nothing but plain arrays: which classes the tree is made of is the template's business, so renaming
a class or moving a module does not orphan checkpoints, and nothing is ever unpickled.
"""

import hashlib
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from uhm.errors import UhmError

Record = dict[str, Any]  # path, dtype and shape of the stored array, and the generator where it holds PRNG keys


def to_host(tree: Any) -> tuple[list[np.ndarray], list[Record]]:
    """Copies of all leaves in host memory, which stay as they are whatever happens to the tree's buffers."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    records: list[Record] = [{"path": jax.tree_util.keystr(path), "key": _key_impl(leaf)} for path, leaf in leaves]
    data = [
        jax.random.key_data(leaf) if record["key"] else leaf for (_, leaf), record in zip(leaves, records, strict=True)
    ]
    # device_get starts all transfers before it waits for one; on the CPU it returns views of live buffers.
    arrays = [_copy(array, record["path"]) for array, record in zip(jax.device_get(data), records, strict=True)]
    for array, record in zip(arrays, records, strict=True):
        record |= {"dtype": array.dtype.name, "shape": list(array.shape)}
    return arrays, records


def digest(arrays: list[np.ndarray], records: list[Record]) -> str:
    """SHA-256 of everything that `to_host` returns."""
    sha = hashlib.sha256()
    for array, record in zip(arrays, records, strict=True):
        sha.update(json.dumps(record, sort_keys=True).encode() + b"\n")
        sha.update(array.reshape(-1).view(np.uint8).data)
    return sha.hexdigest()


def from_host(arrays: list[np.ndarray], records: list[Record], template: Any) -> Any:
    """The tree with the template's structure, on the template's devices. UhmError if the two differ in any leaf."""
    leaves, structure = jax.tree_util.tree_flatten_with_path(template)
    here = [jax.tree_util.keystr(path) for path, _ in leaves]
    there = [record["path"] for record in records]
    if missing := [path for path in here if path not in set(there)]:
        raise _misfit(f"{missing[0]} is not in it")
    if extra := [path for path in there if path not in set(here)]:
        raise _misfit(f"{extra[0]} is in it but not in the configuration")
    if here != there:
        raise _misfit("its leaves are in another order")
    values = [_onto(array, record, leaf) for array, record, (_, leaf) in zip(arrays, records, leaves, strict=True)]
    return jax.tree_util.tree_unflatten(structure, values)


def _key_impl(leaf: Any) -> str | None:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return str(jax.random.key_impl(leaf))
    return None


def _copy(leaf: Any, path: str) -> np.ndarray:
    array = np.asarray(leaf)
    if array.dtype.kind in "OSUMm":
        raise TypeError(f"leaf {path} is a {type(leaf).__name__}, which is no number and cannot be saved")
    return np.array(array, dtype=array.dtype.newbyteorder("="), order="C", copy=True)


def _onto(array: np.ndarray, record: Record, leaf: Any) -> Any:
    """`array` as the same kind of thing as `leaf`, and where `leaf` is."""
    value = jax.random.wrap_key_data(jnp.asarray(array), impl=record["key"]) if record["key"] else array
    wanted = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    if (value.dtype, value.shape) != (wanted.dtype, tuple(wanted.shape)):
        here, there = (f"{v.dtype}[{','.join(map(str, v.shape))}]" for v in (wanted, value))
        raise _misfit(f"{record['path']} is {there} in it and {here} in the configuration")
    if isinstance(leaf, np.ndarray):
        return array
    if isinstance(leaf, np.generic):
        return array[()]
    if not hasattr(leaf, "dtype"):
        return array.item()  # a Python number
    sharding = getattr(leaf, "sharding", None)  # also of a ShapeDtypeStruct
    # An array that JAX placed by default stays free to move, else it could not meet arrays on another device.
    placed = jax.device_put(value, sharding if getattr(leaf, "committed", True) else None)
    # Weakly typed arrays promote differently; writing into one is the public way to keep that.
    return leaf.at[...].set(placed) if getattr(leaf, "weak_type", False) and isinstance(leaf, jax.Array) else placed


def _misfit(why: str) -> UhmError:
    return UhmError(f"the checkpoint does not fit this configuration: {why}.")
