"""`uhm export`: a member's policy as a file that needs JAX alone."""

import json
from pathlib import Path

from tyro.conf import Positional

from uhm.cli.flags import verb


@verb
class Export:
    """Write one member's policy as a file that runs wherever JAX does, without uhm and without the run."""

    run: Positional[Path]
    """Directory of the run."""
    task: str | None = None
    """Which task (default: the first of the run)."""
    seed: int | None = None
    """Which seed (default: the first of the run)."""
    member: int | None = None
    """Which member, by its place in the run's summary.json, where hyperparameters differ (default: the first one)."""
    step: str = "last"
    """Which checkpoint: last, best (by its evaluation in training), or a step that was kept."""
    out: Path | None = None
    """Folder to write policy.bin and policy.json into (default: RUN/export)."""
    json: bool = False
    """Print JSON for machines."""

    def __call__(self) -> int:
        from uhm.export import export
        from uhm.train.choice import as_step

        out = self.run / "export" if self.out is None else self.out
        which = {"task": self.task, "seed": self.seed, "member": self.member, "step": as_step(self.step)}
        facts, paths = export(self.run, out, **which)
        if self.json:
            print(json.dumps({**facts, "files": [str(path) for path in paths]}, indent=2))
            return 0
        sizes = f"{facts['observation_size']} numbers to {facts['action_size']} within [-1, 1]"
        seed = "actions are drawn by its seed" if facts["draws"] else "its seed changes nothing"
        print(f"{facts['agent']} on {facts['task']}, seed {facts['seed']}, step {facts['step']:,}: {sizes}; {seed}")
        for path in paths:
            print(path)
        print(f"policy = jax.export.deserialize(open({str(paths[0])!r}, 'rb').read())")
        print("actions = policy.call(observations, seed)  # float32 [rows, numbers], numpy.uint32")
        return 0
