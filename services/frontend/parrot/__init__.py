"""Parrot's client: semantic functions, the variables between them, and sessions.

import parrot as P

@P.semantic_function
def summarize(text: P.SemanticVariable):
    \"\"\"Summarize in one sentence: {{input:text}}
    Summary: {{output:summary}}\"\"\"

with P.Session():
    print(summarize("...").get())
"""

import parrot as P  # noqa: N812 - so that 'from parrot import P' works too
from parrot.errors import (
    CallFailed,
    Cancelled,
    InvalidText,
    ParrotError,
    PlaceholderError,
    RequestRefused,
    ServerUnavailable,
    SessionError,
    TemplateError,
    WaitTimeout,
)
from parrot.function import Function, semantic_function
from parrot.guide import Guide
from parrot.info import CallInfo, SessionInfo, VariableInfo
from parrot.sampling import Input, Output, SamplingConfig
from parrot.session import Session
from parrot.variable import SemanticVariable, variable

SemanticFunction = semantic_function
"""The paper's spelling of the decorator."""

__all__ = [
    "CallFailed",
    "CallInfo",
    "Cancelled",
    "Function",
    "Guide",
    "Input",
    "InvalidText",
    "Output",
    "P",
    "ParrotError",
    "PlaceholderError",
    "RequestRefused",
    "SamplingConfig",
    "SemanticFunction",
    "SemanticVariable",
    "ServerUnavailable",
    "Session",
    "SessionError",
    "SessionInfo",
    "TemplateError",
    "VariableInfo",
    "WaitTimeout",
    "semantic_function",
    "variable",
]
