"""Against a clairvoyant optimum: every order and every place tried, with all that will come known beforehand.

Small cases, few enough to try them all: five calls of single and two-step applications that come together, on
two engines with one place each. What counts is the worst stretch: how many times its ideal time
an application takes.
"""

from __future__ import annotations

import heapq
import random
import statistics
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import permutations, product

from tests.support.fleet import Site, engine

from parrot_manager.core.blocks.live import LiveBlocks
from parrot_manager.core.estimates import Estimates
from parrot_manager.core.graph import Graph
from parrot_manager.core.model import Call, Edge, Session, SessionState, Variable, VariableState
from parrot_manager.core.objectives import deduce
from parrot_manager.core.scheduling import APP_CENTRIC, POLICIES, SchedulingPolicy, describe
from parrot_manager.core.shapes import InputPiece, OutputPiece, TextPiece

CASES = 240
ENGINES = 2
CALLS = 5
POLICY = replace(APP_CENTRIC, streaming_edges=False, reserved_share=0.0)


@dataclass
class App:
    """A chain of calls; `times` are theirs, alone on an engine."""

    name: str
    arrives_ms: int
    times: list[float]
    session: Session
    calls: dict[str, Call]
    variables: dict[str, Variable]
    graph: Graph
    unfinished: dict[str, None]
    blocks: LiveBlocks = field(default_factory=LiveBlocks)

    @property
    def ideal_ms(self) -> float:
        """Its time alone."""
        return sum(self.times)


def app(number: int, draw: random.Random, steps: int) -> App:
    """A random application."""
    name, arrives = f"s{number}", 0
    session = Session(name, f"t{number}", "", SessionState.OPEN, arrives, 10**9)
    made = App(name, arrives, [], session, {}, {}, Graph(), {})
    for step in range(steps):
        output, before = f"v{step}", f"v{step - 1}"
        tokens = draw.choice([10, 20, 40, 80, 120])
        prompt = TextPiece(f"{number}/{step}".encode(), draw.randrange(50, 3_000))
        inputs = (InputPiece(before),) if step else ()
        edges = tuple(Edge(piece.variable_id, "") for piece in inputs)
        call = Call(
            name, f"c-{step}", step + 1, step + 1, f"f{number}{step}", "m", edges, (Edge(output, output),),
            b"", arrives, shape=(prompt, *inputs, OutputPiece(output, tokens)),
        )  # fmt: skip
        made.calls[call.id] = call
        made.unfinished[call.id] = None
        made.graph.add(call.id, call)
        made.variables[output] = Variable(name, output, output, producer_call_id=call.id)
        made.times.append(Estimates().duration_ms(_Sized(tokens), prompt.tokens))
    return made


@dataclass
class _Sized:
    max_tokens: int
    tenant: str = "t"
    name: str = "f"
    model: str = "m"


def case(seed: int) -> list[App]:
    """Applications with five calls in all."""
    draw = random.Random(seed)
    apps: list[App] = []
    left = CALLS
    while left:
        steps = min(left, draw.choice([1, 1, 2]))
        apps.append(app(len(apps), draw, steps))
        left -= steps
    return apps


def optimum(apps: list[App]) -> float:
    """The least worst stretch there is."""
    jobs = [(one, step) for one, its in enumerate(apps) for step in range(len(its.times))]
    best = float("inf")
    for order in orders(tuple(jobs)):
        for places in product(range(ENGINES), repeat=len(order) - 1):
            best = min(best, worst(apps, order, (0, *places), best))
    return best


@cache
def orders(jobs: tuple[tuple[int, int], ...]) -> list[tuple[tuple[int, int], ...]]:
    """Every order in which each application's steps come one after another."""
    return [
        order
        for order in permutations(jobs)
        if all(order.index((one, step)) > order.index((one, step - 1)) for one, step in order if step)
    ]


def worst(
    apps: list[App], order: tuple[tuple[int, int], ...], places: tuple[int, ...], limit: float
) -> float:
    """The worst stretch when engines take their calls in this order; more than `limit` is as good as that."""
    free, done, found = [0.0] * ENGINES, [float(one.arrives_ms) for one in apps], 0.0
    for (number, step), place in zip(order, places, strict=True):
        one = apps[number]
        done[number] = max(free[place], done[number]) + one.times[step]
        free[place] = done[number]
        if step == len(one.times) - 1:
            found = max(found, (done[number] - one.arrives_ms) / one.ideal_ms)
            if found >= limit:
                return found
    return found


def scheduled(apps: list[App], policy: SchedulingPolicy) -> float:
    """The worst stretch under the scheduler, which knows of an application when it comes."""
    site = Site.of(*(engine(f"e{n}", capacity=1) for n in range(ENGINES)), policy=policy)
    happens: list[tuple[float, int, int, int]] = [(one.arrives_ms, 0, n, 0) for n, one in enumerate(apps)]
    heapq.heapify(happens)
    found = 0.0
    while happens:
        now_ms, what, number, step = heapq.heappop(happens)
        one = apps[number]
        if what:
            call = one.calls[f"c-{step}"]
            site.end(next(p.call for p in site.placed if p.call.key == (one.name, call.id)))
            del one.unfinished[call.id]
            output = one.variables[f"v{step}"]
            one.variables[output.id] = replace(output, state=VariableState.READY)
            step += 1
        if step < len(one.times):
            queue_call(site, one, step, int(now_ms))
        else:
            found = max(found, (now_ms - one.arrives_ms) / one.ideal_ms)
        if happens and happens[0][0] == now_ms:
            continue
        for placement in site.place(int(now_ms)):
            place, at = next(
                (n, int(placement.call.call_id[2:]))
                for n, a in enumerate(apps)
                if a.name == placement.call.session_id
            )
            heapq.heappush(happens, (now_ms + apps[place].times[at], 1, place, at))
    return found


def queue_call(site: Site, one: App, step: int, now_ms: int) -> None:
    """The next call of an application is ready."""
    for call_id, objective in deduce(one, site.fleet.estimates, now_ms).items():
        one.calls[call_id] = replace(one.calls[call_id], objective=objective)
    site.ready(describe(one.session, one.calls[f"c-{step}"], one.variables, now_ms=now_ms))


@cache
def ratios(policy: SchedulingPolicy) -> list[float]:
    """By case, the scheduler's worst stretch over the optimum's."""
    return [scheduled(case(seed), policy) / best_of(seed) for seed in range(CASES)]


@cache
def best_of(seed: int) -> float:
    """A case's optimum."""
    return optimum(case(seed))


def test_the_worst_stretch_is_the_optimums_on_the_median_case_and_near_it_on_most() -> None:
    """Near is 1.2 times, on nine cases of ten. Where it is not, long calls share an engine that a plan of the
    whole would have parted: the scheduler goes call by call."""
    found = sorted(ratios(POLICY))
    median, most, last = statistics.median(found), found[int(0.9 * CASES)], found[-1]
    told = f"median {median:.3f}, nine of ten {most:.3f}, all {last:.3f}"
    assert median <= 1.001, told
    assert most <= 1.2, told
    assert last <= 1.9, told


def test_with_an_eye_on_the_clock_alone_it_would_be_worse() -> None:
    """What the objectives are worth here: the order in which calls became ready is further off."""
    fifo = replace(POLICIES["request_fifo"], burst_tokens=POLICY.burst_tokens)
    assert statistics.mean(ratios(POLICY)) < 0.9 * statistics.mean(ratios(fifo))
