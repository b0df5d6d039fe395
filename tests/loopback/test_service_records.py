"""SRV records, asked of a name server that the test runs, and contacts that come of them."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator

import dns.message
import dns.rcode
import dns.resolver
import dns.rrset
import pytest

from shardbus.config.seeds import DnsName, SeedList
from shardbus.config.settings import ClusterSettings
from shardbus.errors import ConfigError
from shardbus.ids import Address
from shardbus.shells.discovery import Discovery
from shardbus.store.memory import MemoryData, MemoryStore
from shardbus.transport.service_records import service_look_up
from tests.waiting import until

NAME = "_messages._tcp.shop"
RECORDS = {f"{NAME}.": ("20 0 7400 b.shop.", "10 5 7355 a.shop.", "10 9 7356 a.shop.")}


class NameServer:
    """Answers questions for SRV records from RECORDS, on a free port of the loopback."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        threading.Thread(target=self._run, daemon=True).start()
        self.resolver = dns.resolver.Resolver(configure=False)
        self.resolver.nameservers = ["127.0.0.1"]
        self.resolver.port = self.socket.getsockname()[1]

    def _run(self) -> None:
        while True:
            data, sender = self.socket.recvfrom(4096)
            if not data:
                return
            question = dns.message.from_wire(data)
            reply, name = dns.message.make_response(question), question.question[0].name
            records = RECORDS.get(name.to_text())
            if records is None:
                reply.set_rcode(dns.rcode.NXDOMAIN)
            else:
                reply.answer.append(dns.rrset.from_text(name, 5, "IN", "SRV", *records))
            self.socket.sendto(reply.to_wire(), sender)

    def close(self) -> None:
        """End the thread by an empty datagram."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", self.socket.getsockname())


@pytest.fixture
def server() -> Iterator[NameServer]:
    made = NameServer()
    yield made
    made.close()


def test_B145_records_are_hosts_with_ports_those_of_the_first_priority_first(
    server: NameServer,
) -> None:
    look_up = service_look_up(server.resolver)
    assert look_up(NAME) == ("a.shop:7355", "a.shop:7356", "b.shop:7400")
    with pytest.raises(OSError, match="no SRV record"):
        look_up("_messages._tcp.other")


async def test_B145_every_address_of_every_host_is_a_contact_at_the_port_of_its_record(
    server: NameServer,
) -> None:
    hosts = {"a.shop": ("10.0.0.2", "10.0.0.1"), "b.shop": ("10.0.0.3",)}
    published: list[tuple[Address, ...]] = []

    def look(contacts: tuple[Address, ...]) -> bool:
        published.append(contacts)
        return False

    store = MemoryStore(MemoryData())
    await store.start()
    discovery = Discovery(
        SeedList(names=(DnsName(NAME),)),
        Address("10.0.0.1", 9999),
        store,
        ClusterSettings(discovery_interval=0.01),
        look,
        hosts.__getitem__,
        service_look_up(server.resolver),
    )
    discovery.start()
    await until(lambda: bool(published), "the contacts")
    await discovery.close()
    assert set(published[0]) == {
        Address("10.0.0.1", 7355),
        Address("10.0.0.2", 7355),
        Address("10.0.0.1", 7356),
        Address("10.0.0.2", 7356),
        Address("10.0.0.3", 7400),
    }


def test_B145_without_dnspython_a_service_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "dns.resolver", None)
    me, settings, store = Address("10.0.0.1", 7355), ClusterSettings(), MemoryStore(MemoryData())
    with pytest.raises(ConfigError, match="dnspython") as refused:
        Discovery(SeedList(names=(DnsName(NAME),)), me, store, settings, lambda _: False)
    assert "shardbus[srv]" in str(refused.value.hint)
    Discovery(SeedList(names=(DnsName("shop"),)), me, store, settings, lambda _: False)
