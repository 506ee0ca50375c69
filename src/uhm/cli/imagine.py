"""`uhm imagine`: pictures, a film and numbers of the futures that a run's model imagines."""

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tyro.conf import Positional

from uhm.cli.flags import verb
from uhm.errors import UhmError

if TYPE_CHECKING:
    from uhm.imagine import Dream


@verb
class Imagine:
    """Draw the states that a run's model expects n steps ahead, beside what truly happens."""

    run: Positional[Path]
    """Directory of the run (an agent with a model: uhm, ghm, mbtd)."""
    task: str | None = None
    """Which task (default: the first of the run)."""
    n: tuple[str, ...] = ()
    """Horizons, as 1,2,4 or 1 2 4 (default: 1, 2, 4, ... and the longest that the model has learned)."""
    seed: int | None = None
    """Which seed (default: the first of the run)."""
    member: int | None = None
    """Which member, by its place in the run's summary.json, where hyperparameters differ (default: the first one)."""
    starts: int = 4
    """How many start states."""
    draws: int = 128
    """Samples per start state and horizon."""
    step: str = "last"
    """Which checkpoint: last, best (by its evaluation in training), or a step that was kept."""
    mix: bool = True
    """Let the truth take the data's actions at the share beta too, as the model is taught (rooms and pointmaze)."""
    out: Path | None = None
    """Where to write (default: RUN/imagine)."""
    gif: bool = False
    """Write the film as a GIF instead of an mp4."""
    json: bool = False
    """Print JSON for machines."""

    def __call__(self) -> int:
        n = self._numbers()
        from rich.console import Console

        from uhm.imagine import Dream, write
        from uhm.train.choice import as_step

        dream = Dream(self.run, self.task, self.seed, as_step(self.step), self.mix, self.member)
        self._warn(dream, n)
        out = self.run / "imagine" if self.out is None else self.out
        with Console(stderr=True).status(f"imagining {dream.task.name} ..."):  # says nothing where nobody watches
            facts, paths = write(dream, out, n or None, starts=self.starts, draws=self.draws, gif=self.gif)
        if self.json:
            print(json.dumps({"calibration": facts, "files": [str(path) for path in paths]}, indent=2))
            return 0
        if facts is not None:
            self._show(facts)
        for path in paths:
            print(path)
        return 0

    def _numbers(self) -> list[int]:
        """--n 1,2,4 and --n 1 2 4 are the same."""
        words = [word for part in self.n for word in part.split(",") if word.strip()]
        for word in words:
            if not word.strip().isdecimal() or int(word) < 1:
                raise UhmError(f"--n has '{word.strip()}', and must be whole numbers of at least 1, such as 1,2,4.")
        for name, value, least in (("starts", self.starts, 1), ("draws", self.draws, 2)):
            if value < least:
                raise UhmError(f"--{name} is {value}, and must be at least {least}.")
        return [int(word) for word in words]

    def _warn(self, dream: "Dream", n: list[int]) -> None:
        from uhm.imagine.dream import JUMP, MARGINAL

        if dream.how == JUMP and n and max(n) > dream.k_max:
            warnings.warn(f"the model learned n up to {dream.k_max}: beyond that it extrapolates.", stacklevel=2)
        if dream.how == MARGINAL:
            unused = " --n is not used." if n else ""
            warnings.warn(f"{dream.plan.agent} knows no n, only its geometric marginal.{unused}", stacklevel=2)
        if dream.view.arm and dream.data is None:
            warnings.warn("the run's data are not there: only the model is shown, nothing measured.", stacklevel=2)

    def _show(self, facts: dict[str, Any]) -> None:
        from rich.table import Table

        from uhm.train import progress

        agent = facts["agent"]
        print(f"{facts['task']}, step {facts['step']:,}: energy distance to the truth, in {facts['unit']}")
        table = Table("n", agent, "truth against truth")
        for n, ours, truth in zip(facts["n"], facts[agent], facts["truth"], strict=True):
            table.add_row(
                f"{n:g}" if not facts["marginal"] else f"geometric, mean {n:.1f}", f"{ours:.4f}", f"{truth:.4f}"
            )
        progress.show(table)
