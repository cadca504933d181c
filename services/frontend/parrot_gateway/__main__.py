"""`parrot-gateway`, and `python -m parrot_gateway`."""

from __future__ import annotations

from parrot_runtime.starting import stoppable


def main() -> None:
    """Imports the service, and runs it with the settings of this process."""
    stoppable()
    from parrot_gateway.main import main as run

    run()


if __name__ == "__main__":
    main()
