"""Finds contacts for a node that joins by `dns://` or by the store, and registers the node.

    store     the node writes its own beat in every interval, from its start to its end, and reads
              the beats of others: in every interval until it is a member, then in every fourth,
              to remove the beats of nodes that have died
    dns       every address of the name, in every interval until the node is a member; of a service,
              every address of the host of every SRV record, at the record's port

Addresses found go to membership (`ContactsFound`), which contacts them. A look-up that fails
reports nothing: a node that cannot see the others founds no cluster.

Source: docs/how-to/deploy.md; B.145.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from shardbus.config.seeds import DnsName, SeedList
from shardbus.config.settings import ClusterSettings
from shardbus.errors import ShardBusError
from shardbus.guarded_log import GuardedLog
from shardbus.ids import Address
from shardbus.membership.registrations import Registrations, address_in, entry_of
from shardbus.store import contact_registry
from shardbus.store.clock import machine_clock
from shardbus.store.protocol import StateStore
from shardbus.task_set import TaskSet
from shardbus.transport.name_resolver import LookUpFunction, NameResolver, system_look_up
from shardbus.transport.service_records import service_look_up

CONTACTS_MAX = 1000
READS_EVERY = 4
"""A member reads the registrations once in this many intervals."""
LOOK_UP_S = 5.0
"""For the addresses of a name."""
END_S = 1.0
"""For the store to forget this node. A registration that stays is stale soon."""

log = GuardedLog("shardbus.discovery")


class Discovery:
    """Looks for the contacts of one node, and lets itself be found.

    Args:
        me: the node's address.
        on_found: called with the contacts; returns True while the node looks for a cluster.

    Raises:
        ConfigError: a seed is the name of a service, and dnspython is not installed.
    """

    def __init__(
        self,
        seeds: SeedList,
        me: Address,
        store: StateStore,
        settings: ClusterSettings,
        on_found: Callable[[tuple[Address, ...]], bool],
        look_up: LookUpFunction = system_look_up,
        look_up_service: LookUpFunction | None = None,
    ) -> None:
        self._seeds, self._me, self._store, self._on_found = seeds, me, store, on_found
        self._interval = settings.discovery_interval
        self._registrations = Registrations(settings.founding_claim)
        self._resolver = NameResolver(look_up)
        if look_up_service is None and any(name.is_service for name in seeds.names):
            look_up_service = service_look_up()
        self._services = NameResolver(look_up_service or look_up)
        self._tasks = TaskSet()
        self._beat = 0
        self._own_entries: set[str] = set()
        """The entries of this address that the store may have."""
        self._alive: list[Address] = []
        self._failure = ""

    def start(self) -> None:
        """Begin to look."""
        self._resolver.open(asyncio.get_running_loop())
        self._services.open(asyncio.get_running_loop())
        self._tasks.spawn(self._run())

    async def close(self) -> None:
        """Stop, and take the registration out of the store."""
        self._tasks.cancel()
        await self._tasks.wait(END_S)
        self._resolver.close()
        self._services.close()
        with contextlib.suppress(TimeoutError, ShardBusError):
            async with asyncio.timeout(END_S):
                await contact_registry.remove(self._store, sorted(self._own_entries))

    async def _run(self) -> None:
        rounds, joins = 0, True
        while True:
            try:
                if self._seeds.store:
                    await self._register()
                    if joins or rounds % READS_EVERY == 0:
                        await self._read()
                if joins:
                    joins = self._on_found(await self._contacts())
                self._report("")
            except ShardBusError as error:
                self._report(str(error))
            rounds += 1
            await asyncio.sleep(self._interval)

    async def _register(self) -> None:
        """Write the next beat, and remove the former ones."""
        if not self._own_entries:
            entries = await contact_registry.entries(self._store)
            self._own_entries = {entry for entry in entries if address_in(entry) == self._me}
        former = sorted(self._own_entries)
        self._beat += 1
        entry = entry_of(self._me, self._beat)
        self._own_entries.add(entry)
        await contact_registry.add(self._store, entry)
        await contact_registry.remove(self._store, [old for old in former if old != entry])
        self._own_entries = {entry}

    async def _read(self) -> None:
        entries = await contact_registry.entries(self._store)
        self._alive, stale = self._registrations.read(entries, machine_clock())
        if stale:
            log.info("removed the registrations of nodes that have ended: %s", ", ".join(stale))
        await contact_registry.remove(self._store, stale)

    async def _contacts(self) -> tuple[Address, ...]:
        """Return every contact.

        Raises:
            ShardBusError: a name has no address now.
        """
        addresses = [*self._seeds.addresses, *self._alive]
        for name in self._seeds.names:
            addresses += await self._addresses(name)
        return tuple(dict.fromkeys(addresses))[:CONTACTS_MAX]

    async def _addresses(self, name: DnsName) -> list[Address]:
        if not name.is_service:
            ips = await self._look_up(self._resolver, name.host)
            return [Address(ip, name.port or self._me.port) for ip in ips]
        records = [Address.parse(srv) for srv in await self._look_up(self._services, name.host)]
        looked_up = {host: await self._look_up(self._resolver, host) for host, _ in records}
        return [Address(ip, port) for host, port in records for ip in looked_up[host]]

    @staticmethod
    async def _look_up(resolver: NameResolver, name: str) -> list[str]:
        answer = await resolver.resolve(name, LOOK_UP_S)
        if answer.reason or not answer.addresses:
            raise ShardBusError(f"cannot look up {name}: {answer.reason or 'no address'}")
        return sorted(answer.addresses)

    def _report(self, failure: str) -> None:
        """Log a failure once, and its end."""
        if failure == self._failure:
            return
        self._failure = failure
        if failure:
            log.warning("looking for contacts failed, and is repeated: %s", failure)
        else:
            log.info("looking for contacts works again")
