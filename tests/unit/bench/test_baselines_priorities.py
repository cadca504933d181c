"""The priorities that a client gives its requests."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from parrot_bench.graphs import Application, Call, Ref, Segment, Text
from parrot_bench.systems.priorities import distances, priorities

INT64 = 1 << 63


def call(name: str, *reads: str) -> Call:
    """A call that reads others."""
    segments: list[Segment] = [Text("Go. "), *(Ref(read) for read in reads)]
    return Call(name, tuple(segments), 1)


def application(*calls: Call, **more: object) -> Application:
    """An application after its last call."""
    return Application("app", calls, (calls[-1].name,), **more)  # type: ignore[arg-type]


def chain(length: int) -> Application:
    """Calls one after the other."""
    return application(*(call(f"c{n}", *([f"c{n - 1}"] if n else [])) for n in range(length)))


def test_a_call_is_as_far_from_the_end_as_its_longest_way() -> None:
    found = distances(application(call("a"), call("b", "a"), call("c", "b"), call("d", "a", "c")))
    assert found == {"a": 3, "b": 2, "c": 1, "d": 0}


def test_who_reads_along_goes_before_who_waits_and_both_before_batches() -> None:
    ranks = [
        priorities(application(call("only"), objective=objective), arrived)["only"]
        for objective, arrived in (("ttft", 900), ("latency", 500), ("throughput", 0))
    ]
    assert ranks == sorted(ranks)


def test_the_application_that_came_first_goes_first() -> None:
    first, second = (priorities(chain(16), arrived) for arrived in range(2))
    assert max(first.values()) < min(second.values())


@given(st.integers(1, 3000), st.integers(0, 10**9))
def test_what_has_more_behind_it_never_goes_later_however_much_there_is(length: int, arrived: int) -> None:
    ranks = list(priorities(chain(length), arrived).values())
    assert ranks == sorted(ranks)
    assert length > 999 or len(set(ranks)) == length
    assert all(-INT64 <= rank < INT64 for rank in ranks)
