"""The policy that a robot walks by, from a file: a plain multi-layer perceptron.

The file is an npz with float arrays `w0, b0, w1, b1, ...`: layer k computes `x @ wk + bk`, so `wk` has shape
(inputs, outputs) and `bk` (outputs,). Between layers stands the function that an optional string `activation` names
(relu, the default, or gelu or tanh); the last layer is followed by tanh. For an ant the input is its observation
without x and y, followed by the unit vector of the direction to walk in (29 numbers), the output its 8 actions.
"""

import hashlib
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from uhm.errors import UhmError

# The one that comes with the package. The JSON file beside it says how it was trained and how well it walks
# (`benchmarks/walker.py`).
ANT = Path(__file__).parent / "experts" / "ant.npz"

_ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "tanh": np.tanh,
}


def digest(path: Path | None) -> str | None:
    """What identifies a policy in the notes of data sets; None for none."""
    return None if path is None else hashlib.sha256(path.read_bytes()).hexdigest()


def load(path: Path, inputs: int, outputs: int) -> Callable[[np.ndarray], np.ndarray]:
    """The policy in `path`, checked to take `inputs` numbers and give `outputs`."""
    if not path.is_file():
        raise UhmError(f"no expert policy at {path}: give the npz file of its weights.")
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (TypeError, ValueError, OSError, zipfile.BadZipFile, EOFError) as error:  # TypeError: of an npy file
        raise UhmError(f"expert policy {path} is not an npz file of arrays ({error}).") from None
    activation = str(arrays.pop("activation", "relu"))
    if activation not in _ACTIVATIONS:
        raise UhmError(f"expert policy {path}: activation '{activation}' is not one of {', '.join(_ACTIVATIONS)}.")
    layers = _layers(path, arrays, inputs, outputs)
    between = _ACTIVATIONS[activation]

    def policy(x: np.ndarray) -> np.ndarray:
        x = x.astype(np.float32)
        for weight, bias in layers[:-1]:
            x = between(x @ weight + bias)
        weight, bias = layers[-1]
        return np.tanh(x @ weight + bias)

    return policy


def _layers(path: Path, arrays: dict[str, np.ndarray], inputs: int, outputs: int) -> list[tuple]:
    count = len(arrays) // 2
    expected = {f"{letter}{k}" for k in range(count) for letter in "wb"}
    if not count or set(arrays) != expected:
        raise UhmError(f"expert policy {path} must hold w0, b0, w1, b1, ...; it has {', '.join(sorted(arrays))}.")
    layers, size = [], inputs
    for k in range(count):
        weight, bias = arrays[f"w{k}"], arrays[f"b{k}"]
        wanted = outputs if k == count - 1 else weight.shape[-1] if weight.ndim else "any"
        if weight.shape != (size, wanted) or bias.shape != (wanted,):
            raise UhmError(
                f"expert policy {path}: w{k} and b{k} have shapes {weight.shape} and {bias.shape}, "
                f"expected ({size}, {wanted}) and ({wanted},)."
            )
        if not (weight.dtype.kind == bias.dtype.kind == "f" and np.isfinite(weight).all() and np.isfinite(bias).all()):
            raise UhmError(f"expert policy {path}: w{k} and b{k} must be finite floating-point numbers.")
        layers.append((weight.astype(np.float32), bias.astype(np.float32)))
        size = weight.shape[1]
    return layers
