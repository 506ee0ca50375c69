"""A file with a policy that a robot might walk by."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np


def write_expert(path: Path, sizes: tuple[int, ...] = (29, 6, 8), **changes: Any) -> Path:
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {}
    for k, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        arrays |= {f"w{k}": rng.normal(size=(inputs, outputs)), f"b{k}": rng.normal(size=outputs)}
    np.savez(path, **{key: value for key, value in (arrays | changes).items() if value is not None})
    return path
