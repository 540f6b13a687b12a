"""Drafters: one file each, all with the interface of `mtp.proposer.Proposer`."""

from .native import NativeMTP

__all__ = ["NativeMTP"]
