"""Data: one `load` for OGBench's files, generated data and a user's own, and samplers that run on the device.

Names are imported on first use, so that workers which only simulate never load JAX.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uhm.data.dataset import Dataset, make_dataset
    from uhm.data.sampling import Sampler, batches, chunks, transitions, windows
    from uhm.data.source import load

__all__ = ["Dataset", "Sampler", "batches", "chunks", "load", "make_dataset", "transitions", "windows"]

_HOME = {"load": "source", "Dataset": "dataset", "make_dataset": "dataset"}


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module(f"uhm.data.{_HOME.get(name, 'sampling')}"), name)
    raise AttributeError(f"module 'uhm.data' has no attribute '{name}'")
