"""The simulated backend: no model, but real batching, real books of KV memory, deterministic text."""

from parrot_engine.backends.sim.backend import SimBackend as SimBackend
from parrot_engine.backends.sim.backend import SimOptions as SimOptions
