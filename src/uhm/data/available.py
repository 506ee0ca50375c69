"""How data that are not here can be had: made, or from OGBench, and what to advise. And whether those here suffice."""

from uhm.data import collect
from uhm.tasks import OWN, ROOMS, Environment


def makeable(environment: Environment) -> bool:
    """Whether `uhm data make` can make them."""
    return environment is ROOMS or collect.has_recipe(environment)


def official(environment: Environment) -> bool:
    """Whether OGBench has files of them."""
    return environment.suite not in (ROOMS.suite, OWN)


def ways(environment: Environment) -> list[str]:
    """The commands that bring them, as parts of a sentence."""
    make, get = (f"{verb} them with `uhm data {verb} {environment.name}`" for verb in ("make", "get"))
    return [way for way, possible in ((make, makeable(environment)), (get, official(environment))) if possible]


def shortfall(transitions: int, environment: Environment) -> str:
    """What is to be said of training data with so many transitions, where they are far fewer than the official ones."""
    if transitions >= 0.9 * environment.transitions:
        return ""
    share = transitions / environment.transitions
    return f"{share:.1%} of the official size: fit for smoke tests, not for comparison"
