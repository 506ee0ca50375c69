"""The run directory: what was asked, what ran it, what it measured, and the checkpoints to go on from.

    DIR/config.json       the resolved configuration, as the caller gave it
    DIR/environment.json  the format of the directory; versions, source revision, hardware, command of every session
    DIR/metrics.jsonl     one line per logged step
    DIR/episodes.jsonl    one line per evaluation episode
    DIR/checkpoints/STEP  complete checkpoints only
    DIR/summary.json      written when the run is finished
    DIR/lock              held by the one process that may write

Importing this loads neither JAX nor Orbax, so that commands which only read runs start at once.
"""

from typing import Any

from uhm.runs.run import FORMAT, Run
from uhm.runs.sinks import Sink, TensorBoard, WandB

__all__ = ["FORMAT", "Run", "Sink", "TensorBoard", "WandB", "params_sha256"]


def params_sha256(tree: Any) -> str:
    """A digest of the tree's paths, dtypes, shapes and bytes: the same bits have the same one on every device."""
    from uhm.runs.trees import digest, to_host

    return digest(*to_host(tree))
