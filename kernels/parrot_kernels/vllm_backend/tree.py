"""The tree that a scheduler knows, as the rows of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from parrot_kernels.plan.planner import Ints


@dataclass(frozen=True, slots=True, eq=False)
class Tree:
    """Requests that decode, those that share a beginning side by side.

    Attributes:
        names: of the requests.
        shared: of each, how many full blocks it has in common with the one before.
    """

    names: tuple[str, ...]
    shared: Ints


class TreeRows:
    """A `Tree` in the places that its requests have in the batch, looked up when either has changed."""

    def __init__(self) -> None:
        self._tree: Tree | None = None
        self._places: Mapping[str, int] = {}
        self._order: Ints | None = None

    def tell(self, tree: Tree | None, places: Mapping[str, int]) -> None:
        """Takes the tree of the next step.

        Args:
            tree: None: none is known.
            places: of each request, its row; read when the batch has been put together.
        """
        if tree is not self._tree:
            self._order = None
        self._tree, self._places = tree, places

    def order(self, rows: int, *, anew: bool) -> tuple[Ints, Ints] | None:
        """The rows in the tree's order, and what they share; None: it is not a tree of so many rows.

        Args:
            anew: look the rows up again, which may have changed places since the tree was told.
        """
        tree = self._tree
        if tree is None or len(tree.names) != rows:
            return None
        if anew or self._order is None:
            places = (self._places.get(name, -1) for name in tree.names)
            self._order = np.fromiter(places, np.int32, rows)
        return self._order, tree.shared
