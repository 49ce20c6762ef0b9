"""A message may wait for what another thread finds out: whoever it is for gets all in order, and nobody else waits."""

from __future__ import annotations

import select
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cluster.core.members import Member, Role
from holdfast.cluster.core.messages import Applied, Send
from holdfast.cluster.core.parity_messages import Given, Values
from holdfast.cluster.parity.stripe_set import StripeSet
from holdfast.cluster.server.departures import Departures

ONE, OTHER = Member(Role.SERVER, 1, 1), Member(Role.SERVER, 2, 1)


class Sent:
    """What went out."""

    def __init__(self) -> None:
        self.sends: list[Send] = []

    def __call__(self, sends: Iterable[Send]) -> None:
        self.sends.extend(sends)

    def to(self, member: Member) -> list[int]:
        """The numbers of messages; that of a syndrome is what was found."""
        found = [each.message for each in self.sends if each.to == member]
        return [each.records if isinstance(each, Given | Values) else each.number for each in found]


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def departures(sent: Sent) -> Iterator[Departures]:
    made = Departures(sent)
    yield made
    if not made._is_closed:
        made.close()


def syndrome(to: Member, records: Any) -> Send:
    return Send(to, Given(1, StripeSet.run(0, 1), records, (to,), {}))


def value(to: Member, records: Any) -> Send:
    return Send(to, Values(1, StripeSet.run(0, 1), records, {}))


def is_readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])


def test_what_is_behind_a_syndrome_waits_and_what_is_for_others_does_not(departures: Departures, sent: Sent) -> None:
    found: Future[int] = Future()
    departures.send([Send(ONE, Applied(1)), syndrome(ONE, found), Send(ONE, Applied(3)), Send(OTHER, Applied(4))])
    departures.release()
    assert sent.to(ONE) == [1] and sent.to(OTHER) == [4]
    found.set_result(2)
    assert is_readable(departures.fd)
    departures.send([Send(ONE, Applied(4))])  # before it was looked what is complete
    departures.release()
    assert sent.to(ONE) == [1, 2, 3, 4]
    departures.send([Send(ONE, Applied(5))])
    assert sent.to(ONE) == [1, 2, 3, 4, 5]


def test_nobody_is_woken_for_what_has_left(departures: Departures, sent: Sent) -> None:
    """A descriptor that stays readable would keep a server's loop from ever waiting again."""
    first, second = Future[int](), Future[int]()
    is_set, may_tell = threading.Event(), threading.Event()
    second.add_done_callback(lambda _: (is_set.set(), may_tell.wait()))  # ours comes behind this one
    departures.send([syndrome(ONE, first), syndrome(OTHER, second)])
    thread = threading.Thread(target=second.set_result, args=(2,))
    thread.start()
    is_set.wait()
    first.set_result(1)
    departures.release()
    assert sent.to(ONE) == [1] and sent.to(OTHER) == [2]
    may_tell.set()
    thread.join()
    departures.release()
    assert not is_readable(departures.fd)


def test_closing_waits_for_what_is_missing(departures: Departures, sent: Sent) -> None:
    found: Future[int] = Future()
    departures.send([syndrome(ONE, found), Send(ONE, Applied(2))])
    timer = threading.Timer(0.01, found.set_result, (1,))
    timer.start()
    departures.close()
    assert sent.to(ONE) == [1, 2]


def test_an_error_of_the_other_thread_comes_out_where_its_result_would_leave(departures: Departures) -> None:
    found: Future[int] = Future()
    departures.send([syndrome(ONE, found)])
    found.set_exception(ArithmeticError("no such parity"))
    with pytest.raises(ArithmeticError, match="no such parity"):
        departures.release()


@given(st.lists(st.tuples(st.sampled_from([ONE, OTHER]), st.booleans()), max_size=12), st.data())
def test_each_member_gets_all_in_order_whatever_is_found_out_first(
    wanted: list[tuple[Member, bool]], data: st.DataObject
) -> None:
    sent = Sent()
    departures, missing = Departures(sent), dict[int, Future[int]]()
    for number, (member, waits) in enumerate(wanted):
        if waits:
            missing[number] = Future()
        waiting = data.draw(st.sampled_from([syndrome, value]))
        departures.send([waiting(member, missing[number]) if waits else Send(member, Applied(number))])
        if missing and data.draw(st.booleans()):
            found = data.draw(st.sampled_from(sorted(missing)))
            missing.pop(found).set_result(found)
        if data.draw(st.booleans()):
            departures.release()
    for number, each in missing.items():
        each.set_result(number)
    departures.release()
    for member in (ONE, OTHER):
        assert sent.to(member) == [number for number, (to, _) in enumerate(wanted) if to == member]
    departures.close()
