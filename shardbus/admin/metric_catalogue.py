"""Every metric of a node, declared once: its name, kind, labels and meaning.

From these declarations come the page of a node (`admin.metrics`), the reference page
`docs/reference/metrics.md`, and in `deploy/` the dashboard and the alerts. A test compares them
with the metrics of a real node, so that none can be missing or left over.

The group of a metric is its row on the dashboard.

Source: docs/reference/metrics.md; B.150, N.21.
"""

from __future__ import annotations

from enum import Enum
from functools import partialmethod

import msgspec

PREFIX = "shardbus_"


class MetricKind(Enum):
    """The kinds of Prometheus."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Group(Enum):
    """The group of a metric."""

    MESSAGES = "Messages"
    LATENCIES = "Latencies"
    ENTITIES = "Entities and shards"
    STORE = "Store"
    CLUSTER = "Cluster"
    NODE = "Node"


class MetricDeclaration(msgspec.Struct, frozen=True):
    """One metric. `name` is without prefix, and of a counter without `_total`; `meaning` is the
    help text, in Markdown."""

    name: str
    kind: MetricKind
    group: Group
    meaning: str
    labels: tuple[str, ...] = ()

    @property
    def exposed(self) -> str:
        """The name on the page of a node."""
        total = "_total" if self.kind is MetricKind.COUNTER else ""
        return f"{PREFIX}{self.name}{total}"


METRICS: list[MetricDeclaration] = []
"""All of them, in the order of the reference."""


class _Declarations:
    """Declares the metrics of one group. A metric is written as on the page of a node:
    `name{label,label}`."""

    def __init__(self, group: Group) -> None:
        self._group = group

    def _add(self, kind: MetricKind, metric: str, meaning: str) -> MetricDeclaration:
        name, _, labels = metric.rstrip("}").partition("{")
        names = tuple(labels.split(",")) if labels else ()
        METRICS.append(MetricDeclaration(name, kind, self._group, meaning, names))
        return METRICS[-1]

    counter = partialmethod(_add, MetricKind.COUNTER)
    gauge = partialmethod(_add, MetricKind.GAUGE)
    histogram = partialmethod(_add, MetricKind.HISTOGRAM)


_messages, _latencies, _entities, _store, _cluster, _node = map(_Declarations, Group)

# ---- messages

MESSAGES_SENT = _messages.counter(
    "messages_sent{entity_type}",
    "messages that this node's entities and code sent to entities, on any node; not those "
    "that it forwards. One that is sent again, because a connection ended before it left, "
    "counts again",
)
MESSAGES_RECEIVED = _messages.counter(
    "messages_received{entity_type}",
    "messages for entities that arrived here, those that another node forwarded included",
)
MESSAGES_ACCEPTED = _messages.counter(
    "messages_accepted{entity_type}",
    "messages that arrived, or that this node sent and that had to wait for a home. Each is "
    "delivered, forwarded, buffered, waiting or dropped (for any reason but `unconfirmed` and "
    "`send_buffer_full`); one whose link ended before it left is accepted again",
)
MESSAGES_DELIVERED = _messages.counter(
    "messages_delivered{entity_type}",
    "messages whose handlers have ended, without those that are dropped because it failed or "
    "refused them",
)
MESSAGES_FORWARDED = _messages.counter(
    "messages_forwarded{entity_type}",
    "messages that left for the home of their shard, after they had waited for it here or had "
    "arrived although it is elsewhere",
)
MESSAGES_DROPPED = _messages.counter(
    "messages_dropped{entity_type,reason}",
    "messages that no handler received; unusable frames have an empty type",
)
MESSAGES_REFUSED = _messages.counter(
    "messages_refused{entity_type,reason}",
    "tells of this node, or forwarded by it, that other nodes acknowledged and then "
    "reported as dropped",
)
ASKS_HEDGED = _messages.counter(
    "asks_hedged{entity_type}",
    "asks by router `first` that went to a second instance, because the first had not "
    "answered in time or had failed",
)
MESSAGES_REROUTED = _messages.counter(
    "messages_rerouted{entity_type}",
    "messages that went to another instance, because there are fewer than when they were sent",
)
BUFFERED_MESSAGES = _messages.gauge(
    "buffered_messages{entity_type}", "messages that wait for a shard's home"
)
WAITING_MESSAGES = _messages.gauge(
    "waiting_messages{entity_type}",
    "messages that wait in mailboxes and stashes, or that a handler works on",
)
SENDER_PAUSES = _messages.counter(
    "sender_pauses{entity_type}", "times that a sender had to wait because a mailbox was full"
)
MISSED_EDGES = _messages.counter(
    "missed_edges",
    "times that only a watchdog noticed new messages; it checks once a second, and 0 is normal",
)
ASKS_TIMED_OUT = _messages.counter("asks_timed_out", "asks without an answer in time")

# ---- deliveries

DELIVERIES = _messages.counter(
    "deliveries{outcome}",
    "deliveries of this node and its entities that have ended: `confirmed`, `poison`, `expired`, "
    "`refused`, `stale`",
)
REDELIVERIES = _messages.counter(
    "redeliveries{reason}",
    "deliveries of this node and its entities that were sent again: `no_answer`, `gap`, `failed`, "
    "and `pause` after one",
)
UNCONFIRMED = _messages.gauge(
    "unconfirmed", "deliveries of this node and its entities that are not confirmed"
)
DELIVERIES_NOT_HANDLED = _messages.counter(
    "deliveries_not_handled{entity_type,decision}",
    "deliveries to entities here that no handler got: `repeated`, `gap`, `stale`, `key_reused` for "
    "another request, and `skipped` as poison; and records of producers, and results, that were "
    "`forgotten`",
)
# ---- latencies

HANDLER_DURATION = _latencies.histogram(
    "handler_duration_seconds{entity_type}",
    "from the call of a handler until it has returned or raised, with all that it awaits; sampled",
)
MAILBOX_WAIT = _latencies.histogram(
    "mailbox_wait_seconds{entity_type}",
    "from the arrival of a message at its entity's node until its handler is called: behind"
    " other messages of its batch, in the mailbox, for the start of the entity; sampled",
)
ASK_DURATION = _latencies.histogram(
    "ask_duration_seconds{entity_type}",
    "asks by this node's entities and code, of entities on any node, until the answer, an "
    "error or the timeout; the type is that of the asked entity; sampled",
)
SHARD_HOME_LATENCY = _latencies.histogram(
    "shard_home_latency_seconds{entity_type}",
    "from the first message that waits here for a shard's home, because it is unknown or "
    "the shard moves, until messages go there",
)
HANDOFF_DURATION = _latencies.histogram(
    "handoff_duration_seconds{entity_type}",
    "moves on the coordinator's node, from the beginning, or from a node's end, until the "
    "store has the next home",
)

# ---- entities and shards

ENTITIES_STARTED = _entities.counter(
    "entities_started{entity_type,cause}",
    "entities started: `message`, `remembered`, `carried`, `deliveries` that are pending, and "
    "`restart` after a failure or for messages that waited",
)
ENTITIES_STOPPED = _entities.counter(
    "entities_stopped{entity_type,reason}",
    "entities stopped: `handoff`, `passivation`, `shutdown`, `failure`, `stopped`",
)
ENTITY_FAILURES = _entities.counter(
    "entity_failures{entity_type}", "handlers, starts and stops that raised"
)
ENTITIES_EVICTED = _entities.counter(
    "entities_evicted{entity_type}",
    "entities passivated because of the limit; `entities_stopped` counts them too",
)
ENTITIES_CARRIED = _entities.counter(
    "entities_carried{entity_type,outcome}",
    "entities that carry what they have to the next home of their shard: `frozen`, "
    "`failed`, `too_large`, `save_unknown`, `restored`, `not_taken`",
)
ENTITIES_CUT_OFF = _entities.counter(
    "entities_cut_off{entity_type}", "entities that did not stop in time"
)
ACTIVE_ENTITY_LIMIT = _entities.gauge(
    "active_entity_limit{entity_type}", "limit of entities in memory here, 0 for no limit"
)
SLOW_HANDLERS = _entities.counter(
    "slow_handlers{entity_type,how}",
    "handlers that `waited` for more than `slow_handler_after` or `blocked` the loop for "
    "more than `cluster.app_block_warning`",
)
DEAF_ENTITIES = _entities.gauge(
    "deaf_entities{entity_type}",
    "entities that are busy without a task that runs, and so take no message: a defect",
)
ENTITIES = _entities.gauge("entities{entity_type}", "entities in memory")
STATE_BYTES = _entities.gauge(
    "state_bytes{entity_type}",
    "states of the entities in memory, in bytes as they are stored; of types with state",
)
STATES_EXPIRED = _entities.counter(
    "states_expired{entity_type}", "states that were idle for `state_ttl` and are removed"
)
STATE_MERGES = _entities.counter(
    "state_merges{entity_type,event}",
    "states that instances share: `merged`, calls of `merge` for states that were saved at the "
    "same time; `taken`, saves of other instances that an entity got while it ran; `failed`, "
    "states that cannot be read or do not merge",
)
REMINDERS_FIRED = _entities.counter(
    "reminders_fired{entity_type}", "reminders whose handler has returned"
)
REMINDERS_LATE = _entities.counter(
    "reminders_late{entity_type}", "those of them that began more than 10 s after they were due"
)
REMINDERS_LEFT_OUT = _entities.counter(
    "reminders_left_out{entity_type}",
    'due moments that were late and did not fire, by `late="skip"`',
)
REMINDERS_FAILED = _entities.counter(
    "reminders_failed{entity_type}", "attempts at a reminder whose handler raised"
)
REMINDERS_DUE = _entities.gauge(
    "reminders_due{entity_type}", "entities with a reminder that is due and has not fired"
)
QUEUE_ITEMS = _entities.gauge(
    "queue_items{entity_type}", "items in work queues in memory here that a worker has or will have"
)
QUEUE_ITEMS_ASIDE = _entities.gauge(
    "queue_items_aside{entity_type}",
    "items in work queues in memory here that were set aside, for their work failed too often",
)
QUEUE_PULLS = _entities.gauge(
    "queue_pulls_waiting{entity_type}", "pulls of workers that wait for an item"
)
QUEUE_PUTS = _entities.gauge(
    "queue_puts_waiting{entity_type}", "puts that wait for room in a work queue"
)
PROJECTION_EVENTS = _entities.counter(
    "projection_events_handled{entity_type}",
    "events that a projection has handled, and stored as handled",
)
PROJECTION_FAILURES = _entities.counter(
    "projection_failures{entity_type}",
    "attempts at which a projection's handler of an event raised, or an event could not be read",
)
PROJECTION_MISSING = _entities.counter(
    "projection_events_missing{entity_type}",
    "events that were removed before a projection could handle them",
)
PROJECTION_BEHIND = _entities.gauge(
    "projection_entities_behind{entity_type}",
    "entities here with events that a projection has not handled, as far as the node knows",
)
PROJECTION_LAG = _entities.gauge(
    "projection_lag_seconds{entity_type}", "for how long the first of them has been behind"
)
PROJECTION_STOPPED = _entities.gauge(
    "projection_entities_stopped{entity_type}",
    "those of them that stand at an event which failed too often",
)
PROJECTION_SCANNING = _entities.gauge(
    "projection_shards_scanning{entity_type}",
    "shards whose journals are not compared yet with a projection",
)
MAILS = _entities.counter(
    "durable_mailbox_messages{entity_type,outcome}",
    "messages of durable mailboxes that were `stored`, `recovered` from the store, `handled`, found"
    " `repeated`, `failed` at an attempt, `given_up`",
)
MAILS_WAITING = _entities.gauge(
    "durable_mailbox_waiting{entity_type}",
    "messages in durable mailboxes here that are not handled",
)
MAILBOXES_STUCK = _entities.gauge(
    "durable_mailboxes_stuck{entity_type}",
    "durable mailboxes here whose first message has failed",
)
ENTITIES_WAITING = _entities.gauge(
    "entities_waiting_to_start{entity_type}",
    "remembered entities that have yet to start again here",
)
SHARDS = _entities.gauge("shards{entity_type}", "shards hosted here")
HANDOFFS = _entities.counter(
    "handoffs{entity_type,result}",
    "moves that ended (`stopped`, or `owner_gone`) and deadlines that passed in one "
    "(`overdue`), on the coordinator's node",
)
REBALANCES = _entities.counter(
    "rebalances{entity_type}",
    "shards that were chosen to move for balance, on the coordinator's node",
)
SHARDING_NOTES = _entities.counter(
    "sharding_notes{entity_type,kind}",
    "other notes of regions and coordinators, such as `rows_dropped`",
)

# ---- the store

STORE_LATENCY = _store.histogram(
    "store_latency_seconds{entity_type,operation}",
    "loads and saves of entities' state: `load`, `save`; every call, from the entity's "
    "request until the store's answer",
)
STORE_ERRORS = _store.counter("store_errors", "loads and saves of entities' state that failed")
VALUE_REQUESTS = _store.counter(
    "value_requests{request,outcome}",
    "requests of replicated values by this node that have ended: `get` or `write`; `done`, "
    "`refused`, `failed` (without effect) or `in doubt`",
)
REPLICA_ROWS = _store.counter(
    "replica_repaired_rows",
    "rows that this node's replica of `cluster://` had missed, and got from other replicas; none "
    "without a replica",
)
REPLICA_BYTES = _store.counter("replica_repaired_bytes", "keys and states of these rows, in bytes")
REPLICA_REPAIR_AGE = _store.gauge(
    "replica_repair_age_seconds",
    "since this node's replica had last compared all rows with every other replica, and got what "
    "it had missed; it grows while a replica is away",
)
REPLICA_SPARES = _store.gauge(
    "replica_spares",
    "replicas of `cluster://` in this node's reach that hold nothing, and wait to come into the "
    "ring; none with another store",
)

# ---- the cluster

MEMBERS = _cluster.gauge("members{status}", "members by status")
PHI = _cluster.gauge("phi{node}", "suspicion of each node that this one watches")
COORDINATOR_EPOCH = _cluster.gauge(
    "coordinator_epoch{entity_type}", "highest coordinator epoch seen"
)
SUSPENDED = _cluster.gauge(
    "suspended", "1 while the node is suspended: its entities handle no message"
)
SUSPENSIONS = _cluster.counter("suspensions", "times that membership has suspended this node")

# ---- the node

TASKS_FAILED = _node.counter(
    "tasks_failed",
    "tasks of the node that ended by an error, which is a defect; the log has the "
    "traceback, and the node is not ready any more",
)
VITALS = _node.gauge(
    "vitals{what}",
    "averages of how busy this node is: `busy`, `lag`, `rss`, `gc`, `mailbox`, `rate`, as "
    "in `/v1/load`",
)
LOOP_LAG = _node.gauge(
    "loop_lag_seconds", "time since the application's loop last completed an iteration"
)
POD_DELETION_COST = _node.gauge(
    "pod_deletion_cost",
    "the deletion cost that this node has written to its pod (`kubernetes.deletion_costs`)",
)
KUBERNETES_ERRORS = _node.counter(
    "kubernetes_errors",
    "attempts to annotate the pod of this node that failed; the log has the reason",
)
BUILD_INFO = _node.gauge("build_info{version}", "1")
