"""Offline reinforcement learning with universal horizon models."""

__version__ = "0.1.0"
