"""`parrot-manager`, and `python -m parrot_manager`."""

from __future__ import annotations

from parrot_runtime.starting import stoppable


def main() -> None:
    """Imports the service, and runs it with the settings of this process."""
    stoppable()
    from parrot_manager.main import main as run

    run()


if __name__ == "__main__":
    main()
