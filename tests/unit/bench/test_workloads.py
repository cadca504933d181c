"""Workloads are built from a shape and a seed: the same sizes each round, other text each round."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import pytest

from parrot_bench.documents import ByteTokenizer, Documents, read_documents
from parrot_bench.graphs import Application, Text, Workload
from parrot_bench.shapes import Shape
from parrot_bench.workloads import CHAT_OUTPUT_TOKENS, USES, WORKLOADS, build
from parrot_cli.bench import Workload as Named

TEXTS = list(read_documents(None).values())


def made(name: str, shape: Shape | None = None, seed: int = 1) -> Workload:
    return build(name, shape or WORKLOADS[name].quick, Documents(TEXTS, ByteTokenizer(), seed), seed)


def sizes(workload: Workload) -> list[Any]:
    return [
        (len(call.render(dict.fromkeys(call.reads, ""))), call.output_tokens, call.reads)
        for application in workload.applications
        for call in application.calls
    ]


def inputs(application: Application) -> list[int]:
    texts = {
        segment.name: segment.text
        for call in application.calls
        for segment in call.prompt
        if isinstance(segment, Text) and segment.name
    }
    return [len(text.encode()) for text in texts.values()]


def test_the_command_names_each_workload() -> None:
    assert [each.value for each in Named] == list(WORKLOADS) == list(USES)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_builds_the_same_again_and_another_seed_the_same_sizes(name: str) -> None:
    assert made(name) == made(name)
    other = made(name, seed=2)
    assert other.applications != made(name).applications
    assert sorted(output for _, output, _ in sizes(other)) == sorted(o for _, o, _ in sizes(made(name)))


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_size_changes_the_workloads_that_use_it_and_no_other(name: str) -> None:
    shape = replace(WORKLOADS[name].quick, applications=2, deadline_s=5.0)
    plain = made(name, shape)
    for each in fields(Shape):
        value = getattr(shape, each.name)
        changed = made(name, replace(shape, **{each.name: value + 1}))
        assert (changed.applications != plain.applications) == (each.name in USES[name]), each.name
    assert plain.parameters == {key: getattr(shape, key) for key in USES[name]} | {"seed": 1}


@pytest.mark.parametrize("name", WORKLOADS)
def test_rounds_share_no_text_at_the_same_place(name: str) -> None:
    first, second = made(name, seed=1), made(name, seed=2)
    texts = [
        {s.text for a in w.applications for c in a.calls for s in c.prompt if isinstance(s, Text) and s.name}
        for w in (first, second)
    ]
    assert not texts[0] & texts[1]


def test_a_chain_reads_its_parts_one_after_another() -> None:
    (chain,) = made("chain", WORKLOADS["chain"].shape).applications
    assert [call.reads for call in chain.calls] == [(), *((f"step_{n}",) for n in range(1, 16))]
    assert inputs(chain) == [512] * 16
    assert {call.output_tokens for call in chain.calls} == {32}
    assert chain.finals == ("step_16",)


def test_map_reduce_reads_all_parts_at_once() -> None:
    (application,) = made("map-reduce", WORKLOADS["map-reduce"].shape).applications
    *maps, reduce = application.calls
    assert [call.reads for call in maps] == [()] * 16
    assert reduce.reads == tuple(call.name for call in maps)
    assert inputs(application) == [512] * 16


def test_the_background_is_not_measured_and_comes_at_random() -> None:
    workload = made("chain-loaded", replace(WORKLOADS["chain-loaded"].quick, queries=200, rate_per_s=10))
    background = workload.of("background")
    assert [a.objective for a in workload.of("application")] == ["latency"]
    gaps = [b.arrival_ms - a.arrival_ms for a, b in pairwise(background)]
    assert 70 < sum(gaps) / len(gaps) < 130  # of 199 with a mean of 100: four standard deviations
    assert min(gaps) < 20
    assert max(gaps) > 300


def test_products_have_prompts_of_their_own_that_their_requests_share() -> None:
    shape = replace(WORKLOADS["shared-prompt"].quick, applications=3, queries=4)
    prompts = [a.calls[0].prompt[0] for a in made("shared-prompt", shape).applications]
    counts = sorted(prompts.count(prompt) for prompt in set(prompts))
    assert counts == [4, 4, 4]
    # It is a template's text, not an input.
    assert {p.name for p in prompts if isinstance(p, Text)} == {""}


@pytest.mark.parametrize(("files", "rounds"), [(1, 1), (4, 1), (16, 3)])
def test_a_team_reviews_and_revises_every_file_in_every_round(files: int, rounds: int) -> None:
    shape = replace(WORKLOADS["multi-agent"].quick, files=files, rounds=rounds)
    (team,) = made("multi-agent", shape).applications
    assert len(team.calls) == 1 + files + 2 * rounds * files
    assert team.finals == tuple(f"reviser_{rounds}_{number}" for number in range(1, files + 1))
    coders = [f"coder_{number}" for number in range(1, files + 1)]
    assert team.call("reviewer_1_1").reads == tuple(coders)
    assert team.call(f"reviser_1_{files}").reads == (*coders, f"reviewer_1_{files}")
    if rounds > 1:
        assert team.call("reviewer_2_1").reads == tuple(f"reviser_1_{n}" for n in range(1, files + 1))


def test_reviewers_of_a_round_read_the_same_up_to_their_own_question() -> None:
    (team,) = made("multi-agent").applications
    one, two = (team.call(f"reviewer_1_{number}").prompt for number in (1, 2))
    assert one[:-1] == two[:-1]
    assert one[-1] != two[-1]


def test_chats_are_read_as_they_are_written_beside_summaries_that_can_wait() -> None:
    workload = made("mixed", WORKLOADS["mixed"].shape)
    chats = workload.of("chat")
    assert {(a.objective, a.calls[0].streamed, a.calls[0].output_tokens) for a in chats} == {
        ("ttft", True, CHAT_OUTPUT_TOKENS)
    }
    assert {a.objective for a in workload.of("application")} == {"throughput"}
    assert [a.arrival_ms for a in workload.of("application")] == [0, 8_000, 16_000, 24_000]
    assert inputs(chats[0]) == [128]


@pytest.mark.parametrize("name", WORKLOADS)
def test_deadlines_are_those_of_what_is_measured(name: str) -> None:
    workload = made(name, replace(WORKLOADS[name].quick, deadline_s=3))
    assert {a.deadline_ms for a in workload.of("application")} == {3000}
    assert {a.deadline_ms for a in workload.of("chat") + workload.of("background")} <= {None}


@pytest.mark.parametrize(
    "wrong",
    [{"chunks": 0}, {"rate_per_s": 0.0}, {"gap_s": -1.0}, {"files": 10**6}, {"rate_per_s": float("nan")}],
)
def test_a_shape_has_sizes_that_can_be(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Shape(**wrong)
