"""`uhm bench`."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional

from uhm.errors import UhmError


@dataclass
class Bench:
    """Measure what one update costs: agents beside each other, and beside their matrix products alone."""

    what: Positional[Literal["update"]] = "update"
    """What to measure."""
    agents: tuple[str, ...] = (
        *("uhm", "dtd", "mbtd", "ghm", "rebrac-dagger"),
        *("iql", "rebrac", "fql", "mopo", "mobile", "mac"),
    )
    """Which agents; ratios are to the first."""
    members: tuple[int, ...] = (1, 5, 25)
    """Sizes of the population."""
    hidden: tuple[int, ...] = (512, 512, 512, 512)
    """Widths of every network."""
    batch_size: int = 256
    """Transitions per gradient step and member."""
    observation: int = 55
    """Size of an observation."""
    action: int = 5
    """Size of an action."""
    k_max: int = 8
    """Longest horizon, which dtd and mbtd pay for."""
    steps: int | None = None
    """Timed steps of each agent (default: 500, fewer of large networks on a CPU)."""
    compute_dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of matrix products."""
    to: Annotated[Path | None, tyro.conf.arg(name="json")] = None
    """Also write everything to this file, with versions and hardware."""

    def __call__(self) -> int:
        from rich.console import Console

        from uhm import bench

        setting = bench.Setting(
            hidden=self.hidden,
            batch_size=self.batch_size,
            observation=self.observation,
            action=self.action,
            k_max=self.k_max,
            compute_dtype=self.compute_dtype,
        )
        if self.to is not None and not self.to.parent.is_dir():
            raise UhmError(f"there is no directory {self.to.parent} to write {self.to.name} into.")
        waiting = Console(stderr=True)
        with waiting.status("starting") as status:
            rows = bench.update(self.agents, self.members, setting, self.steps, status.update)
        Console().print(self._table(rows, setting))
        for size, values in bench.ratios(rows).items():
            numbers = " : ".join(f"{value:.2f}" for value in values.values())
            print(f"{size} member{'s' if size > 1 else ''}: {' : '.join(values)} = {numbers}")
        if self.to is not None:
            self.to.write_text(json.dumps(bench.to_json(rows, setting, self.steps), indent=2) + "\n")
        return 0

    def _table(self, rows: list[Any], setting: Any) -> Any:
        import jax
        from rich.table import Table

        device = jax.devices()[0]
        size = f"{setting.observation}+{setting.action} inputs, {'x'.join(map(str, setting.hidden))} networks"
        table = Table(
            title=f"{device.device_kind}: {size}, batch {setting.batch_size}, {setting.compute_dtype}", box=None
        )
        table.add_column("agent", no_wrap=True)
        # Two short lines each: a terminal of 80 columns must show every number.
        for head in (
            "\nmembers",
            "ms per\nstep",
            "per\nmember",
            "compile\ns",
            "\nGFLOP",
            "products\nms",
            "update :\nproducts",
        ):
            table.add_column(head, justify="right", no_wrap=True)
        for row in rows:
            table.add_row(
                row.agent,
                str(row.members),
                f"{row.milliseconds:.2f}",
                f"{row.milliseconds_per_member:.2f}",
                f"{row.compile_seconds:.1f}",
                f"{row.gigaflops:.2f}",
                f"{row.products_milliseconds:.2f}",
                f"{row.update_to_products:.2f}",
            )
        return table
