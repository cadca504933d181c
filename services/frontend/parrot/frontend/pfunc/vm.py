"""The prototype's path of its machine."""

from parrot.compat.machine import VirtualMachine

__all__ = ["VirtualMachine"]
