"""Where a session's time went: the chain of waits that made it as long as it was, and what else it could be.

`analyse` takes what a manager recorded of a session (`records`) and gives its critical path (`path`), whose
segments follow one another from the session's creation to its end, and for each stage how long the session
would have been without it (`replay`). Pure: no clock, no I/O.

The critical path is found backwards, as Yang and Miller do ("Critical Path Analysis for the Execution of
Parallel and Distributed Programs", ICDCS 1988): from the end, each wait leads to whoever ended it.
"""

from __future__ import annotations

from parrot_runtime.critical_path.analysis import Analysis, analyse
from parrot_runtime.critical_path.records import SessionTimes
from parrot_runtime.critical_path.stages import Stage

__all__ = ["Analysis", "SessionTimes", "Stage", "analyse"]
