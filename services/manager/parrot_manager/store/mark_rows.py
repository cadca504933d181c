"""Between marks and their JSON in rows: what is not known is left out, and a row of before has none.

A later release may have written a row, with stages and fields that this one has not: it is read all the same.
"""

from __future__ import annotations

from typing import Any, Final

from parrot_manager.core.marks import NO_MARKS, NO_SESSION_MARKS, Lap, Marks, SessionMarks, Stage

Fields = dict[str, Any]
CALL: Final = ("settled_ms", "entered_ms", "first_dispatched_ms", "sent_ms", "told_ms")
SESSION: Final = ("opened_ms", "settled_ms", "closing_ms")
_STAGES: Final = frozenset(Stage)


def marks(found: Marks) -> Fields | None:
    """A call's; a lap is (stage, ms) or (stage, ms, variable id), with the stage's number."""
    fields = _said(found, CALL)
    if found.laps:
        fields["laps"] = [_lap(lap) for lap in found.laps]
    return fields or None


def to_marks(fields: Fields | None) -> Marks:
    """The marks of a call's row."""
    if not fields:
        return NO_MARKS
    return Marks(**_known(fields, CALL), laps=tuple(map(_to_lap, fields.get("laps", ()))))


def session_marks(found: SessionMarks) -> Fields | None:
    """A session's."""
    return _said(found, SESSION) or None


def to_session_marks(fields: Fields | None) -> SessionMarks:
    """The marks of a session's row."""
    return SessionMarks(**_known(fields, SESSION)) if fields else NO_SESSION_MARKS


def _said(found: Marks | SessionMarks, names: tuple[str, ...]) -> Fields:
    return {name: value for name in names if (value := getattr(found, name))}


def _known(fields: Fields, names: tuple[str, ...]) -> Fields:
    return {name: fields[name] for name in names if name in fields}


def _to_lap(lap: list[Any]) -> Lap:
    number, lasted_ms, *variable = lap
    return Lap(Stage(number) if number in _STAGES else Stage.UNKNOWN, lasted_ms, *variable[:1])


def _lap(lap: Lap) -> list[Any]:
    return [int(lap.stage), round(lap.lasted_ms, 3), *([lap.variable_id] if lap.variable_id else [])]
