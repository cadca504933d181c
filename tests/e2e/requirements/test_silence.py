"""A silent stream is alive: no proxy cuts it or keeps it back, and no reader takes its silence for text."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import httpx
import openai
import pytest
from tests.support.proxy import Proxy, running_proxy
from tests.support.rig import BY_TEXT, HEARTBEAT_S, Rig, call

import parrot as P

pytestmark = pytest.mark.timeout(120)

SILENCE_S = 1.6
"""Before each token: shorter than an engine is waited for, and longer than the proxy waits."""
CUT_S = 0.8
WORDS = ("one ", "two ", "three ")
SLOW = [action for word in WORDS for action in ({"wait_s": SILENCE_S}, {"text": word})]


@pytest.fixture(scope="module")
def proxy(rig: Rig) -> Iterator[Proxy]:
    """Before the first gateway."""
    assert HEARTBEAT_S < CUT_S < SILENCE_S
    rig.upstreams[BY_TEXT].script("slow", *SLOW)
    with running_proxy(rig.up.url, CUT_S) as made:
        yield made
        assert made.cut == 0


def test_headers_come_at_once_and_each_token_as_it_is_made(rig: Rig, proxy: Proxy) -> None:
    session = rig.open()
    rig.submit(session, call("slow", output="out"))
    at_source: list[float] = []
    behind: list[float] = []
    direct = threading.Thread(target=arrivals, args=(rig.up.url, session, at_source))
    direct.start()
    began = time.monotonic()
    headers = arrivals(proxy.url, session, behind)
    direct.join()
    assert headers - began < 1
    assert len(at_source) == len(behind) == len(WORDS)
    # A second is a busy machine's; a proxy that keeps things back keeps them for SILENCE_S or to the end.
    assert all(late - early < 1 for early, late in zip(at_source, behind, strict=True))


def arrivals(url: str, session: str, times: list[float]) -> float:
    """Notes when each token came; when the headers did."""
    path = f"{url}/v1/sessions/{session}/variables/out/stream"
    with httpx.stream("GET", path, timeout=30) as answer:
        headers = time.monotonic()
        assert answer.headers["x-accel-buffering"] == "no"
        assert answer.headers["cache-control"] == "no-cache"
        assert "content-encoding" not in answer.headers
        comments = 0
        for line in answer.iter_lines():
            comments += line.startswith(":")
            if line == "event: delta":
                times.append(time.monotonic())
        assert comments >= len(WORDS)
    return headers


def test_the_sdk_reads_nothing_but_text(rig: Rig, proxy: Proxy) -> None:
    @P.semantic_function(model=BY_TEXT)
    def slow(out: P.Output) -> None:
        """script:slow {{out}}"""

    with P.Session(proxy.url):
        assert list(slow().stream(timeout=30)) == list(WORDS)


def test_openais_client_reads_nothing_but_text(rig: Rig, proxy: Proxy) -> None:
    client = openai.OpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0)
    with client, client.completions.create(model=BY_TEXT, prompt="script:slow ", stream=True) as stream:
        texts = [chunk.choices[0].text for chunk in stream if chunk.choices]
    assert "".join(texts) == "".join(WORDS)
