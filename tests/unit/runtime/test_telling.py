"""What managers tell of states: each change once and in order, whoever of them tells it."""

from __future__ import annotations

from parrot_proto.values.v1 import values_pb2
from parrot_runtime.values.session_fold import Fold
from parrot_runtime.values.states import Last, Telling, sum_of_ends

StateChange = values_pb2.StateChange


def change(name: str, state: str, kind: str = "call") -> StateChange:
    return StateChange(kind=kind, id=name, state=state)


class Log:
    """A subject that takes what follows its last message."""

    def __init__(self) -> None:
        self.messages: list[values_pb2.SessionStates] = []

    @property
    def last(self) -> Last | None:
        return Last(len(self.messages), self.messages[-1]) if self.messages else None

    def take(self, telling: Telling) -> bool:
        """One message of a telling, if that knows the last one; otherwise it looks. False: it gave up."""
        if telling.after != len(self.messages):
            telling.after = None
        if telling.after is None:
            return telling.found(self.last)
        if telling.is_due:
            self.messages.append(telling.message())
            telling.told(len(self.messages))
        return True

    def take_all(self, telling: Telling) -> bool:
        while telling.is_due:
            if not self.take(telling):
                return False
        return True

    def told(self) -> list[tuple[str, str]]:
        return [(one.id, one.state) for message in self.messages for one in message.changes]

    def known(self) -> dict[str, str]:
        fold = Fold()
        for message in self.messages:
            fold.add_states(message)
        return {name: one.state for (_, name), one in fold.states.items()}


def test_what_piles_up_is_told_in_order_and_in_bounded_messages() -> None:
    log, telling = Log(), Telling(1, message_bytes=60)
    changes = [change(f"c-{n}", "waiting") for n in range(20)]
    telling.add(changes)
    log.take_all(telling)
    assert log.told() == [(one.id, one.state) for one in changes]
    assert len(log.messages) > 4
    assert all(message.ByteSize() < 120 for message in log.messages)


def test_a_message_that_came_though_nobody_heard_so_is_not_told_again() -> None:
    log, telling = Log(), Telling(1, 1000)
    telling.add([change("c-1", "done")])
    log.messages.append(telling.message())
    telling.add([change("c-2", "running")])
    log.take_all(telling)
    assert log.told() == [("c-1", "done"), ("c-2", "running")]
    assert log.messages[-1].ends == sum_of_ends([change("c-1", "done")])


def test_a_successor_tells_of_ends_that_were_not_told() -> None:
    log, first, second = Log(), Telling(1, 1000), Telling(2, 1000)
    first.add([change("c-1", "done"), change("c-2", "running")])
    log.take_all(first)
    second.restore([change("c-1", "done"), change("c-2", "failed"), change("c-3", "waiting")])
    log.take_all(second)
    assert log.known() == {"c-1": "done", "c-2": "failed", "c-3": "waiting"}


def test_a_successor_tells_of_no_end_again_where_all_were_told() -> None:
    log, first, second = Log(), Telling(1, 1000), Telling(2, 1000)
    first.add([change("c-1", "done"), change("c-2", "waiting")])
    log.take_all(first)
    second.restore([change("c-1", "done"), change("c-2", "running")])
    second.add([change("c-2", "done")])
    log.take_all(second)
    assert log.told() == [("c-1", "done"), ("c-2", "waiting"), ("c-2", "running"), ("c-2", "done")]
    third = Telling(3, 1000)
    third.restore([change("c-1", "done"), change("c-2", "done")])
    log.take_all(third)
    assert len(log.told()) == 4


def test_a_manager_that_was_superseded_gives_up() -> None:
    log, first, second = Log(), Telling(1, 1000), Telling(2, 1000)
    first.add([change("c-1", "running")])
    log.take_all(first)
    first.add([change("c-1", "waiting")])
    second.restore([change("c-1", "done")])
    log.take_all(second)
    assert not log.take_all(first)
    assert log.known() == {"c-1": "done"}


def test_what_a_sleeper_tells_between_a_look_and_the_next_message_changes_no_end() -> None:
    log, sleeper, second = Log(), Telling(1, 1000), Telling(2, 1000)
    sleeper.add([change("c-1", "running")])
    log.take_all(sleeper)
    second.restore([change("c-1", "done")])
    assert log.take(second)
    sleeper.add([change("c-1", "waiting")])
    assert log.take(sleeper)
    log.take_all(second)
    assert log.known() == {"c-1": "done"}


def test_a_purged_subject_is_begun_anew() -> None:
    log, telling = Log(), Telling(1, 1000)
    telling.add([change("c-1", "done")])
    log.take_all(telling)
    log.messages.clear()
    telling.add([change("c-2", "done")])
    log.take_all(telling)
    assert log.told() == [("c-2", "done")]
