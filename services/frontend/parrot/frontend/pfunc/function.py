"""The prototype's path of functions and their parts."""

from parrot.compat.arguments import BasicCall
from parrot.compat.body import Constant, FuncBodyPiece, Parameter, ParameterLoc, ParamType
from parrot.compat.functions import BasicFunction, SemanticCall, SemanticFunction
from parrot.compat.native import PyNativeCall, PyNativeFunction

__all__ = [
    "BasicCall",
    "BasicFunction",
    "Constant",
    "FuncBodyPiece",
    "ParamType",
    "Parameter",
    "ParameterLoc",
    "PyNativeCall",
    "PyNativeFunction",
    "SemanticCall",
    "SemanticFunction",
]
