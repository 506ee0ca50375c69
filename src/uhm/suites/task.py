"""What a Ray task does on its node. Not in `cluster.py`, so that a node loads no JAX before its device is chosen."""

import contextlib
import os
from pathlib import Path
from typing import Any

from uhm.suites.lease import log_of
from uhm.suites.worker import Job, share, usable_cores, work


def task(job: dict[str, Any], variables: dict[str, str]) -> tuple[str, str]:
    """One population on this node; its process serves no other. Only the death of the process is for Ray to retry."""
    import ray

    os.environ.update(variables)
    context = ray.get_runtime_context()
    node = next((n for n in ray.nodes() if n["NodeID"] == context.get_node_id()), {})
    where = f"{node.get('NodeManagerHostname', '?')}"
    gpus = context.get_accelerator_ids().get("GPU", [])
    cores: tuple[int, ...] = ()
    if gpus:
        # One worker per GPU: each takes its part of the node's cores, or evaluations would crowd each other out.
        count = max(1, int(node.get("Resources", {}).get("GPU", 1)))
        index = int(gpus[0]) if str(gpus[0]).isdecimal() else 0
        cores = share(usable_cores(), index % count, count)
        where = f"{where} gpu {gpus[0]}"
    log = log_of(Path(job["directory"]))
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file, contextlib.redirect_stdout(file), contextlib.redirect_stderr(file):
        outcome = work(Job(**{**job, "cores": cores, "where": where}))
    return outcome.state, outcome.reason
