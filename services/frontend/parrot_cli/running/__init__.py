"""What `parrot run` runs: programs, and graphs."""

from parrot_cli.running.graphs import run_graph
from parrot_cli.running.programs import run_program

__all__ = ["run_graph", "run_program"]
