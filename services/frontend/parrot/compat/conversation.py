"""The prototype's conversation templates: a function's text becomes a user's, its outputs an assistant's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum, auto
from typing import TYPE_CHECKING, Final

from parrot.compat.body import Body, Constant, Parameter, ParameterLoc, Piece, is_output
from parrot.compat.formatting import FuncMutator

if TYPE_CHECKING:
    from parrot.compat.functions import SemanticFunction


class SeparatorStyle(IntEnum):
    """What ends an assistant's turn: the same separator as a user's, or another."""

    ADD_COLON_SINGLE = auto()
    ADD_COLON_TWO = auto()


class ConversationTemplate(FuncMutator):
    """Writes a function as a conversation: a system message, then turns of a user and an assistant.

    The text is the prompt's own, not that of the engine's chat template: it fits the models it was
    written for.

    Args:
        roles: the names of user and assistant.
        system_template: has `{system_message}` where it is to be.
        seperator_style: spelt as the prototype spells it.
        sep: after the system message and a user's turn.
        sep2: after an assistant's turn, with `ADD_COLON_TWO`.
    """

    def __init__(  # noqa: PLR0917 - the prototype's signature
        self,
        system_message: str,
        roles: Sequence[str],
        system_template: str = "{system_message}",
        seperator_style: SeparatorStyle = SeparatorStyle.ADD_COLON_SINGLE,
        sep: str = "\n",
        sep2: str = "\n",
    ) -> None:
        self.system_message = system_message
        self.roles = list(roles)
        self.system_template = system_template
        self.seperator_style = SeparatorStyle(seperator_style)
        self.sep = sep
        self.sep2 = sep2

    def _visit_constant(self, constant: Constant) -> Constant:
        return constant

    def _visit_parameter(self, param: Parameter) -> Parameter:
        return param

    def _visit_func(self, func: SemanticFunction) -> SemanticFunction:
        body: Body = []
        for piece in self._pieces(func.body):
            place = len(body)
            body.append(Constant(place, piece) if isinstance(piece, str) else ParameterLoc(place, piece))
        return func.evolve(body=body)

    def _pieces(self, body: Sequence[Piece]) -> Iterator[str | Parameter]:
        user, assistant = self.roles
        two = self.seperator_style is SeparatorStyle.ADD_COLON_TWO
        yield self.system_template.format(system_message=self.system_message) + self.sep
        begins = True
        for piece in body:
            if begins:
                yield f"{user}: "
            begins = is_output(piece)
            if begins:
                yield f"{self.sep}{assistant}: "
            yield piece.text if isinstance(piece, Constant) else piece.param
            if begins:
                yield self.sep2 if two else self.sep


vicuna_template: Final = ConversationTemplate(
    system_message="A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions.",
    roles=["USER", "ASSISTANT"],
    seperator_style=SeparatorStyle.ADD_COLON_TWO,
    sep=" ",
    sep2="</s>",
)
"""Vicuna's, as FastChat has it: https://github.com/lm-sys/FastChat/blob/main/fastchat/conversation.py"""
