"""The prototype's path of `parrot.compat`."""

from parrot.compat import *  # noqa: F403 - all of it
