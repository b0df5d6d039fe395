"""Every setting of a node, declared once.

Settings are a tree of frozen dataclasses; `Settings()` holds the defaults. A field declares unit,
range and meaning. A value must be valid by itself (`options.parse`) and together with the others
(`validation`). The settings of one entity type come from four places; the last that sets one wins:

    defaults here < section `sharding` < the class's declaration < `sharding.types.<name>`

Not here: the forms of a value (`options`); files, environment and command line (`loading`); the
effects of a setting.

Source: S2.34, S2.35, S2.57 to S2.81.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from shardbus.bounds import SHARDS_MAX
from shardbus.config.options import count, counts, flag, names, number, read, seconds, size, text
from shardbus.config.seeds import parse_seed
from shardbus.errors import ConfigError

STRATEGIES = (
    "keep-majority",
    "static-quorum",
    "keep-oldest",
    "down-all",
    "lease-majority",
    "none",
)

HOMES = ("ask", "gossip")
"""How nodes get the homes of shards."""
HANDOFFS = (
    "buffer",
    "ordered",
    "forward",
    "drop",
    "keep/open/drop",
    "forward/open/forward",
    "forward/buffer/forward",
    "drop/open/forward",
)
"""The modes of `sharding.handoff_modes`."""

COMPRESSIONS = ("none", "zlib")
"""How a state may be compressed."""

LOADS = ("messages", "time", "memory", "mailbox", "mixed")
"""The kinds of load of `sharding.shard_load`."""

SUSPEND_PART = 0.8
"""The default of `suspend_after`, as a part of `stable_after`."""
CLOCKS_APART = 1.02
"""How much faster one node's clock may run than another's: 1 % drift each."""
SUSPEND_MARGIN_PART, SUSPEND_MARGIN_MAX = 0.1, 0.5
"""Time, as a part of `stable_after` and at most in seconds, for ticks that are late."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The identity of this node, and the nodes that it joins."""

    host: str = text("127.0.0.1", "interface on which the node listens")
    port: int = count(7355, "port of the ROUTER", high=65535)
    gossip_port: int = count(0, "port of the PUB; 0 is port + 1", low=0, high=65535)
    advertise: str = text(
        "", "HOST or HOST:PORT that other nodes and clients use; empty is host and port"
    )
    advertise_gossip: str = text(
        "", "HOST or HOST:PORT that other nodes use for gossip; empty is advertise's host, own port"
    )
    seeds: tuple[str, ...] = names(
        "HOST:PORT of nodes to join, dns://NAME[:PORT], dns://_SERVICE._tcp.DOMAIN or store; "
        "without any the node forms a cluster of its own",
        parse_seed,
    )
    join: str = text(
        "auto",
        "auto joins by the seeds at start; manual waits for `shardbus cluster join`",
        choices=("auto", "manual"),
    )
    roles: tuple[str, ...] = names("roles of this node; types and minimums may require one")
    zone: str = text(
        "", "where this node runs, such as a rack; the instances of an entity spread over zones"
    )
    proxies: tuple[str, ...] = names(
        "entity types that this node does not host and only sends to; * is all types"
    )
    send_buffer_bytes: int = size(
        256 * 2**20, "messages that may wait for one node; then a tell is refused", low=16 * 2**20
    )
    version: str = text(
        "0.0.0", "version of the application; shards that need a home go to nodes of the highest"
    )
    version_timeout: float = seconds(
        30.0, "for the application to report its version, if it does and none is set"
    )


@dataclass(frozen=True, slots=True)
class FailureDetectorSettings:
    """Phi accrual over request/reply heartbeats."""

    heartbeat_interval: float = seconds(1.0, "between two heartbeats to one node")
    threshold: float = number(
        8.0, "phi above which a node is unreachable; 12 on clouds", low=0.1, high=1000
    )
    max_sample_size: int = count(1000, "intervals kept per node")
    min_std_deviation: float = seconds(
        0.1, "lower bound of the deviation, so that a regular network tolerates one late heartbeat"
    )
    acceptable_heartbeat_pause: float = seconds(3.0, "silence tolerated before phi grows", low=0.0)
    expected_response_after: float = seconds(1.0, "within which the first heartbeat is expected")
    monitored_by: int = count(9, "nodes that watch each node; the 2.4.20 documents use 5")
    self_health: bool = flag(
        True, "a node short of CPU time suspects others later, and others suspect it later"
    )


@dataclass(frozen=True, slots=True)
class DowningSettings:
    """The decision about members that stay unreachable."""

    strategy: str = text(
        "keep-majority", "which side stays after a split", choices=STRATEGIES, named=True
    )
    stable_after: float = seconds(
        5.0, "without a change before a decision; 20 s for a hundred nodes, 30 s for a thousand"
    )
    role: str = text("", "count only members with this role; empty counts all")
    static_quorum_size: int = count(0, "votes that a side needs under static-quorum", off=True)
    down_if_alone: bool = flag(True, "under keep-oldest an oldest node that is alone leaves")
    acquire_lease_delay_for_minority: float = seconds(
        2.0, "by which the smaller side asks for the lease later under lease-majority", off=True
    )
    down_all_when_unstable: bool = flag(
        True, "down all nodes if reachability keeps changing for stable_after and 3/4 of it (4 s)"
    )
    down_removal_margin: float = seconds(
        0.0, "by which the side that stays acts later, so that the other stops first", off=True
    )
    unsafe_auto_down_after: float = seconds(
        0.0, "unreachable members are downed, on both sides of a split, with any strategy", off=True
    )
    unsafe_auto_down_with_sharding: bool = flag(
        False, "allow that for a node with sharded entities, which may then run twice"
    )


@dataclass(frozen=True, slots=True)
class SingletonSettings:
    """The hand-over of a coordinator's seat from the oldest node to the next oldest."""

    hand_over_retry_interval: float = seconds(
        0.5, "between two requests of a hand-over that get no answer"
    )
    silence_timeout: float = seconds(
        2.0, "the next oldest waits for a leaving node that never answers"
    )
    hand_over_timeout: float = seconds(
        5.0, "the next oldest waits for a node that is handing over, and a leaving one to be asked"
    )
    retire_timeout: float = seconds(
        3.0, "a coordinator may take to finish its write; then it is halted"
    )
    restart_backoff: float = seconds(
        1.0, "before a coordinator that ended by itself starts again on the same node"
    )


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """Membership: gossip, joining, the leader's actions."""

    gossip_interval: float = seconds(
        1.0, "between two rounds; a third of it while fewer than half have the newest version"
    )
    gossip_time_to_live: float = seconds(
        2.0, "gossip that waited longer than this in a queue is dropped"
    )
    gossip_different_view_probability: float = number(
        0.8, "to choose a node that has not seen the newest version"
    )
    reduce_gossip_different_view_probability: int = count(
        400, "nodes above which that probability falls linearly"
    )
    gossip_partition_breaker: float = number(
        0.0, "how often rounds also go to unreachable nodes and to seeds; 1 as in 2.0.1", low=0.0
    )
    leader_actions_interval: float = seconds(1.0, "between two checks by the leader")
    seed_node_timeout: float = seconds(5.0, "for an answer of the seed nodes")
    required_contacts: int = count(
        1, "nodes, itself included, that one knows by dns:// or the store before it founds"
    )
    new_cluster: bool = flag(
        True, "this node may found a cluster; off, it only joins one, as after the first start"
    )
    discovery_interval: float = seconds(
        2.0, "between two look-ups of contacts, and two registrations in the store"
    )
    founding_claim: float = seconds(
        15.0, "for which the store's claim to the cluster, and a registration, last", low=1.0
    )
    retry_unsuccessful_join_after: float = seconds(
        10.0, "before a join without an answer is tried again"
    )
    shutdown_after_unsuccessful_join: float = seconds(
        0.0, "a node that has not joined ends with an error", off=True
    )
    allow_weakly_up_members: float = seconds(
        7.0, "without convergence before members become weakly up", off=True
    )
    min_members: int = count(1, "nodes that must have joined before the first become up")
    role_min_members: Mapping[str, int] = counts("the same per role")
    prune_tombstones_after: float = seconds(86400.0, "for which the uid of a removed node is kept")
    app_stall_timeout: float = seconds(
        30.0, "a node whose handlers block its loop that long leaves"
    )
    coordinator_stall: float = seconds(
        2.0,
        "a node whose handlers block its loop that long, or that cannot use its store while"
        " another node can, gives up its coordinators",
        off=True,
    )
    app_block_warning: float = seconds(
        1.0, "a handler that blocks the node's loop that long is named in a warning", off=True
    )
    suspend_after: float = seconds(
        0.0,
        "without consent of its quorum before a node handles no message; 0 is 4/5 of stable_after",
        low=0.0,
    )
    rejoin_after_down: bool = flag(
        True, "a downed node starts anew and rejoins, unless an operator has downed it"
    )
    rejoin_within: float = seconds(
        600.0, "for which a downed node asks the members that it knew to take it in", off=True
    )
    quarantine_after: float = seconds(
        60.0, "a reachable node that reads nothing from a session that long must restart", off=True
    )
    confirmed_death: bool = flag(
        True, "a refused connection proves that a process ended; turn it off behind a proxy"
    )
    news_fanout: int = count(3, "nodes that get a change of membership or reachability at once")
    failure_detector: FailureDetectorSettings = field(default_factory=FailureDetectorSettings)
    downing: DowningSettings = field(default_factory=DowningSettings)
    singleton: SingletonSettings = field(default_factory=SingletonSettings)

    @property
    def suspends(self) -> bool:
        """True if a node without its quorum suspends: the strategy chooses at most one side."""
        return self.downing.strategy != "none" and not self.downing.unsafe_auto_down_after

    @property
    def prompt_within(self) -> float:
        """Seconds within which a member must answer for the others to go on; infinite where the
        strategy lets a side go on without it."""
        every = self.downing.strategy in ("lease-majority", "down-all")
        return self.contact_lifetime if every and self.suspends else inf

    @property
    def contact_lifetime(self) -> float:
        """Seconds for which the consent of a member is valid (`suspend_after`)."""
        return self.suspend_after or SUSPEND_PART * self.downing.stable_after

    @property
    def suspended_within(self) -> float:
        """Seconds after which a node is surely suspended, counted from the last consent by the
        clock of another node. The side that stays waits as long."""
        margin = min(SUSPEND_MARGIN_MAX, self.downing.stable_after * SUSPEND_MARGIN_PART)
        return self.contact_lifetime * CLOCKS_APART + margin if self.suspends else 0.0


@dataclass(frozen=True, slots=True)
class ShardingSettings:
    """Sharding of one entity type; section `sharding` holds the defaults for every type."""

    shards: int = count(
        100,
        "shards of a type; every node must agree, and it cannot change while a table is stored",
        high=SHARDS_MAX,
    )
    role: str = text("", "host only on nodes with this role; empty is every node")
    coordinator_role: str = text(
        "", "coordinate on the oldest node with this role; empty is the role of the type, * is any"
    )
    remember: bool = flag(False, "entities that were running start again after a move or a crash")
    passivate_after: float = seconds(
        120.0, "after which an idle entity is stopped; remembered ones are not", off=True
    )
    active_entity_limit: int = count(
        0, "entities in memory per node; above it some are passivated", off=True
    )
    passivation_strategy: str = text(
        "lru",
        "which entities are passivated above the limit",
        choices=("lru", "slru", "mru", "lfu", "composite"),
    )
    passivation_protected: float = number(
        0.8, "strategies slru and composite: share of the limit for entities that were used again"
    )
    passivation_window: float = number(
        0.01, "strategy composite: initial share of the limit for new entities"
    )
    slow_handler_after: float = seconds(
        20.0, "a handler that waits that long is named in a warning", off=True
    )
    mailbox: int = count(10_000, "messages that may wait for one entity; then its senders wait")
    mailbox_bytes: int = size(
        64 * 2**20, "messages in all mailboxes, per type and node; then senders wait"
    )
    mailbox_patience: float = seconds(
        5.0, "for which senders wait for a full mailbox; then tells are dropped", off=True
    )
    durable_mailbox_messages: int = count(
        1000, "stored messages that may wait in one durable mailbox; then senders wait"
    )
    durable_mailbox_bytes: int = size(4 * 2**20, "the same limit in bytes")
    buffer_size: int = count(
        100_000, "messages that may wait for shards without a home, per type and node"
    )
    buffer_bytes: int = size(64 * 2**20, "the same limit in bytes")
    homes: str = text(
        "ask",
        "how nodes learn where shards live: all from the coordinator, or each from others; the "
        "coordinator's node decides",
        choices=HOMES,
    )
    hop_limit: int = count(8, "forwards of one message before it is given up")
    retry_interval: float = seconds(
        2.0, "between two registrations or requests for a home without an answer"
    )
    shard_start_timeout: float = seconds(10.0, "for a region to confirm that it hosts a shard")
    begin_handoff_timeout: float = seconds(
        5.0, "for a region to acknowledge; then the handoff goes on"
    )
    handoff_timeout: float = seconds(60.0, "for a move of one shard, entities' on_stop included")
    shard_failure_backoff: float = seconds(
        10.0, "longest wait before a remembering shard whose store failed retries"
    )
    entity_restart_backoff: float = seconds(
        10.0, "longest wait before a failed start of an entity is tried again"
    )
    entity_restart_backoff_min: float = seconds(
        0.2, "the first such wait; it doubles with each failed start"
    )
    entity_recovery_strategy: str = text(
        "adaptive",
        "how remembered entities start: as the loop has time, in batches, or all at once",
        choices=("adaptive", "constant", "all"),
    )
    entity_recovery_constant_rate_frequency: float = seconds(0.1, "between two such batches")
    entity_recovery_constant_rate_number_of_entities: int = count(5, "entities per batch and node")
    coordinator_failure_backoff: float = seconds(
        5.0, "wait of a coordinator whose store failed: first a tenth, doubled up to 5 times it"
    )
    waiting_for_state_timeout: float = seconds(
        2.0, "for regions to report to a new coordinator; 5 s in 2.4.20"
    )
    updating_state_timeout: float = seconds(
        5.0, "for the store to confirm a change of the table; then it is written again"
    )
    shard_region_query_timeout: float = seconds(
        3.0, "for regions to answer a query about their shards"
    )
    min_members: int = count(1, "regions that must be registered before shards get homes")
    allocation: str = text(
        "least-shards",
        "allocation strategy; a class may declare a name or an object instead",
        choices=(
            "least-shards",
            "least-load",
            "threshold",
            "consistent-hashing",
            "circular",
            "external",
        ),
    )
    rebalance_interval: float = seconds(10.0, "between two checks of the balance")
    rebalance_threshold: int = count(
        10, "strategy threshold: a difference above this starts a rebalance"
    )
    max_simultaneous_rebalance: int = count(3, "strategy threshold: shards in motion at a time")
    rebalance_absolute_limit: int = count(
        0, "shards in motion at a time, for the other strategies", off=True
    )
    rebalance_relative_limit: float = number(1.0, "least-shards: the same as a share of all shards")
    load: str = text(
        "messages", "least-load: what counts as the load of a shard and of a node", choices=LOADS
    )
    rebalance_load_tolerance: float = number(
        0.2, "least-load: tolerated difference in load, as a share of the mean", low=0.01
    )
    rebalance_move_cost: float = number(
        0.25, "least-load: what a move must gain, as a share of the mean load of a shard", low=0.01
    )
    rebalance_cool_down: float = seconds(
        60.0, "least-load: between two moves of one shard for balance", off=True
    )
    use_lease: str = text(
        "off",
        "what runs only while its node holds a lease in the state store; the same on all nodes",
        choices=("off", "shards", "singleton", "both"),
    )
    lease_ttl: float = seconds(
        20.0, "after which other nodes may get a lease that its node does not renew"
    )
    lease_retry_interval: float = seconds(
        2.0, "between two requests for a lease that another node holds"
    )
    handoff: str = text(
        "buffer",
        "where messages are while a shard moves; docs/partitions.md has the modes",
        choices=HANDOFFS,
    )
    max_moves_in_flight: int = count(16, "shards in motion at a time, per source and target")
    max_moves_per_minute: int = count(
        0, "shards that start to move for balance within a minute", off=True
    )
    state_limit: int = size(
        2**20, "the largest state of an entity that is saved, as it is stored", high=512 * 2**20
    )
    state_compression: str = text(
        "none", "how states of 1 KiB and more are compressed in the store", choices=COMPRESSIONS
    )
    state_ttl: float = seconds(
        0.0, "a state that was neither loaded nor saved for that long is removed", off=True
    )
    snapshot_after: int = count(
        100, "events of an event-sourced entity between two snapshots of its state", off=True
    )
    events_kept: int = count(
        0, "events that are kept behind a snapshot, older ones are removed; off keeps all", off=True
    )
    state_sweep_rate: int = count(
        1000, "stored entities that are looked at per second to find such states", high=1_000_000
    )
    dead_letters: int = count(
        100,
        "the last dropped messages of a type that each node keeps for operators",
        high=10_000,
        off=True,
    )
    dead_letter_bytes: int = size(2**20, "the same limit in bytes", low=1024, high=2**30)
    dead_letter_payloads: int = size(
        0,
        "bodies up to this size are kept with them, so that they can be replayed",
        high=64 * 2**20,
        off=True,
    )
    types: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    """The overrides of the settings above, per entity type."""

    def for_type(self, name: str, declared: Mapping[str, object]) -> ShardingSettings:
        """Return the settings of one type. `declared` is the class's declaration, by setting name.

        begin_handoff_timeout is at most handoff_timeout, and entity_restart_backoff_min at most
        entity_restart_backoff. Remembered entities keep running, so a limit for all types does not
        apply to a type that remembers its entities.

        Raises:
            ConfigError: `declared` has an unknown name or a value out of range, or a limit is set
                for this type although its entities are remembered.
        """
        place = f"the declaration of {name!r}"
        checked = {
            key: read(ShardingSettings, key, value, key, place) for key, value in declared.items()
        }
        overrides: dict[str, Any] = {**checked, **self.types.get(name, {})}
        chosen = replace(self, **{**overrides, "types": {}})
        if chosen.remember and chosen.active_entity_limit:
            if "active_entity_limit" in overrides:
                raise ConfigError(
                    f"{name!r} has both remember and active_entity_limit",
                    hint="a passivated entity is forgotten: choose one of them",
                )
            chosen = replace(chosen, active_entity_limit=0)
        return replace(
            chosen,
            begin_handoff_timeout=min(chosen.begin_handoff_timeout, chosen.handoff_timeout),
            entity_restart_backoff_min=min(
                chosen.entity_restart_backoff_min, chosen.entity_restart_backoff
            ),
        )


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """Messages that are delivered at least once, and take effect once."""

    window: int = count(50, "unconfirmed deliveries of one producer to one entity", high=1000)
    window_all: int = count(1000, "unconfirmed deliveries of one producer", high=100_000)
    within: float = seconds(
        3600.0, "for which a delivery is tried, if its caller names no time", off=True
    )
    resend: float = seconds(
        10.0, "for an answer before a delivery is sent again; doubles up to resend_max"
    )
    resend_max: float = seconds(30.0, "for an answer, at most")
    retry: float = seconds(
        0.2, "between a failure and the next attempt; doubles up to retry_max", low=0.01
    )
    retry_max: float = seconds(30.0, "between a failure and the next attempt, at most")
    attempts: int = count(10, "failures of a handler after which a delivery is poison", high=10_000)
    on_poison: str = text(
        "skip",
        "skip gives a poison delivery up; stop tries it for ever, and what follows it waits",
        choices=("skip", "stop"),
    )
    remember: float = seconds(
        7 * 86_400.0, "for which an entity remembers a producer that does not use it"
    )
    producers: int = count(
        1000, "producers that one entity remembers; then the least used is forgotten", high=100_000
    )


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The state store."""

    url: str = text(
        "",
        "sqlite:///, redis://, postgresql://, cluster:// ...; empty is an SQLite file of this user",
        secret=True,
    )
    timeout: float = seconds(2.0, "for one answer of the store")
    start_timeout: float = seconds(
        30.0, "for the store to answer when a node starts; off waits without end", off=True
    )
    replicas: int = count(
        3, "replicas that hold a new store of cluster://; the others are spares", high=9
    )
    path: str = text("", "directory of this replica; empty is one in the user's state directory")
    port: int = count(
        0, "port of this replica; 0 is the first after those of the node", low=0, high=65535
    )
    repair_interval: float = seconds(
        60.0, "between two comparisons of a replica's rows with others'"
    )
    repair_after: float = seconds(
        0.0, "away, before a replica gives way to a spare in the ring", low=5.0, off=True
    )
    memory: int = size(2**30, "rows of a replica in memory; then it takes no more", low=2**20)
    log_bytes: int = size(2**28, "log of a replica, at which its rows are written anew", low=2**20)


LEVELS = ("majority", "majority+1", "all", *map(str, range(1, 10)))
"""Numbers of the replicas of a replicated value."""


@dataclass(frozen=True, slots=True)
class DataSettings:
    """Replicated values, on the replicas of cluster://; each has `store.replicas` of them."""

    r: str = text("majority", "replicas that a get reads", choices=LEVELS)
    w: str = text("majority", "replicas that have a put before it returns", choices=LEVELS)
    value_limit: int = size(2**18, "one value", high=2**22)


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """CURVE keys, and the hosts on which a node may listen."""

    insecure: bool = flag(False, "listen outside the loopback without keys")
    secret: str = text(
        "", "file with the cluster's secret: links and gossip are encrypted and authenticated"
    )
    keys: str = text("", "file with this node's own key, for security.allowed")
    allowed: str = text(
        "", "file with the keys that may connect, and their roles; without it, the secret admits"
    )
    list_states: bool = flag(
        True, "clients may list the ids of stored entities, of the types that they may use"
    )


@dataclass(frozen=True, slots=True)
class HttpSettings:
    """Health, metrics and the read-only API."""

    host: str = text("127.0.0.1", "interface on which HTTP listens")
    port: int = count(8558, "port of HTTP; 0 takes a free one", low=0, high=65535)
    write: bool = flag(False, "accept leave and down, with the token")
    token: str = text("", "bearer token of operators, who may read and write", secret=True)
    reader_token: str = text("", "bearer token of readers; with it, reading needs one", secret=True)
    token_file: str = text("", "file with the operator's token, in place of token")
    reader_token_file: str = text("", "file with the reader's token, in place of reader_token")
    allowed_hosts: tuple[str, ...] = names(
        "names by which HTTP is also reached, such as a proxy's; * is any name"
    )
    ready_types: tuple[str, ...] = names(
        "types whose coordinators a node must know to be ready; without any, all of them"
    )
    ready_types_once: bool = flag(
        False, "a node that was ready stays ready while their coordinators are away"
    )
    tls_cert: str = text("", "file with the certificate chain of HTTPS, in PEM")
    tls_key: str = text("", "file with the private key of the certificate, in PEM")


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The log on standard error."""

    level: str = text("info", "lowest level shown", choices=("debug", "info", "warning", "error"))
    format: str = text(
        "auto", "auto is pretty on a terminal, else json", choices=("auto", "pretty", "json")
    )


@dataclass(frozen=True, slots=True)
class ShutdownSettings:
    """How long each phase of leaving may take; docs/how-to/operate.md names the phases."""

    before_service_unbind: float = seconds(5.0, "for tasks of the application")
    service_unbind: float = seconds(5.0, "for tasks of the application")
    service_requests_done: float = seconds(5.0, "for tasks of the application")
    service_stop: float = seconds(5.0, "for tasks of the application")
    before_cluster_shutdown: float = seconds(5.0, "for tasks of the application")
    cluster_sharding_shutdown_region: float = seconds(
        0.0, "for handing off; 0 is the longest handoff_timeout of a type plus 10 s", off=True
    )
    cluster_leave: float = seconds(10.0, "for leaving the cluster and for clients to disconnect")
    cluster_shutdown: float = seconds(5.0, "for tasks of the application")


@dataclass(frozen=True, slots=True)
class TracingSettings:
    """Traces by OpenTelemetry, of the application's SDK. They need the extra `otel`."""

    enabled: bool = flag(False, "carry trace context in messages and create spans")
    ratio: float = number(
        0.0,
        "the part of messages, sent outside of entities and of any span, that begin a trace",
    )
    limit: int = count(100, "traces that begin so in a second, at most", off=True)


@dataclass(frozen=True, slots=True)
class KubernetesSettings:
    """A node's use of the API server of Kubernetes: by default none."""

    deletion_costs: int = count(
        0,
        "the oldest nodes whose pods get a deletion cost, so that a Deployment that shrinks or is "
        "replaced removes them last; such as 3",
        high=1000,
        off=True,
    )
    revision: bool = flag(
        False, "the version of this node is the revision of the Deployment that its pod is of"
    )
    pod: str = text("", "name of this node's pod: metadata.name of the downward API")
    namespace: str = text("", "namespace of the pod; empty is that of the service account")
    api: str = text("", "HOST:PORT of the API server; empty is what Kubernetes tells each pod")
    service_account: str = text(
        "/var/run/secrets/kubernetes.io/serviceaccount",
        "folder of the service account: token, ca.crt and namespace",
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a node."""

    node: NodeSettings = field(default_factory=NodeSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    sharding: ShardingSettings = field(default_factory=ShardingSettings)
    store: StoreSettings = field(default_factory=StoreSettings)
    data: DataSettings = field(default_factory=DataSettings)
    delivery: DeliverySettings = field(default_factory=DeliverySettings)
    security: SecuritySettings = field(default_factory=SecuritySettings)
    http: HttpSettings = field(default_factory=HttpSettings)
    shutdown: ShutdownSettings = field(default_factory=ShutdownSettings)
    log: LogSettings = field(default_factory=LogSettings)
    tracing: TracingSettings = field(default_factory=TracingSettings)
    kubernetes: KubernetesSettings = field(default_factory=KubernetesSettings)
