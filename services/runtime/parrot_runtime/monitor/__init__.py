"""What a service tells whoever operates it: its metrics, that it lives, and whether it is ready."""

from parrot_runtime.monitor.monitor import Monitor, Readiness, monitored

__all__ = ["Monitor", "Readiness", "monitored"]
