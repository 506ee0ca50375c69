"""What all verbs have in common: a dataclass is a verb, and its fields are its flags."""

import dataclasses
import typing
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import tyro

T = TypeVar("T")
_NAMES = {int: "INT", float: "FLOAT", str: "STR", Path: "PATH", bool: "{True,False}"}
_NOTHING: tuple[Any, ...] = (None, ())


@typing.dataclass_transform()
def verb(cls: type[T]) -> type[T]:
    """A dataclass in whose help nothing is said twice: what a flag that is not given stands for is in its own words."""
    for name, kind in cls.__annotations__.items():
        if getattr(cls, name, ...) in _NOTHING:
            cls.__annotations__[name] = unset(kind)
    return dataclasses.dataclass(cls)


def unset(kind: Any) -> Any:
    """The type of a flag that stands for something else where it is not given, without `None` in the help."""
    hint = tyro.conf.arg(help_behavior_hint="")
    bare = typing.get_args(kind)[0] if typing.get_origin(kind) is Annotated else kind
    wanted = [one for one in typing.get_args(bare) if one is not type(None)]
    plain = wanted[0] if type(None) in typing.get_args(bare) else bare
    return Annotated[kind, hint, tyro.conf.arg(metavar=_metavar(plain))]


def _metavar(kind: Any) -> str:
    """How the help writes what a flag takes."""
    parts = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        one = _metavar(parts[0])
        return f"[{one} [{one} ...]]"
    if typing.get_origin(kind) is Literal:
        return f"{{{','.join(parts)}}}"
    return _NAMES.get(kind) or getattr(kind, "__name__", str(kind)).upper()
