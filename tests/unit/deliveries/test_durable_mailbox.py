"""The machine of a durable mailbox: a store that fails, loses answers and is read by the next home,
an entity that fails, producers that send again; and each rule by itself."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

from shardbus.deliveries import durable_mailbox
from shardbus.deliveries.durable_mailbox import (
    QUIET_LOOKS,
    Acceptance,
    AppendMail,
    Confirm,
    DurableLimits,
    DurableMailbox,
    Effect,
    GiveUp,
    Hand,
    HandOutcome,
    Mail,
    OpenJournal,
    PassBy,
    Quiet,
    Refuse,
    StoredMail,
    StoreStep,
    TrimJournal,
    read_mail,
    write_mail,
)
from shardbus.deliveries.numbers import DeliveryNumber, NumberKind
from shardbus.deliveries.record import DeliveryRecord, ReceiverDecision
from tests.markers import long_only

LIMITS = DurableLimits(messages=20, size=2000, retry=1.0, retry_max=8.0, attempts=3)


def number_of(producer: str, seq: int, before: int = 0, era: int = 0) -> DeliveryNumber:
    return DeliveryNumber(NumberKind.DELIVER, producer, era, seq, before, b"")


def mail_of(producer: str, seq: int, *, is_ask: bool = True) -> Mail:
    stored = StoredMail(0, "!add", number_of(producer, seq))
    return Mail([(producer, seq)], stored, is_ask, write_mail(stored))


def box_of(*, fresh: bool = True, limits: DurableLimits = LIMITS) -> DurableMailbox:
    return DurableMailbox(limits, is_fresh=fresh)


def kinds(effects: list[Effect]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def stored(box: DurableMailbox, *mails: Mail) -> list[Effect]:
    """Take messages, and let the store have them."""
    effects: list[Effect] = []
    for mail in mails:
        effects += box.arrives(mail)
    while box.step is StoreStep.APPEND:
        effects += box.on_appended()
    return effects


def test_a_message_is_confirmed_and_handed_over_once_it_is_stored() -> None:
    box = box_of()
    mail = mail_of("p", 1)
    assert box.arrives(mail) == [AppendMail(0, (mail,))]
    assert kinds(box.on_appended()) == ["Confirm", "Hand"]
    assert (box.in_hand, mail.place, box.last) == (mail, 1, 1)


def test_messages_that_arrive_meanwhile_share_the_next_append() -> None:
    box = box_of()
    first, *others = (mail_of("p", seq) for seq in (1, 2, 3))
    box.arrives(first)
    assert [box.arrives(mail) for mail in others] == [[], []]
    assert kinds(box.on_appended()) == ["Confirm", "AppendMail", "Hand"]
    assert kinds(box.on_appended()) == ["Confirm", "Confirm"]
    assert [mail.place for mail in (first, *others)] == [1, 2, 3]


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("bound", ["APPEND_MAX", "APPEND_BYTES"])
def test_an_append_ends_at_its_bounds_and_the_rest_is_the_next_one(
    monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    mails = [mail_of("p", seq) for seq in range(1, 9)]
    each = len(mails[0].data) if bound == "APPEND_BYTES" else 1
    monkeypatch.setattr(durable_mailbox, bound, most * each)
    box, groups = box_of(), list[tuple[Mail, ...]]()
    effects = [effect for mail in mails for effect in box.arrives(mail)]
    while box.step is StoreStep.APPEND:
        groups += [effect.group for effect in effects if isinstance(effect, AppendMail)]
        effects = box.on_appended()
    assert [mail for group in groups for mail in group] == mails
    full, rest = divmod(len(mails) - 1, most)
    assert [len(group) for group in groups] == [1, *[most] * full, *[rest] * (rest > 0)]


def test_messages_are_handled_one_at_a_time_in_order() -> None:
    box = box_of()
    mails = [mail_of("p", seq) for seq in (1, 2, 3)]
    stored(box, *mails)
    for mail, following in zip(mails, [*mails[1:], None], strict=True):
        assert box.in_hand is mail
        box.on_outcome(mail, HandOutcome.DONE, 0.0)
        assert box.in_hand is following
    assert box.is_empty


def test_an_ask_waits_for_the_messages_before_it_and_not_for_a_failed_one() -> None:
    box = box_of()
    assert kinds(box.arrives(Mail(["a"]))) == ["PassBy"]
    mail, behind = mail_of("p", 1), Mail(["b"])
    box.arrives(mail)
    assert box.arrives(behind) == []
    assert kinds(box.on_appended()) == ["Confirm", "Hand", "PassBy"]
    assert kinds(box.arrives(Mail(["c"]))) == ["PassBy"]
    stored(box, mail_of("p", 2))
    late = Mail(["d"])
    box.arrives(late)
    effects = box.on_outcome(mail, HandOutcome.FAILED, 0.0, "no")
    assert PassBy(late) in effects
    assert box.failing is mail
    assert kinds(box.arrives(Mail(["e"]))) == ["PassBy"]


def test_asks_do_not_wait_for_a_store_that_is_away() -> None:
    box = box_of()
    tell, ask = mail_of("home", 1, is_ask=False), Mail(["a"])
    box.arrives(tell)
    box.arrives(ask)
    effects = box.on_append_failed(ValueError("away"), 0.0, definite=False)
    assert effects == [PassBy(ask)]
    assert kinds(box.tick(0.5)) == []
    assert box.tick(1.0) == [OpenJournal(0)]


def test_an_append_that_failed_refuses_deliveries_and_keeps_tells() -> None:
    box = box_of()
    delivery, tell = mail_of("p", 1), mail_of("home", 1, is_ask=False)
    assert box.accept(number_of("p", 1), "m", 9) is Acceptance.TAKEN
    box.arrives(delivery)
    box.arrives(tell)
    box.on_appended()
    again = mail_of("p", 2)
    box.accept(number_of("p", 2, 1), "m", 9)
    box.arrives(again)
    effects = box.on_append_failed(ValueError("away"), 0.0, definite=True)
    assert [type(effect) for effect in effects] == [Refuse]
    assert list(box.arrived) == [tell]
    assert box.accept(number_of("p", 3, 2), "m", 9) is Acceptance.GAP
    assert box.tick(1.0) == [AppendMail(1, (tell,))], "a definite failure leaves the end known"


def test_a_tell_that_was_stored_all_the_same_is_not_appended_again() -> None:
    box = box_of()
    tell = mail_of("home", 7, is_ask=False)
    box.arrives(tell)
    box.on_append_failed(ValueError("no answer"), 0.0, definite=False)
    assert box.tick(1.0) == [OpenJournal(0)]
    effects = box.on_opened(1, [(tell.stored, tell.data)], 1)
    assert kinds(effects) == ["Confirm", "Hand"]
    assert (tell.place, box.waiting, list(box.arrived)) == (1, 1, [])


def test_another_end_is_read_before_the_next_append() -> None:
    box = box_of()
    mine, left = mail_of("p", 5), mail_of("q", 1)
    box.arrives(mine)
    assert box.on_conflict() == [OpenJournal(0)]
    effects = box.on_opened(4, [(left.stored, left.data), (None, b"?")], 6)
    assert effects[-1] == OpenJournal(5, reads=True)
    effects = box.on_opened(6, [(left.stored, left.data)], 6)
    assert kinds(effects) == ["Confirm", "AppendMail", "Hand"]
    assert (box.last, box.trimmed) == (6, 3)


@pytest.mark.parametrize(
    ("number", "decision"),
    [
        (number_of("p", 6, 5), Acceptance.TAKEN),
        (number_of("p", 5, 4), Acceptance.REPEATED),
        (number_of("p", 4), Acceptance.REPEATED),
        (number_of("p", 7, 6), Acceptance.GAP),
        (number_of("p", 9), Acceptance.TAKEN),
        (number_of("p", 9, era=0), Acceptance.TAKEN),
        (number_of("q", 3, 2), Acceptance.GAP),
        (number_of("q", 3), Acceptance.TAKEN),
        (number_of("r", 9, era=1), Acceptance.STALE),
    ],
)
def test_deliveries_of_a_producer_are_taken_in_order(
    number: DeliveryNumber, decision: Acceptance
) -> None:
    box = box_of()
    for earlier in (number_of("p", 5), number_of("r", 1, era=2)):
        assert box.accept(earlier, "m", 1) is Acceptance.TAKEN
    assert box.accept(number, "m", 1) is decision


def test_a_copy_of_a_delivery_that_waits_for_the_store_waits_with_it() -> None:
    box = box_of()
    mail = mail_of("p", 1)
    box.accept(number_of("p", 1), "m", 1)
    box.arrives(mail)
    assert box.accept(number_of("p", 1), "copy", 1) is Acceptance.WAITS
    assert mail.messages == [("p", 1), "copy"]
    box.on_appended()
    assert box.accept(number_of("p", 1), "copy", 1) is Acceptance.REPEATED


def test_a_mailbox_is_full_with_the_handled_messages_that_are_not_trimmed() -> None:
    box = box_of(limits=DurableLimits(messages=4, size=10_000))
    for seq in (1, 2, 3):
        mail = mail_of("home", seq)
        stored(box, mail)
        box.step = StoreStep.TRIM  # under way all the time
        box.on_outcome(mail, HandOutcome.DONE, 0.0)
        box.step = StoreStep.NONE
    assert box.has_room(1)
    box.arrives(mail_of("home", 4))
    assert not box.has_room(1)
    assert box.accept(number_of("p", 1), "m", 1) is Acceptance.FULL


def test_a_mailbox_is_full_in_bytes_and_takes_one_message_of_any_size() -> None:
    box = box_of(limits=DurableLimits(messages=9, size=50))
    assert box.has_room(1000)
    box.arrives(mail_of("home", 1))
    assert not box.has_room(50)


def test_poison_is_skipped_then_given_up_and_the_next_one_follows() -> None:
    box = box_of()
    bad, good = mail_of("p", 1), mail_of("p", 2)
    stored(box, bad, good)
    now, pauses = 0.0, []
    for _ in range(2):
        assert kinds(box.on_outcome(bad, HandOutcome.FAILED, now, "no")) == []
        assert box.resumes_at is not None
        pauses.append(box.resumes_at - now)
        now = box.resumes_at
        assert box.tick(now) == [Hand(bad)]
    assert pauses == [1.0, 2.0]
    assert box.on_outcome(bad, HandOutcome.FAILED, now, "no") == [Hand(bad)]
    assert bad.skips
    assert box.on_outcome(bad, HandOutcome.NOT_READY, now, "away") == []
    now = box.resumes_at or 0.0
    assert box.tick(now) == [Hand(bad)]
    effects = box.on_outcome(bad, HandOutcome.DONE, now)
    assert effects == [GiveUp(bad, "poison"), Hand(good)]


def test_a_store_that_fails_does_not_make_poison() -> None:
    box = box_of()
    mail = mail_of("p", 1)
    stored(box, mail)
    for _ in range(20):
        box.on_outcome(mail, HandOutcome.NOT_READY, 0.0, "away")
        box.tick(box.resumes_at or 0.0)
    assert (mail.failures, mail.skips, box.in_hand) == (0, False, mail)


def test_without_skipping_a_message_is_tried_for_ever_until_an_operator_skips_it() -> None:
    box = box_of(limits=DurableLimits(attempts=2, skips_poison=False))
    mail, behind = mail_of("p", 1), mail_of("p", 2)
    stored(box, mail, behind)
    for _ in range(5):
        box.on_outcome(mail, HandOutcome.FAILED, 0.0, "no")
        box.tick(box.resumes_at or 0.0)
    assert not box.skip(1), "it is being handled"
    box.on_outcome(mail, HandOutcome.FAILED, 0.0, "no")
    assert not box.skip(2), "it is not the first"
    assert box.skip(1)
    assert box.retry() == [Hand(mail)]
    effects = box.on_outcome(mail, HandOutcome.DONE, 0.0)
    assert effects == [GiveUp(mail, "skipped"), Hand(behind)]


def quiet(box: DurableMailbox) -> list[Effect]:
    """Return the effects of the look after which a mailbox counts as quiet."""
    effects: list[Effect] = []
    for _ in range(QUIET_LOOKS + 1):
        assert effects == []
        effects = box.look()
    return effects


def handled(*, soon: bool = False) -> DurableMailbox:
    """Return a mailbox whose only message is handled."""
    box = box_of(limits=DurableLimits(trims_soon=soon))
    mail = mail_of("p", 1)
    stored(box, mail)
    box.on_outcome(mail, HandOutcome.DONE, 0.0)
    return box


def test_a_quiet_mailbox_leaves_nothing() -> None:
    box = handled()
    assert quiet(box) == [TrimJournal(1, True)]
    assert box.on_trimmed(1, forgotten=True) == [Quiet()]
    assert box.last == 0


def test_messages_are_trimmed_by_the_part_of_the_bound_or_soon_where_no_record_is_stored() -> None:
    assert handled(soon=True).look() == [TrimJournal(1, False)]
    box = box_of()
    for seq in range(1, 6):
        mail = mail_of("p", seq)
        stored(box, mail)
        effects = box.on_outcome(mail, HandOutcome.DONE, 0.0)
    assert effects == [TrimJournal(5, False)]


def test_a_message_that_arrives_while_the_journal_is_forgotten_begins_a_new_one() -> None:
    box = handled()
    quiet(box)
    later = mail_of("p", 2)
    assert box.arrives(later) == []
    assert box.on_trimmed(1, forgotten=True) == [AppendMail(0, (later,))]


def test_a_journal_that_may_be_forgotten_is_read_before_the_next_append() -> None:
    box = handled()
    quiet(box)
    later = mail_of("p", 2)
    box.arrives(later)
    assert box.on_trim_failed(forgets=True) == [OpenJournal(1)]
    assert box.on_opened(1, [], 0) == [AppendMail(0, (later,))]


def test_a_shard_that_stops_trims_hands_nothing_over_and_leaves_the_rest() -> None:
    box = box_of()
    done, under_way = mail_of("p", 1), mail_of("p", 2)
    stored(box, done)
    box.arrives(under_way)
    assert box.stop() == []
    assert not box.is_settled
    box.on_outcome(done, HandOutcome.DONE, 0.0)
    arrived = mail_of("p", 3)
    box.arrives(arrived)
    assert kinds(box.on_appended()) == ["Confirm", "TrimJournal"]
    box.on_trimmed(1, forgotten=False)
    assert box.is_settled
    assert box.leave() == [("p", 3)]


# ---- a model of everything around it


@dataclass
class Store:
    """The journal of one mailbox, and the answers that are on their way."""

    fence: int = 0
    entries: list[bytes] = field(default_factory=list)
    trimmed: int = 0

    @property
    def last(self) -> int:
        return self.trimmed + len(self.entries)


class World:
    """An entity with state, its homes one after the other, producers that send again, and dice."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.store, self.record = Store(), DeliveryRecord()
        self.applied: list[tuple[str, int]] = []
        self.confirmed: set[tuple[str, int]] = set()
        self.given_up: set[tuple[str, int]] = set()
        self.sent = dict.fromkeys("pq", 0)
        self.unconfirmed: dict[str, list[int]] = {"p": [], "q": []}
        self.now, self.fence = 0.0, 0
        self.faults = True
        self.pending: list[Any] = []
        self.new_home()

    def new_home(self) -> None:
        """Let the home die; the next one reads the journal, as its list says."""
        self.fence += 1
        self.pending = []
        self.box = box_of(fresh=not self.store.last)
        self.act(self.box.doubt() if self.store.last else [])

    def act(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Confirm(mail=mail):
                    assert mail.stored is not None
                    number = mail.stored.number
                    self.confirmed.add((number.producer, number.seq))
                    if number.seq in self.unconfirmed[number.producer]:
                        self.unconfirmed[number.producer].remove(number.seq)
                case GiveUp(mail=mail):
                    assert mail.stored is not None
                    self.given_up.add((mail.stored.producer, mail.stored.number.seq))
                case OpenJournal() | AppendMail() | TrimJournal() | Hand():
                    self.pending.append(effect)
                case _:
                    pass
        self.box.check()

    def send(self) -> None:
        """Let a producer send its unconfirmed messages, in order, and maybe a new one."""
        producer = self.dice.choice("pq")
        if self.faults and self.dice.random() < 0.6 and len(self.unconfirmed[producer]) < 5:
            self.sent[producer] += 1
            self.unconfirmed[producer].append(self.sent[producer])
        before = 0
        for seq in list(self.unconfirmed[producer]):
            number = number_of(producer, seq, before)
            before = seq
            if self.dice.random() < 0.2 and self.faults:
                continue  # it is lost on the way
            accepted = self.box.accept(number, (producer, seq), 20)
            if accepted is Acceptance.TAKEN:
                self.act(self.box.arrives(mail_of(producer, seq)))
            elif accepted is Acceptance.REPEATED:
                assert (producer, seq) in self.confirmed
                self.unconfirmed[producer].remove(seq)

    def answer(self) -> None:
        """Let one effect happen that is under way."""
        if not self.pending:
            return
        effect = self.pending.pop(self.dice.randrange(len(self.pending)))
        fails = self.faults and self.dice.random() < 0.3
        applied = not fails or self.dice.random() < 0.5
        store, box = self.store, self.box
        match effect:
            case Hand(mail=mail):
                self.handle(mail, fails=fails)
            case OpenJournal(after=after):
                first = max(after, store.trimmed) + 1
                some = store.entries[first - store.trimmed - 1 :][:3]
                page: list[Any] = [(read_mail(entry), entry) for entry in some]
                self.act(
                    box.on_open_failed(self.now)
                    if fails
                    else box.on_opened(first, page, store.last)
                )
            case AppendMail(after=after, group=group):
                if after != store.last:
                    self.act(box.on_conflict())
                    return
                if applied:
                    store.entries += [mail.data for mail in group]
                if fails:
                    error = ValueError("away")
                    self.act(box.on_append_failed(error, self.now, definite=not applied))
                else:
                    self.act(box.on_appended())
            case TrimJournal(upto=upto, forget=forget):
                if applied:
                    gone = max(0, min(upto, store.last) - store.trimmed)
                    del store.entries[:gone]
                    store.trimmed += gone
                    if forget and not store.entries:
                        store.trimmed = 0
                if fails:
                    self.act(box.on_trim_failed(forgets=forget))
                else:
                    self.act(box.on_trimmed(upto, forgotten=forget))

    def handle(self, mail: Mail, *, fails: bool) -> None:
        """Let the entity handle a message; a save of it may be stored, or not."""
        assert mail.stored is not None
        number = mail.stored.number
        key, box = (number.producer, number.seq), self.box
        if self.record.decide(number) is not ReceiverDecision.HANDLE:
            self.act(box.on_outcome(mail, HandOutcome.REPEATED, self.now))
            return
        if fails:
            kind = self.dice.choice((HandOutcome.FAILED, HandOutcome.NOT_READY))
            self.act(box.on_outcome(mail, kind, self.now, "no"))
            return
        if not mail.skips:
            self.applied.append(key)
        self.record.mark(number, 0)
        self.act(box.on_outcome(mail, HandOutcome.DONE, self.now))

    def step(self) -> None:
        self.now += self.dice.random()
        self.act(self.box.tick(self.now))
        roll = self.dice.random()
        if roll < 0.3:
            self.send()
        elif roll < 0.35:
            self.act(self.box.look())
        elif roll < 0.37 and self.faults:
            self.new_home()
        else:
            self.answer()


@pytest.mark.parametrize("seed", [*range(40), *long_only(*range(40, 400))])
def test_each_confirmed_message_takes_effect_once_and_in_order(seed: int) -> None:
    world = World(seed)
    for _ in range(400):
        world.step()
    world.faults = False
    for _ in range(4000):
        world.step()
        if world.box.is_empty and not world.store.last and not any(world.unconfirmed.values()):
            break
    else:
        pytest.fail("it does not come to rest")
    for producer in "pq":
        numbers = [seq for name, seq in world.applied if name == producer]
        assert numbers == sorted(set(numbers)), "once, in order"
    assert world.confirmed - set(world.applied) <= world.given_up
    assert len(world.confirmed) == sum(world.sent.values())
