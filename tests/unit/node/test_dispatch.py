"""The dispatcher: where each run and each control message goes, and the dropped and counted
ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from shardbus.config.settings import ShardingSettings
from shardbus.entities.dead_letters import DeadLetters
from shardbus.errors import UnknownEntityType
from shardbus.ids import NodeId
from shardbus.membership.singleton import messages as handover
from shardbus.node.dispatch import Dispatcher
from shardbus.node.rpc import NodeRpc
from shardbus.sharding import events, messages
from shardbus.transport.permissions import CLIENT, NEWCOMER, NODE, Permissions, Role
from shardbus.wire.batch import AskRun, Control, Flush, Relayed, TellRun
from shardbus.wire.control import (
    Describe,
    Goodbye,
    Members,
    Refusals,
    TypeInfo,
    decode_control,
    encode_control,
)
from shardbus.wire.schema import Interface

ME, PEER, OTHER = NodeId("a", 1, 1), NodeId("b", 1, 2), NodeId("c", 1, 3)
PAGE = "page"
FORWARDED = -77
MARK = -7
ONLY_CARTS = Permissions(Role.CLIENT, frozenset({"cart"}))
ROLES = {"client": CLIENT, "newcomer": NEWCOMER, "node": NODE, "only carts": ONLY_CARTS}


class Session:
    """A session that records the messages sent on it. `mark`: the mark of its tells."""

    def __init__(self, role: Permissions, tag: NodeId = PEER) -> None:
        self.permissions, self.tag, self.name, self.mark = role, tag, str(tag), MARK
        self.sent: list[object] = []
        self.replies: list[tuple[int, bytes]] = []
        self.failures: dict[int, str] = {}
        self.outbox = self

    def control(self, control: Any) -> None:
        self.sent.append(decode_control(control))

    def reply(self, corr: int, payload: bytes) -> None:
        self.replies.append((corr, payload))

    def fail(self, corr: int, error: Exception) -> None:
        assert isinstance(error, UnknownEntityType)
        self.failures[corr] = str(error)


class Around:
    """A dispatcher with one region, and the log of its collaborators' input."""

    def __init__(self) -> None:
        self.log: list[tuple[object, ...]] = []
        self.counted: dict[str, int] = {}
        self.coordinates = True
        self.elsewhere: tuple[NodeId, ...] = ()
        self.hosting: tuple[NodeId, ...] = (ME, PEER)
        self.members = {ME, PEER, OTHER}
        self.linked = {OTHER}
        self.region: Any = SimpleNamespace(
            on_tells=lambda s, run: self.log.append(("tells", run)),
            on_asks=lambda s, run: self.log.append(("asks", run)),
            on_relayed=lambda s, message: self.log.append(("relayed", message)),
            on_flush=lambda s, flush: self.log.append(("flush", flush)),
            router=SimpleNamespace(
                has_shard=lambda shard: shard in ("1", "2"),
                handle=lambda event: self.log.append(("region", event)),
                region=SimpleNamespace(instances=3),
            ),
            entity_type=SimpleNamespace(
                interface=Interface("page", 2, "crc32/2", router="nearest")
            ),
        )
        self.region.table = self.region
        singleton: Any = SimpleNamespace(
            received=lambda node, message: self.log.append(("singleton", node, message)),
            type_missing=lambda node: self.log.append(("type missing", node)),
            coordinator=SimpleNamespace(
                received=lambda node, message: self.log.append(("coordinator", node, message))
            ),
        )
        rpc: Any = SimpleNamespace(
            answer_questions=lambda s, run: self.log.append(("question", run))
        )
        drops: Any = SimpleNamespace(
            mark=lambda session: 0,
            mark_forwarded=lambda session, via: FORWARDED,
            drop=lambda *drop: self.log.append(("drop", *drop)),
            relay="relay",
        )
        refused: Any = SimpleNamespace(
            record=lambda name, message, relay: self.log.append(("refusals", name, message, relay))
        )
        self.letters = DeadLetters(lambda mark: "", lambda: 5.0)
        self.letters.keep_strangers(ShardingSettings())
        self.dispatcher = Dispatcher(
            {PAGE: self.region},
            {PAGE: singleton},
            rpc,
            drops,
            refused,
            self.letters,
            lambda: self.hosting,
            lambda node, name: self.coordinates,
            lambda name: self.elsewhere,
        )
        endpoint: Any = SimpleNamespace(
            node=ME,
            count_drop=self._count,
            is_member=lambda node: node in self.members,
            has_session=lambda node: node in self.linked,
            departures=SimpleNamespace(
                on_notice=lambda node: self.log.append(("believed", node)),
                verify=lambda session, node: self.log.append(("verified", node)),
            ),
        )
        self.dispatcher.attach(endpoint)

    def _count(self, reason: str) -> None:
        self.counted[reason] = self.counted.get(reason, 0) + 1

    def control(self, session: Any, message: object, name: str = PAGE) -> None:
        self.dispatcher.on_control(session, encode_control(name, message))


@pytest.fixture
def around() -> Around:
    return Around()


def tells(name: str) -> TellRun:
    return TellRun(name, "add", ["x", "y"], [b"1", b"2"])


def asks(name: str) -> AskRun:
    return AskRun(name, "add", 1000, ["x", "y"], [b"1", b"2"], [4, 5])


# Runs


@pytest.mark.parametrize(
    ("role", "name", "reason"),
    [
        ("client", PAGE, ""),
        ("node", PAGE, ""),
        ("client", "none", "unknown_type"),
        ("newcomer", PAGE, "not_allowed"),
        ("newcomer", "none", "not_allowed"),
        ("only carts", PAGE, "not_allowed"),
    ],
)
def test_tells_go_to_their_region_or_are_counted_and_reported(
    around: Around, role: str, name: str, reason: str
) -> None:
    session: Any = Session(ROLES[role])
    run = tells(name)
    around.dispatcher.on_tells(session, run)
    if not reason:
        assert (around.log, around.counted) == ([("tells", run)], {})
    else:
        assert around.log == [("drop", MARK, name, reason, 2)]
        assert around.counted == {reason: 1}
    kept = [
        (letter.entity_type, letter.entity_id, letter.reason, letter.payload)
        for letter in around.letters
    ]
    assert kept == [(name, entity_id, reason, None) for entity_id in "xy" if reason]


@pytest.mark.parametrize(
    ("role", "name", "goes", "reason"),
    [
        ("client", PAGE, "asks", ""),
        ("node", PAGE, "asks", ""),
        ("client", "none", "", "unknown_type"),
        ("newcomer", PAGE, "", "not_allowed"),
        ("only carts", PAGE, "", "not_allowed"),
        ("node", NodeRpc.TYPE, "question", ""),
        ("client", NodeRpc.TYPE, "", "not_allowed"),
        ("newcomer", NodeRpc.TYPE, "", "not_allowed"),
    ],
)
def test_every_ask_is_handed_on_or_fails(
    around: Around, role: str, name: str, goes: str, reason: str
) -> None:
    session: Any = Session(ROLES[role])
    run = asks(name)
    around.dispatcher.on_asks(session, run)
    if goes:
        assert (around.log, session.failures) == ([(goes, run)], {})
    else:
        assert around.log == []
        assert set(session.failures) == {4, 5}
    assert around.counted == ({reason: 1} if reason else {})
    is_letter = reason and name != NodeRpc.TYPE
    kept = [(letter.entity_id, letter.reason, letter.answered) for letter in around.letters]
    assert kept == [(entity_id, reason, True) for entity_id in "xy" if is_letter]


@pytest.mark.parametrize("corr", [0, 9])
@pytest.mark.parametrize(
    ("role", "name", "goes", "counted"),
    [
        ("node", PAGE, True, {}),
        ("node", "none", False, {"unknown_type": 1}),
        ("client", PAGE, False, {"not_allowed": 1}),
        ("newcomer", PAGE, False, {"not_allowed": 1}),
    ],
)
def test_only_nodes_forward_and_a_forwarded_ask_that_is_refused_fails(
    around: Around, role: str, name: str, goes: bool, counted: dict[str, int], corr: int
) -> None:
    session: Any = Session(ROLES[role])
    message = Relayed(name, "1", "x", "add", b"1", corr, 1000, 1)
    around.dispatcher.on_relayed(session, message)
    effects = [("drop", FORWARDED, name, "unknown_type", 1)] if name == "none" and not corr else []
    assert around.log == ([("relayed", message)] if goes else effects)
    assert around.counted == counted
    kept = [(letter.entity_id, letter.reason, letter.answered) for letter in around.letters]
    assert kept == [("x", reason, bool(corr)) for reason in counted]
    assert list(session.failures) == ([corr] if corr and not goes else [])


@pytest.mark.parametrize(
    ("role", "name", "goes", "echo"),
    [
        ("client", PAGE, True, False),
        ("node", "none", False, True),
        ("newcomer", PAGE, False, False),
    ],
)
def test_a_flush_reaches_its_region_and_comes_back_at_once_without_one(
    around: Around, role: str, name: str, goes: bool, echo: bool
) -> None:
    session: Any = Session(ROLES[role])
    flush = Flush(name, "1", 9, 1000, 1)
    around.dispatcher.on_flush(session, flush)
    assert around.log == ([("flush", flush)] if goes else [])
    assert session.replies == ([(9, b"")] if echo else [])
    assert around.counted == ({} if goes or echo else {"not_allowed": 1})


# Messages of machines

REGISTER = messages.Register(PEER, False, "crc32/2", ())
HOME = messages.Home("1", PEER, 4)
STARTED = messages.ShardStarted((HOME,))
HOST = messages.HostShard(3, (HOME,))
HOMES = messages.GetShardHome(("1", "none"))


@pytest.mark.parametrize("message", [REGISTER, STARTED])
def test_what_regions_send_goes_to_the_coordinator(around: Around, message: object) -> None:
    around.control(Session(NODE), message)
    assert around.log == [("coordinator", PEER, message)]


def test_what_a_coordinator_sends_goes_to_the_region(around: Around) -> None:
    around.control(Session(NODE), HOST)
    assert around.log == [("region", events.MessageReceived(PEER, HOST))]


@pytest.mark.parametrize("message", [HOST, handover.HandOverToMe(3)])
def test_a_member_that_cannot_coordinate_the_type_commands_nothing(
    around: Around, message: object
) -> None:
    around.coordinates = False
    around.control(Session(NODE), message)
    assert (around.log, around.counted) == ([], {"not_allowed": 1})


def test_hand_over_messages_go_to_the_singleton(around: Around) -> None:
    message = handover.HandOverToMe(3)
    around.control(Session(NODE), message)
    assert around.log == [("singleton", PEER, message)]


@pytest.mark.parametrize("role", ["client", "newcomer"])
@pytest.mark.parametrize("message", [REGISTER, HOST, handover.HandOverToMe(3)])
def test_only_members_send_messages_of_machines(around: Around, role: str, message: object) -> None:
    around.control(Session(ROLES[role]), message)
    assert (around.log, around.counted) == ([], {"not_allowed": 1})


def test_a_member_speaks_only_for_itself(around: Around) -> None:
    around.control(Session(NODE, OTHER), REGISTER)
    assert (around.log, around.counted) == ([], {"not_allowed": 1})


def test_a_client_learns_homes_of_shards_that_exist(around: Around) -> None:
    client: Any = Session(CLIENT)
    around.dispatcher.on_client(client)
    around.control(client, HOMES)
    expected = events.MessageReceived(PEER, messages.GetShardHome(("1",)))
    assert around.log == [("region", expected)]


def test_a_node_asks_the_coordinator_for_homes_of_shards_that_exist(around: Around) -> None:
    around.control(Session(NODE), HOMES)
    around.control(Session(NODE), messages.GetShardHome(("none", "neither")))
    assert around.log == [("coordinator", PEER, messages.GetShardHome(("1",)))]


def test_a_session_that_may_not_use_the_type_is_refused(around: Around) -> None:
    around.control(Session(ONLY_CARTS), HOMES)
    around.control(Session(ONLY_CARTS), Describe())
    assert (around.log, around.counted) == ([], {"not_allowed": 2})


# Types


@pytest.mark.parametrize(
    ("shard_of", "shards"), [(None, 2), (lambda entity_id: "1", 0)], ids=["hashed", "own function"]
)
def test_a_type_is_described_to_who_asks(around: Around, shard_of: Any, shards: int) -> None:
    around.region.entity_type.interface.shard_of = shard_of
    session: Any = Session(CLIENT)
    around.control(session, Describe())
    around.control(session, Describe(), "none")
    around.control(session, Describe(), "Pages")
    info = TypeInfo(True, "crc32/2", shards, 3, "nearest")
    unknown = TypeInfo(False, "", 0)
    assert session.sent == [info, unknown, TypeInfo(False, "", 0, similar=PAGE)]


def test_members_that_have_a_missing_type_are_named_to_who_asks_for_it(around: Around) -> None:
    session: Any = Session(CLIENT)
    around.elsewhere = (PEER, OTHER, ME, PEER)
    around.control(session, Describe(), "none")
    assert session.sent == [TypeInfo(False, "", 0, elsewhere=(PEER, OTHER, ME))]


def test_a_type_that_a_client_may_not_use_is_not_suggested(around: Around) -> None:
    session: Any = Session(CLIENT)
    session.permissions = Permissions(Role.CLIENT, frozenset({"pages"}))
    around.control(session, Describe(), "pages")
    assert session.sent == [TypeInfo(False, "", 0)]


def test_a_region_of_an_unknown_type_is_answered_that_it_is_unknown(around: Around) -> None:
    session: Any = Session(NODE)
    around.control(session, REGISTER, "none")
    around.control(session, STARTED, "none")
    assert session.sent == [TypeInfo(False, "", 0)]
    assert (around.log, around.counted) == ([], {"unknown_type": 2})
    around.control(session, TypeInfo(False, "", 0))
    assert around.log == [("type missing", PEER)]
    around.control(session, TypeInfo(True, "crc32/2", 2))
    assert around.log == [("type missing", PEER)], "it has the type"


# Clients and departures


def test_clients_learn_the_hosting_members_at_once_and_at_changes(around: Around) -> None:
    clients: list[Any] = [Session(CLIENT, ME), Session(CLIENT, OTHER)]
    for client in clients:
        around.dispatcher.on_client(client)
    around.hosting = (ME,)
    around.dispatcher.notify_clients(died=(PEER,))
    for client in clients:
        assert client.sent == [Members((ME, PEER)), Members((ME,), (PEER,))]


def test_refusals_of_another_node_are_recorded_under_its_name(around: Around) -> None:
    refusals = Refusals(((PAGE, "failed", 3),))
    around.control(Session(NODE), refusals)
    assert around.log == [("refusals", str(PEER), refusals, "relay")]


GONE = NodeId("d", 1, 4)


@pytest.mark.parametrize(
    ("role", "about", "expected", "counted"),
    [
        ("node", OTHER, [("believed", OTHER)], {}),
        ("client", OTHER, [("verified", OTHER)], {}),
        ("only carts", OTHER, [("verified", OTHER)], {}),
        ("newcomer", OTHER, [], {"not_allowed": 1}),
        ("node", PEER, [], {"early_notice": 1}),
        ("node", ME, [], {"early_notice": 1}),
        ("client", PEER, [], {"early_notice": 1}),
        ("node", GONE, [], {"late_notice": 1}),
        ("client", GONE, [], {"late_notice": 1}),
    ],
)
def test_a_departure_notice_counts_by_its_sender_and_its_subject(
    around: Around, role: str, about: NodeId, expected: Any, counted: dict[str, int]
) -> None:
    around.control(Session(ROLES[role]), Goodbye(about), "")
    assert (around.log, around.counted) == (expected, counted)


def test_a_clients_notice_about_a_node_without_sessions_here_ends_nothing(around: Around) -> None:
    around.linked.clear()
    around.control(Session(CLIENT), Goodbye(OTHER), "")
    assert (around.log, around.counted) == ([], {})


@pytest.mark.parametrize("role", ["client", "newcomer"])
def test_a_message_that_its_role_may_not_send_is_not_decoded(
    role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To decode 16 MiB of homes takes a second: whoever may not send them costs nothing."""

    def decoded(control: Control) -> object:
        raise AssertionError(f"decoded {control.tag}")

    monkeypatch.setattr("shardbus.node.dispatch.decode_control", decoded)
    around = Around()
    for cls in (*messages.MESSAGES, *handover.MESSAGES, TypeInfo, Members, Refusals):
        if role == "newcomer" or cls is not messages.GetShardHome:
            control = Control(cls.__name__, PAGE, b"\xc1 not even a message")
            around.dispatcher.on_control(Session(ROLES[role]), control)  # type: ignore[arg-type]
    assert set(around.counted) == {"not_allowed"}
    assert around.log == []


def test_a_client_that_names_a_shard_often_asks_once_for_it() -> None:
    around = Around()
    session = Session(CLIENT)
    around.dispatcher.clients[session.tag] = session  # type: ignore[assignment]
    around.control(session, messages.GetShardHome(("1",) * 5000))
    [(_, event)] = around.log
    assert event == events.MessageReceived(PEER, messages.GetShardHome(("1",)))
