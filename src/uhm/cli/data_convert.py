"""`uhm data convert`."""

import json
from pathlib import Path
from typing import Annotated

import tyro
from tyro.conf import Positional

from uhm.cli.flags import verb
from uhm.errors import UhmError


@verb
class Convert:
    """Make a log of transitions from D4RL, Gymnasium or a replay buffer: rows of trajectories, as `uhm train` wants.

    The names that these use are known (terminals or dones, timeouts or truncations, next_observations, ...).
    """

    source: Annotated[Positional[Path], tyro.conf.arg(metavar="SOURCE")]
    """An npz or HDF5 file with a row per transition."""
    out: Annotated[Positional[Path], tyro.conf.arg(metavar="OUT")]
    """The npz file to make."""
    low: tuple[float, ...] = ()
    """Lower bounds of the action space, one for all or as many (default: -1)."""
    high: tuple[float, ...] = ()
    """Upper bounds of the action space (default: 1)."""
    json: bool = False
    """Print JSON for machines."""

    def __call__(self) -> int:
        from uhm.data import convert, npz_write
        from uhm.data.files import from_blocks
        from uhm.errors import writing

        if self.out.suffix != ".npz":
            raise UhmError(f"{self.out} must end in .npz.")
        if self.out.exists():
            raise UhmError(f"{self.out} is there already: remove it, or give another name.")
        source = str(self.source)
        done = convert.convert(convert.read(self.source), self.low or None, self.high or None, source)
        from_blocks([done.arrays], len(done.arrays["actions"]), self.out.stem, source)  # what cannot be learned from
        with writing(self.out):
            self.out.parent.mkdir(parents=True, exist_ok=True)
            npz_write.save(self.out, done.arrays)
        if self.json:
            facts = {name: value for name, value in done._asdict().items() if name != "arrays"}
            print(json.dumps({"path": str(self.out), **facts}, indent=2))
            return 0
        end = f"{done.ends:,} of them end the task"
        print(f"{self.out}: {done.transitions:,} transitions in {done.trajectories:,} trajectories, {end}")
        for line in convert.remarks(done):
            print(line)
        return 0
