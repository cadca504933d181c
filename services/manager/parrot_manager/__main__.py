"""`python -m parrot_manager`."""

from parrot_manager.main import main

main()
