"""Emulated failures on one machine: trains for real, saves, fails and recovers as CPR's strategies do."""

from holdfast.emulation.comparing import Contest
from holdfast.emulation.emulating import Outcome, charged, emulate, undisturbed
from holdfast.emulation.servers import EmulatedServers
from holdfast.emulation.training import Training
from holdfast.emulation.ways import NAMES, Way, ways

__all__ = [
    "NAMES",
    "Contest",
    "EmulatedServers",
    "Outcome",
    "Training",
    "Way",
    "charged",
    "emulate",
    "undisturbed",
    "ways",
]
