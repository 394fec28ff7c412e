"""The log of a topic's events: whoever comes back, at any place, ends with the same state (E16)."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from minflinkd.rest.events.log import EVERYTHING, Event, EventLog, Parts, Place, View

NAMES = ("etl-a", "etl-b", "ads")
ETL = View("etl", lambda name: name.startswith("etl-"))


def job(number: int, version: int) -> Event:
    name = NAMES[number % len(NAMES)]
    return Event("job", b'"%d:%d"' % (number, version), key=f"job/{number}", job_name=name)


def gone(number: int) -> Event:
    name = NAMES[number % len(NAMES)]
    return Event("job-gone", b"%d" % number, key=f"job/{number}", job_name=name, gone=True)


def sample(version: int) -> Event:
    pieces = tuple((name, b'"%s:%d"' % (name.encode(), version)) for name in NAMES)
    return Event("sample", b'["all:%d"]' % version, parts=Parts(pieces, lambda found: b"[" + b",".join(found) + b"]"))


@dataclass
class Client:
    """Does what a browser does: keeps the last id, and the state that the events add up to."""

    view: View
    place: str | None = None
    jobs: dict[str, str] = field(default_factory=dict)
    samples: list[str] = field(default_factory=list)
    resets: int = 0

    def read(self, log: EventLog, cut: int | None) -> None:
        """Connect, read up to the end or to the byte `cut`, and lose the connection."""
        place = None if self.place is None else Place.parsed(self.place)
        if place is not None and log.goes_on(place, self.view):
            text = log.after(place.number, self.view)
            assert text is not None
        else:
            text = (b"event: reset\ndata: {}\n\n" if self.place is not None else b"") + log.whole(self.view)
        complete = text if cut is None else text[: cut % (len(text) + 1)]
        for block in complete.split(b"\n\n")[:-1]:  # what has no end does not count
            self._take(dict(line.split(": ", 1) for line in block.decode().split("\n")))

    def _take(self, fields: dict[str, str]) -> None:
        match fields.get("event"):
            case "job":
                number = fields["data"].strip('"').partition(":")[0]
                self.jobs[number] = fields["data"]
            case "job-gone":
                self.jobs.pop(fields["data"], None)
            case "sample":
                self.samples.append(fields["data"])
            case "reset":
                self.jobs, self.resets = {}, self.resets + 1
        self.place = fields.get("id", self.place)


Step = tuple[str, int]
STEPS = st.lists(
    st.tuples(st.sampled_from(["job", "gone", "sample", "read", "read"]), st.integers(0, 4000)), max_size=80
)


def played(log: EventLog, steps: list[Step], clients: list[Client], state: dict[str, str]) -> None:
    for number, (step, value) in enumerate(steps):
        match step:
            case "job":
                log.add(job(value % 6, number))
                state[str(value % 6)] = f'"{value % 6}:{number}"'
            case "gone" if str(value % 6) in state:
                log.add(gone(value % 6))
                del state[str(value % 6)]
            case "sample":
                log.add(sample(number))
            case "read":
                clients[value % len(clients)].read(log, value)
            case _:
                pass


@given(STEPS, st.integers(1, 8))
def test_who_comes_back_anywhere_ends_with_the_state(steps: list[Step], most: int) -> None:
    """Whatever was lost on the way, and however little is kept, it is the state of one that never broke."""
    log, state = EventLog("abc", most_told=most), dict[str, str]()
    clients = [Client(EVERYTHING), Client(ETL), Client(EVERYTHING)]
    played(log, steps, clients, state)
    for client in clients:
        client.read(log, None)
        seen = {n: text for n, text in state.items() if client.view.reaches(NAMES[int(n) % len(NAMES)])}
        assert client.jobs == seen


@given(STEPS)
def test_no_event_comes_twice_to_who_did_not_begin_anew(steps: list[Step]) -> None:
    """And no sample is left out, as long as it is kept."""
    log = EventLog("abc", most_told=10_000)
    client = Client(EVERYTHING)
    client.read(log, None)
    played(log, steps, [client], {})
    client.read(log, None)
    assert client.resets == 0
    assert client.samples == [f'["all:{n}"]' for n, (step, _) in enumerate(steps) if step == "sample"]


@given(st.lists(st.integers(1, 400), max_size=60), st.integers(1, 5), st.integers(100, 1000))
def test_what_only_tells_is_bounded(sizes: list[int], most: int, most_bytes: int) -> None:
    """In its number and in its bytes. The last event is kept whatever its size."""
    log = EventLog("abc", most_told=most, most_bytes=most_bytes)
    log.add(job(1, 1))
    for size in sizes:
        log.add(Event("sample", b"x" * size))
        told = log.size - len(job(1, 1).data)
        assert told <= max(most_bytes, size)
    assert len(log.state) == 1


def test_a_state_is_kept_once() -> None:
    log = EventLog("abc")
    for version in range(1000):
        log.add(job(1, version))
    assert log.size == len(job(1, 999).data)
    assert log.whole(EVERYTHING).count(b"event: ") == 1


def test_an_event_is_encoded_once_for_all_who_see_the_same() -> None:
    log = EventLog("abc")
    log.add(job(0, 1))
    log.add(sample(2))
    one, other = log.after(0, EVERYTHING), log.after(0, View("", lambda _: True))
    assert one is other
    assert log.after(0, ETL) != one


def test_samples_are_put_together_of_what_may_be_seen() -> None:
    log = EventLog("abc")
    log.add(sample(7))
    text = log.after(0, ETL)
    assert text is not None
    assert b'data: ["etl-a:7","etl-b:7"]\n' in text
    assert b"ads" not in text


def test_a_place_of_another_log_or_view_is_none_of_this() -> None:
    """A place says in which log and for whom: after a restart, or with other rights, all begins anew."""
    log = EventLog("abc")
    log.add(job(0, 1))
    assert log.goes_on(Place("abc", "", 1), EVERYTHING)
    for place in (Place("abd", "", 1), Place("abc", "etl", 1), Place("abc", "", 2)):
        assert not log.goes_on(place, EVERYTHING)
    assert Place.parsed(str(Place("abc", "0f", 12))) == Place("abc", "0f", 12)
    for text in ("", "abc", "abc-", "abc.-x", ".-1", "x" * 200, "abc.-\u0661"):
        assert Place.parsed(text) is None
