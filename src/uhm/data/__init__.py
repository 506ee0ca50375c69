"""Data: one `load` for OGBench's files, generated data and a user's own, and samplers that run on the device.

Names are imported on first use, so that workers which only simulate never load JAX.
"""

import importlib
from typing import Any

_HOME = {
    "Dataset": "dataset",
    "make_dataset": "dataset",
    "load": "source",
    "Sampler": "sampling",
    "batches": "sampling",
    "chunks": "sampling",
    "transitions": "sampling",
    "windows": "sampling",
}
__all__ = ["Dataset", "Sampler", "batches", "chunks", "load", "make_dataset", "transitions", "windows"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(f"uhm.data.{_HOME[name]}"), name)
    raise AttributeError(f"module 'uhm.data' has no attribute '{name}'")
