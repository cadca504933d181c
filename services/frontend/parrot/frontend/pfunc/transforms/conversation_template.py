"""The prototype's path of conversation templates."""

from parrot.compat.conversation import ConversationTemplate, SeparatorStyle, vicuna_template

__all__ = ["ConversationTemplate", "SeparatorStyle", "vicuna_template"]
