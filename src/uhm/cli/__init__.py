"""The command line. Each verb is a dataclass whose fields are its flags; heavy imports wait until a verb runs.

Bad input ends in one line on standard error and exit status 2; Ctrl-C and SIGTERM end in status 130. Whoever stops
reading (`| head`) ends nothing: the work is done to its end, in silence.
"""

import contextlib
import dataclasses
import importlib
import io
import itertools
import os
import sys
import typing
import warnings
from typing import Any, NoReturn

from uhm import __version__
from uhm.cli.pipes import outlive_readers
from uhm.errors import UhmError, unknown
from uhm.interrupts import heed_sigterm

DESCRIPTION = "Offline reinforcement learning with universal horizon models."
_INTERRUPTED = 130
VERBS = {
    "train": "Train a population of agents: tasks x seeds x hyperparameters as one compiled program.",
    "eval": "Evaluate a run's policies and film them.",
    "imagine": "Draw the futures that a run's model imagines, beside the true ones.",
    "export": "Write a policy as a file that runs wherever JAX does, without uhm.",
    "report": "Tables, figures and one page from runs, beside the paper's numbers.",
    "suite": "Plan and run many populations, here or on a cluster; `uhm suite run paper` is the whole paper.",
    "data": "Get, make, check and look at data.",
    "bench": "Measure what one update of each agent costs on this machine.",
    "doctor": "Show versions, devices, rendering, data and network; warn about what would spoil results.",
}


def main() -> None:
    """The entry point of `uhm`."""
    outlive_readers()
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        print(f"uhm {__version__}")
    elif not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
    else:
        heed_sigterm()
        _leave(run(arguments))


def run(arguments: list[str]) -> int:
    """Run one verb and return its exit status."""
    warnings.showwarning = _warn
    try:
        return _parse(arguments)()
    except UhmError as error:
        print(f"uhm: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as stop:  # `uhm train` says in it how to go on
        print(f"uhm: {str(stop) or 'interrupted.'}", file=sys.stderr)
        return _INTERRUPTED


def _leave(status: int) -> NoReturn:
    """End the process. After Ctrl-C at once: Python's own end waits for XLA, which crashes if it was compiling.

    Nothing is lost by that: an interrupt has passed all that had files or processes to close.
    """
    if status == _INTERRUPTED:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _parse(arguments: list[str]) -> Any:
    """The verb with its flags; tyro's answer to bad ones is a box of many lines, from which one is made."""
    import tyro  # here, where Ctrl-C is heeded: it takes a while

    kind, arguments = _verb(arguments)
    said = io.StringIO()
    _refuse_unknown_part(kind, arguments)
    try:
        with contextlib.redirect_stderr(said):
            return tyro.cli(
                kind,
                prog=f"uhm {arguments[0]}",
                args=arguments[1:],
                config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
            )
    except SystemExit as end:
        if not end.code:  # --help
            raise
        raise UhmError(_one_line(said.getvalue(), arguments[0])) from None


def _refuse_unknown_part(kind: Any, arguments: list[str]) -> None:
    """Of a verb that has parts, such as `uhm data`: tyro would only say that it does not know the option."""
    parts = [
        option.name
        for field in dataclasses.fields(kind)
        for part in typing.get_args(field.type)
        for option in getattr(part, "__metadata__", ())
    ]
    if parts and len(arguments) > 1 and not arguments[1].startswith("-") and arguments[1] not in parts:
        raise unknown(f"part of `uhm {arguments[0]}`", arguments[1], parts, f"There are {', '.join(parts)}.")


def _one_line(box: str, verb: str) -> str:
    """The first paragraph of tyro's box, and the flag that it guesses."""
    lines = [line.strip(" │") for line in box.splitlines()[1:]]
    first = itertools.takewhile(lambda line: line.strip("─"), lines)
    guess = lines[lines.index("Perhaps you meant:") + 1].split()[0].rstrip(",") if "Perhaps you meant:" in lines else ""
    guess = f" Did you mean {guess}?" if guess else ""
    return f"{' '.join(first).rstrip('.')}.{guess} `uhm {verb} --help` explains."


def _verb(arguments: list[str]) -> tuple[Any, list[str]]:
    """The dataclass of a verb and its arguments; only its own module is imported: some need JAX to know their flags."""
    name = arguments[0]
    if name not in VERBS:
        raise unknown("verb", name, VERBS, "`uhm --help` lists them.")
    module = importlib.import_module(f"uhm.cli.{name}")
    if name == "train":  # its flags are those of the agent that the arguments name
        ordered = module.in_order(arguments[1:])
        return module.verb(ordered), [name, *ordered]
    return getattr(module, name.capitalize()), arguments


def _overview() -> str:
    verbs = "\n".join(f"  {name:<8} {text}" for name, text in VERBS.items())
    return f"usage: uhm VERB ...\n\n{DESCRIPTION}\n\n{verbs}\n\n`uhm VERB --help` explains a verb; --version, --help."


def _warn(message: Any, *_: object, **__: object) -> None:
    """Warnings are one line too: the place in the source that raised them means nothing to a user."""
    print(f"uhm: warning: {message}", file=sys.stderr)
