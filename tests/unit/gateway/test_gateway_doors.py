"""Keys, rates and patience, each by itself."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message, Receive

from parrot_gateway.doors import keys
from parrot_gateway.doors.door import Keyless, key_of
from parrot_gateway.doors.keys import ASKED_AT_ONCE, MOST_WAITING, Holder, KeyRing
from parrot_gateway.doors.patience import impatient
from parrot_gateway.doors.rates import Granted, Rates
from parrot_runtime import errors
from parrot_runtime.api_keys import KeyParts, new_api_key, parts_of
from parrot_runtime.errors import Fault
from parrot_runtime.hosts import is_loopback

pytestmark = pytest.mark.anyio

KEY = new_api_key()


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


class Managers:
    """What managers answer about keys, and how often they were asked."""

    def __init__(self) -> None:
        self.asked = 0
        self.keys: set[KeyParts | None] = set()
        self.answer: Holder | Fault = Holder("a", 5)
        self.hold: asyncio.Event | None = None

    async def check(self, key: KeyParts) -> Holder:
        """As `ManagerClient.check_key`."""
        self.asked += 1
        self.keys.add(key)
        if self.hold is not None:
            await self.hold.wait()
        if isinstance(self.answer, Fault):
            raise self.answer
        return self.answer


@pytest.fixture
def clock() -> Clock:
    """The ring's."""
    return Clock()


@pytest.fixture
def managers() -> Managers:
    """Who is asked."""
    return Managers()


@pytest.fixture
def ring(clock: Clock, managers: Managers) -> KeyRing:
    """A ring that believes for five seconds."""
    return KeyRing(managers.check, 5.0, clock)


async def kind_of(ring: KeyRing, key: str = KEY) -> errors.Kind:
    """Why a key is refused."""
    with pytest.raises(Fault) as caught:
        await ring.holder(key)
    return caught.value.kind


async def test_a_key_is_asked_about_once_for_all_who_come_with_it(ring: KeyRing, managers: Managers) -> None:
    managers.hold = asyncio.Event()
    coming = [asyncio.create_task(ring.holder(KEY)) for _ in range(20)]
    await asyncio.sleep(0)
    managers.hold.set()
    assert await asyncio.gather(*coming) == [Holder("a", 5)] * 20
    assert await ring.holder(KEY) == Holder("a", 5)
    assert managers.asked == 1
    assert managers.keys == {parts_of(KEY)}


async def test_a_revoked_key_is_good_no_longer_than_it_is_believed(
    ring: KeyRing, managers: Managers, clock: Clock
) -> None:
    await ring.holder(KEY)
    managers.answer = Fault(errors.UNAUTHENTICATED, "revoked")
    clock.now_s += 5.0
    assert await kind_of(ring) is errors.UNAUTHENTICATED
    assert await kind_of(ring) is errors.UNAUTHENTICATED
    assert managers.asked == 2, "a wrong key is not asked about again at once"
    clock.now_s += 1.0
    managers.answer = Holder("a")
    assert await ring.holder(KEY) == Holder("a")


async def test_a_key_in_use_is_looked_at_again_without_anybody_waiting(
    ring: KeyRing, managers: Managers, clock: Clock
) -> None:
    await ring.holder(KEY)
    managers.answer = Holder("a", 9)
    clock.now_s += 3.0
    assert await ring.holder(KEY) == Holder("a", 5)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    clock.now_s += 2.5
    assert await ring.holder(KEY) == Holder("a", 9)
    assert managers.asked == 2


async def test_while_nobody_can_be_asked_a_key_stays_good_for_a_minute(
    ring: KeyRing, managers: Managers, clock: Clock
) -> None:
    await ring.holder(KEY)
    managers.answer = Fault(errors.UNAVAILABLE, "no manager")
    clock.now_s += 59.0
    assert await ring.holder(KEY) == Holder("a", 5)
    clock.now_s += 2.0
    assert await kind_of(ring) is errors.UNAVAILABLE


async def test_whoever_comes_with_a_good_key_does_not_wait_out_an_outage(
    ring: KeyRing, managers: Managers, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "PATIENCE_S", 0.0)
    await ring.holder(KEY)
    managers.hold = asyncio.Event()
    clock.now_s += 6.0
    assert await ring.holder(KEY) == Holder("a", 5)
    managers.answer = Fault(errors.UNAUTHENTICATED, "revoked")
    managers.hold.set()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert await kind_of(ring) is errors.UNAUTHENTICATED
    assert managers.asked == 2


async def test_a_manager_that_can_not_answer_is_no_verdict(ring: KeyRing, managers: Managers) -> None:
    managers.answer = Fault(errors.UNAVAILABLE, "no manager")
    assert await kind_of(ring) is errors.UNAVAILABLE
    managers.answer = Holder("a")
    assert await ring.holder(KEY) == Holder("a")


async def test_a_flood_of_unknown_keys_asks_for_few_at_once_and_waits_bounded(
    ring: KeyRing, managers: Managers
) -> None:
    await ring.holder(KEY)
    managers.hold, managers.answer = asyncio.Event(), Fault(errors.UNAUTHENTICATED, "no")
    room = ASKED_AT_ONCE + MOST_WAITING
    flood = [asyncio.create_task(ring.holder(new_api_key())) for _ in range(room + 5)]
    await asyncio.wait(flood, return_when=asyncio.FIRST_EXCEPTION)
    assert managers.asked == 1 + ASKED_AT_ONCE
    assert await ring.holder(KEY) == Holder("a", 5), "a key that is known waits for nobody"
    managers.hold.set()
    told = await asyncio.gather(*flood, return_exceptions=True)
    kinds = [fault.kind for fault in told if isinstance(fault, Fault)]
    assert kinds.count(errors.UNAUTHENTICATED) == room
    assert kinds.count(errors.UNAVAILABLE) == 5


@pytest.mark.parametrize("key", ["", "sk-other", KEY + "x", KEY[:-1], KEY.upper(), "pk-é-secret"])
async def test_what_is_no_key_is_refused_without_asking(ring: KeyRing, managers: Managers, key: str) -> None:
    assert await kind_of(ring, key) is errors.UNAUTHENTICATED
    assert not managers.asked


async def test_of_a_key_neither_words_nor_errors_show_the_secret(ring: KeyRing, managers: Managers) -> None:
    secret = KEY.split("-", 2)[2]
    managers.answer = Fault(errors.UNAUTHENTICATED, "no")
    with pytest.raises(Fault) as caught:
        await ring.holder(KEY)
    assert secret not in str(caught.value)
    assert secret not in repr(parts_of(KEY))


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", f"Bearer {KEY}".encode())],
        [(b"authorization", f"bearer   {KEY} ".encode())],
        [(b"x-api-key", KEY.encode())],
        [(b"x-api-key", KEY.encode()), (b"authorization", f"Bearer {KEY}".encode())],
    ],
)
def test_a_key_comes_as_bearer_or_by_its_own_header(headers: list[tuple[bytes, bytes]]) -> None:
    assert key_of(headers) == KEY


@pytest.mark.parametrize(
    "headers",
    [[], [(b"cookie", b"key")], [(b"x-api-key", b"one"), (b"authorization", b"Bearer two")]],
)
def test_no_key_and_two_keys_are_refused(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(Fault) as caught:
        key_of(headers)
    assert caught.value.kind is errors.UNAUTHENTICATED


class Bucket:
    """A tenant's rate as a manager has it."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.asked: list[tuple[int, int]] = []

    async def lease(self, tenant: str, wanted: int, returned: int) -> Granted:
        """As `ManagerClient.lease_requests`."""
        assert tenant == "a"
        self.asked.append((wanted, returned))
        await asyncio.sleep(0)
        self.left += returned
        granted = min(wanted, self.left)
        self.left -= granted
        return Granted(granted, 0 if granted else 100)


async def outcomes(rates: Rates, count: int) -> list[bool]:
    """Which of so many requests at once pass."""

    told = await asyncio.gather(*(rates.pass_one("a", 50) for _ in range(count)), return_exceptions=True)
    refused = [fault for fault in told if isinstance(fault, Fault)]
    assert all(fault.kind is errors.RATE_LIMITED and fault.retry_after_ms for fault in refused)
    return [fault is None for fault in told]


async def test_gateways_together_let_no_more_pass_than_there_are(clock: Clock) -> None:
    bucket = Bucket(23)
    gateways = [Rates(bucket.lease, clock), Rates(bucket.lease, clock)]
    passed = await asyncio.gather(*(outcomes(rates, 40) for rates in gateways))
    assert sum(map(sum, passed)) == 23


async def test_whoever_is_refused_is_refused_here_until_there_is_one(clock: Clock) -> None:
    bucket = Bucket(0)
    rates = Rates(bucket.lease, clock)
    assert not any(await outcomes(rates, 30))
    assert len(bucket.asked) == 1
    bucket.left = 5
    clock.now_s += 0.1
    assert await outcomes(rates, 5) == [True] * 5


async def test_those_who_wait_for_a_lease_that_fails_fail_with_it(clock: Clock) -> None:
    asked, away = [], asyncio.Event()

    async def lease(tenant: str, wanted: int, returned: int) -> Granted:
        asked.append(tenant)
        await away.wait()
        raise Fault(errors.UNAVAILABLE, "no manager")

    rates = Rates(lease, clock)
    waiting = [asyncio.create_task(rates.pass_one("a", 50)) for _ in range(10)]
    await asyncio.sleep(0)
    away.set()
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(end) for end in ended] == [Fault] * 10
    assert len(asked) == 1
    clock.now_s += 0.1
    with pytest.raises(Fault, match="no manager"):
        await rates.pass_one("a", 50)
    assert len(asked) == 2, "whoever comes later asks anew"


async def test_what_was_not_used_within_a_second_is_given_back(clock: Clock) -> None:
    bucket = Bucket(10)
    rates = Rates(bucket.lease, clock)
    assert await outcomes(rates, 1) == [True]
    clock.now_s += 1.0
    assert await outcomes(rates, 1) == [True]
    assert bucket.asked == [(5, 0), (5, 4)]


async def test_a_tenant_without_a_rate_asks_nobody(clock: Clock) -> None:
    bucket = Bucket(0)
    await Rates(bucket.lease, clock).pass_one("a", 0)
    assert not bucket.asked


def receiving(*messages: Message) -> Receive:
    """What comes, and then nothing more."""
    waiting = list(messages)

    async def receive() -> Message:
        if waiting:
            return waiting.pop(0)
        await asyncio.Event().wait()
        raise AssertionError("nothing comes")

    return receive


async def test_a_body_that_does_not_come_is_given_up() -> None:
    part: Message = {"type": "http.request", "body": b"{", "more_body": True}
    receive = impatient(receiving(part), 0.05)
    assert await receive() == part
    with pytest.raises(Fault) as caught:
        await receive()
    assert caught.value.kind is errors.REQUEST_TIMEOUT


async def test_behind_a_body_one_may_wait_for_ever() -> None:
    whole: Message = {"type": "http.request", "body": b"", "more_body": False}
    receive = impatient(receiving(whole), 0.01)
    await receive()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await receive()


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8080", "127.0.0.1:80", "[::1]:80", "[::1]", "10.0.0.7"]
)
async def test_without_keys_one_answers_to_localhost_and_addresses(host: str) -> None:
    scope = {"type": "http", "method": "POST", "headers": [(b"host", host.encode())]}
    assert await Keyless("default").admit(scope) == "default"


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.nip.io"]
)
async def test_without_keys_one_answers_to_no_other_name(host: str) -> None:
    scope = {"type": "http", "method": "GET", "headers": [(b"host", host.encode())]}
    with pytest.raises(Fault) as caught:
        await Keyless("default").admit(scope)
    assert caught.value.kind is errors.MISDIRECTED


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),  # noqa: S104 - a word to look at
        ("", False),
        ("box", False),
    ],
)
def test_loopback_is_what_only_this_machine_reaches(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
