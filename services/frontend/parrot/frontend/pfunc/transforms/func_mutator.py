"""The prototype's path of the base of transforms."""

from parrot.compat.body import Constant, FuncBodyPiece, Parameter, ParameterLoc
from parrot.compat.formatting import FuncMutator
from parrot.compat.functions import SemanticFunction

__all__ = ["Constant", "FuncBodyPiece", "FuncMutator", "Parameter", "ParameterLoc", "SemanticFunction"]
