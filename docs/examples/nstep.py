"""UHM with n-step TD instead of the winsorized geometric measure: every target looks exactly k_max steps ahead."""

from uhm.agents import uhm
from uhm.horizons import NStep

LIKE = "uhm"  # with the paper's settings of UHM, whatever the environment
Config, Hyper = uhm.Config, uhm.Hyper


def make(config, spec):
    return uhm.make(config, spec, measure=lambda context: NStep(context.k_max, context.hyper.discount))
