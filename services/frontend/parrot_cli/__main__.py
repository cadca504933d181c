"""Runs `parrot` as a module."""

from parrot_cli.main import main

main()
