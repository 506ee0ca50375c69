"""`uhm suite plan | run`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from tyro.conf import Positional

from uhm.cli.flags import verb
from uhm.errors import UhmError

if TYPE_CHECKING:
    from uhm.suites.plan import Population


@verb
class _Common:
    names: Positional[tuple[str, ...]] = ()
    """standard, noisy, long-horizon, paper, pointmaze, or environments (default with --ablation: the paper's)."""
    agents: tuple[str, ...] = ()
    """Agents, or module:NAME for your own, by commas or spaces (default: those that the paper reports on a suite)."""
    ablation: str | None = None
    """lambda-schedule, beta, q or terminal: populations with the paper's values of it (of uhm, without --agents)."""
    out: Path = Path("runs/suite")
    """Where run directories are, one per population."""
    seeds: str | None = None
    """How many seeds, or which: 5 is 0 to 4, and 5-9 or 3,7 are just those (default: the paper's)."""
    steps: int | None = None
    """Gradient steps (default: the paper's)."""
    eval_interval: int | None = None
    """Steps between evaluations (default: 100k, a tenth of a short run)."""
    eval_episodes: int | None = None
    """Episodes per member and evaluation (default: 50)."""
    log_interval: int | None = None
    """Steps between log lines; also the length of a compiled chunk."""
    checkpoint_interval: int | None = None
    """Steps between checkpoints."""
    hidden: tuple[int, ...] = ()
    """Widths of every network (default: the paper's)."""
    batch_size: int | None = None
    """Transitions per gradient step (default: the paper's)."""
    compute_dtype: Literal["float32", "bfloat16"] | None = None
    """Precision of matrix products (default: float32)."""
    data_dir: Path | None = None
    """Where data live (default: $UHM_DATA_DIR, else ~/.ogbench/data)."""
    placement: Literal["device", "host"] | None = None
    """Keep data on the `device`, or on the `host`, memory-mapped (default: device)."""

    def _populations(self) -> "list[Population]":
        import jax

        from uhm.cli.train import seeds_of
        from uhm.suites.plan import populations

        # Planning must not take a GPU's memory from those who train; workers choose their devices themselves.
        jax.config.update("jax_platforms", "cpu")
        if self.steps is not None and self.steps < 1:
            raise UhmError(f"--steps must be at least 1, not {self.steps}.")
        names = ("eval_interval", "eval_episodes", "log_interval", "checkpoint_interval")
        names += ("hidden", "batch_size", "compute_dtype", "placement")
        given = {name: getattr(self, name) for name in names}
        given["data_dir"] = None if self.data_dir is None else str(self.data_dir)
        agents = tuple(agent for words in self.agents for agent in words.split(",") if agent)
        return populations(
            self.names,
            agents,
            ablated=self.ablation,
            out=self.out,
            seeds=None if self.seeds is None else seeds_of(self.seeds),
            steps=self.steps,
            **{name: value for name, value in given.items() if value not in (None, ())},
        )


@verb
class Plan(_Common):
    """Show which populations a suite stands for, what is done and left, and about how long it takes."""

    json: bool = False
    """Print JSON for machines."""

    def __call__(self) -> int:
        from uhm.suites import overview

        wanted = self._populations()
        facts = overview.facts(wanted, self.out, self.names, self.ablation)
        if self.json:
            print(json.dumps(facts, indent=2))
        else:
            overview.show(facts)
        return 0


@verb
class Run(_Common):
    """Run the populations that are not done, go on with interrupted ones. Stop it at any time: it goes on."""

    on: Literal["local", "ray"] = "local"
    """Here, one population per GPU, or on a Ray cluster."""
    address: str | None = None
    """Of the Ray cluster (default: $RAY_ADDRESS, else the one that runs here, else a new one here)."""
    device: Literal["auto", "gpu", "cpu"] = "auto"
    """What a population runs on; `auto` is GPUs where there are any."""
    retries: int = 5
    """On Ray: how often a population whose process or node died is started again."""
    make_data: bool = False
    """Make missing data first, where OGBench's scripted oracles can."""
    publish: Path | None = None
    """Also put a small copy of every finished population there, without checkpoints, for `uhm report` and to keep."""

    def __call__(self) -> int:
        from rich.console import Console

        from uhm.runs import publish
        from uhm.suites import data, runner

        if self.on == "local" and self.address is not None:
            raise UhmError("--address is for --on ray.")
        if self.retries < 0:
            raise UhmError(f"--retries must be at least 0, not {self.retries}.")
        wanted = self._populations()
        if self.publish is not None:
            for population in wanted:
                publish.place(population.directory, self.publish)  # refuses before hours of work, not after
        _, left = runner.split(wanted)  # refuses what cannot be, before anything is made or started
        data.provide(left, self.make_data)
        console = Console(stderr=True)
        rows = runner.run(wanted, self._executor() if left else None, console)
        if self.publish is not None:
            self._publish(wanted)
        return runner.report(rows, Console())

    def _publish(self, wanted: "list[Population]") -> None:
        from uhm.runs.publish import publish
        from uhm.suites.status import status

        assert self.publish is not None
        for population in wanted:
            if status(population).state == "done":
                publish(population.directory, self.publish)

    def _executor(self) -> Any:
        if self.on == "local":
            from uhm.suites.local import Local, slots

            return Local(slots(self.device))
        from uhm.suites.cluster import OnRay, connect

        return OnRay(connect(self.address), self.device, self.retries)


@verb
class Suite:
    """Plan and run many populations, here or on a Ray cluster; `uhm suite run paper` is the whole paper."""

    verb: Annotated[Plan, tyro.conf.subcommand("plan")] | Annotated[Run, tyro.conf.subcommand("run")]

    def __call__(self) -> int:
        return self.verb()
