"""`parrot-engine`, and `python -m parrot_engine`.

The guard matters: the model's process imports this module again.
"""

from __future__ import annotations

from parrot_runtime.starting import stoppable


def main() -> None:
    """Imports the service, and runs it with the settings of this process."""
    stoppable()
    from parrot_engine.main import main as run

    run()


if __name__ == "__main__":
    main()
