"""Every metric of a node, declared once: its name, kind, labels and meaning.

From these declarations come the page of a node (`admin.metrics`), the reference page
`docs/reference/metrics.md`, and in `deploy/` the dashboard and the alerts. A test compares them
with the metrics of a real node, so that none can be missing or left over.

The group of a metric is its row on the dashboard.

Source: docs/reference/metrics.md; B.150, N.21.
"""

from __future__ import annotations

from enum import Enum

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


def _declare(
    kind: MetricKind, group: Group, name: str, labels: str, meaning: str
) -> MetricDeclaration:
    declared = MetricDeclaration(name, kind, group, meaning, tuple(labels.split()))
    METRICS.append(declared)
    return declared


COUNTER, GAUGE, HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
_TYPE = "entity_type"

# ---- messages

MESSAGES_SENT = _declare(
    COUNTER,
    Group.MESSAGES,
    "messages_sent",
    _TYPE,
    "messages that this node's entities and code sent to entities, on any node; not those "
    "that it forwards. One that is sent again, because a connection ended before it left, "
    "counts again",
)
MESSAGES_RECEIVED = _declare(
    COUNTER,
    Group.MESSAGES,
    "messages_received",
    _TYPE,
    "messages for entities that arrived here, those that another node forwarded included",
)
MESSAGES_ACCEPTED = _declare(
    COUNTER,
    Group.MESSAGES,
    "messages_accepted",
    _TYPE,
    "messages that arrived, or that this node sent and that had to wait for a home. Each is "
    "delivered, forwarded, buffered, waiting or dropped (for any reason but `unconfirmed` and "
    "`send_buffer_full`); one whose link ended before it left is accepted again",
)
MESSAGES_DELIVERED = _declare(
    COUNTER,
    Group.MESSAGES,
    "messages_delivered",
    _TYPE,
    "messages whose handlers have ended, without those that are dropped because it failed or "
    "refused them",
)
MESSAGES_FORWARDED = _declare(
    COUNTER,
    Group.MESSAGES,
    "messages_forwarded",
    _TYPE,
    "messages that left for the home of their shard, after they had waited for it here or had "
    "arrived although it is elsewhere",
)
MESSAGES_DROPPED = _declare(
    COUNTER,
    Group.MESSAGES,
    "messages_dropped",
    f"{_TYPE} reason",
    "messages that no handler received; unusable frames have an empty type",
)
MESSAGES_REFUSED = _declare(
    COUNTER,
    Group.MESSAGES,
    "messages_refused",
    f"{_TYPE} reason",
    "tells of this node, or forwarded by it, that other nodes acknowledged and then "
    "reported as dropped",
)
ASKS_HEDGED = _declare(
    COUNTER,
    Group.MESSAGES,
    "asks_hedged",
    _TYPE,
    "asks by router `first` that went to a second instance, because the first had not "
    "answered in time or had failed",
)
MESSAGES_REROUTED = _declare(
    COUNTER,
    Group.MESSAGES,
    "messages_rerouted",
    _TYPE,
    "messages that went to another instance, because there are fewer than when they were sent",
)
BUFFERED_MESSAGES = _declare(
    GAUGE,
    Group.MESSAGES,
    "buffered_messages",
    _TYPE,
    "messages that wait for a shard's home",
)
WAITING_MESSAGES = _declare(
    GAUGE,
    Group.MESSAGES,
    "waiting_messages",
    _TYPE,
    "messages that wait in mailboxes and stashes, or that a handler works on",
)
SENDER_PAUSES = _declare(
    COUNTER,
    Group.MESSAGES,
    "sender_pauses",
    _TYPE,
    "times that a sender had to wait because a mailbox was full",
)
MISSED_EDGES = _declare(
    COUNTER,
    Group.MESSAGES,
    "missed_edges",
    "",
    "times that only a watchdog noticed new messages; it checks once a second, and 0 is normal",
)
ASKS_TIMED_OUT = _declare(
    COUNTER, Group.MESSAGES, "asks_timed_out", "", "asks without an answer in time"
)

# ---- deliveries

DELIVERIES = _declare(
    COUNTER,
    Group.MESSAGES,
    "deliveries",
    "outcome",
    "deliveries of this node and its entities that have ended: `confirmed`, `poison`, `expired`, "
    "`refused`, `stale`",
)
REDELIVERIES = _declare(
    COUNTER,
    Group.MESSAGES,
    "redeliveries",
    "reason",
    "deliveries of this node and its entities that were sent again: `no_answer`, `gap`, `failed`, "
    "and `pause` after one",
)
UNCONFIRMED = _declare(
    GAUGE,
    Group.MESSAGES,
    "unconfirmed",
    "",
    "deliveries of this node and its entities that are not confirmed",
)
DELIVERIES_NOT_HANDLED = _declare(
    COUNTER,
    Group.MESSAGES,
    "deliveries_not_handled",
    f"{_TYPE} decision",
    "deliveries to entities here that no handler got: `repeated`, `gap`, `stale`, `key_reused` for "
    "another request, and `skipped` as poison; and records of producers, and results, that were "
    "`forgotten`",
)
# ---- latencies

HANDLER_DURATION = _declare(
    HISTOGRAM,
    Group.LATENCIES,
    "handler_duration_seconds",
    _TYPE,
    "from the call of a handler until it has returned or raised, with all that it awaits; sampled",
)
MAILBOX_WAIT = _declare(
    HISTOGRAM,
    Group.LATENCIES,
    "mailbox_wait_seconds",
    _TYPE,
    "from the arrival of a message at its entity's node until its handler is called: behind"
    " other messages of its batch, in the mailbox, for the start of the entity; sampled",
)
ASK_DURATION = _declare(
    HISTOGRAM,
    Group.LATENCIES,
    "ask_duration_seconds",
    _TYPE,
    "asks by this node's entities and code, of entities on any node, until the answer, an "
    "error or the timeout; the type is that of the asked entity; sampled",
)
SHARD_HOME_LATENCY = _declare(
    HISTOGRAM,
    Group.LATENCIES,
    "shard_home_latency_seconds",
    _TYPE,
    "from the first message that waits here for a shard's home, because it is unknown or "
    "the shard moves, until messages go there",
)
HANDOFF_DURATION = _declare(
    HISTOGRAM,
    Group.LATENCIES,
    "handoff_duration_seconds",
    _TYPE,
    "moves on the coordinator's node, from the beginning, or from a node's end, until the "
    "store has the next home",
)

# ---- entities and shards

ENTITIES_STARTED = _declare(
    COUNTER,
    Group.ENTITIES,
    "entities_started",
    f"{_TYPE} cause",
    "entities started: `message`, `remembered`, `carried`, `deliveries` that are pending, and "
    "`restart` after a failure or for messages that waited",
)
ENTITIES_STOPPED = _declare(
    COUNTER,
    Group.ENTITIES,
    "entities_stopped",
    f"{_TYPE} reason",
    "entities stopped: `handoff`, `passivation`, `shutdown`, `failure`, `stopped`",
)
ENTITY_FAILURES = _declare(
    COUNTER, Group.ENTITIES, "entity_failures", _TYPE, "handlers, starts and stops that raised"
)
ENTITIES_EVICTED = _declare(
    COUNTER,
    Group.ENTITIES,
    "entities_evicted",
    _TYPE,
    "entities passivated because of the limit; `entities_stopped` counts them too",
)
ENTITIES_CARRIED = _declare(
    COUNTER,
    Group.ENTITIES,
    "entities_carried",
    f"{_TYPE} outcome",
    "entities that carry what they have to the next home of their shard: `frozen`, "
    "`failed`, `too_large`, `save_unknown`, `restored`, `not_taken`",
)
ENTITIES_CUT_OFF = _declare(
    COUNTER, Group.ENTITIES, "entities_cut_off", _TYPE, "entities that did not stop in time"
)
ACTIVE_ENTITY_LIMIT = _declare(
    GAUGE,
    Group.ENTITIES,
    "active_entity_limit",
    _TYPE,
    "limit of entities in memory here, 0 for no limit",
)
SLOW_HANDLERS = _declare(
    COUNTER,
    Group.ENTITIES,
    "slow_handlers",
    f"{_TYPE} how",
    "handlers that `waited` for more than `slow_handler_after` or `blocked` the loop for "
    "more than `cluster.app_block_warning`",
)
DEAF_ENTITIES = _declare(
    GAUGE,
    Group.ENTITIES,
    "deaf_entities",
    _TYPE,
    "entities that are busy without a task that runs, and so take no message: a defect",
)
ENTITIES = _declare(GAUGE, Group.ENTITIES, "entities", _TYPE, "entities in memory")
STATE_BYTES = _declare(
    GAUGE,
    Group.ENTITIES,
    "state_bytes",
    _TYPE,
    "states of the entities in memory, in bytes as they are stored; of types with state",
)
STATES_EXPIRED = _declare(
    COUNTER,
    Group.ENTITIES,
    "states_expired",
    _TYPE,
    "states that were idle for `state_ttl` and are removed",
)
REMINDERS_FIRED = _declare(
    COUNTER,
    Group.ENTITIES,
    "reminders_fired",
    _TYPE,
    "reminders whose handler has returned",
)
REMINDERS_LATE = _declare(
    COUNTER,
    Group.ENTITIES,
    "reminders_late",
    _TYPE,
    "those of them that began more than 10 s after they were due",
)
REMINDERS_LEFT_OUT = _declare(
    COUNTER,
    Group.ENTITIES,
    "reminders_left_out",
    _TYPE,
    'due moments that were late and did not fire, by `late="skip"`',
)
REMINDERS_FAILED = _declare(
    COUNTER,
    Group.ENTITIES,
    "reminders_failed",
    _TYPE,
    "attempts at a reminder whose handler raised",
)
REMINDERS_DUE = _declare(
    GAUGE,
    Group.ENTITIES,
    "reminders_due",
    _TYPE,
    "entities with a reminder that is due and has not fired",
)
QUEUE_ITEMS = _declare(
    GAUGE,
    Group.ENTITIES,
    "queue_items",
    _TYPE,
    "items in work queues in memory here that a worker has or will have",
)
QUEUE_ITEMS_ASIDE = _declare(
    GAUGE,
    Group.ENTITIES,
    "queue_items_aside",
    _TYPE,
    "items in work queues in memory here that were set aside, for their work failed too often",
)
QUEUE_PULLS = _declare(
    GAUGE,
    Group.ENTITIES,
    "queue_pulls_waiting",
    _TYPE,
    "pulls of workers that wait for an item",
)
QUEUE_PUTS = _declare(
    GAUGE,
    Group.ENTITIES,
    "queue_puts_waiting",
    _TYPE,
    "puts that wait for room in a work queue",
)
PROJECTION_EVENTS = _declare(
    COUNTER,
    Group.ENTITIES,
    "projection_events_handled",
    _TYPE,
    "events that a projection has handled, and stored as handled",
)
PROJECTION_FAILURES = _declare(
    COUNTER,
    Group.ENTITIES,
    "projection_failures",
    _TYPE,
    "attempts at which a projection's handler of an event raised, or an event could not be read",
)
PROJECTION_MISSING = _declare(
    COUNTER,
    Group.ENTITIES,
    "projection_events_missing",
    _TYPE,
    "events that were removed before a projection could handle them",
)
PROJECTION_BEHIND = _declare(
    GAUGE,
    Group.ENTITIES,
    "projection_entities_behind",
    _TYPE,
    "entities here with events that a projection has not handled, as far as the node knows",
)
PROJECTION_LAG = _declare(
    GAUGE,
    Group.ENTITIES,
    "projection_lag_seconds",
    _TYPE,
    "for how long the first of them has been behind",
)
PROJECTION_STOPPED = _declare(
    GAUGE,
    Group.ENTITIES,
    "projection_entities_stopped",
    _TYPE,
    "those of them that stand at an event which failed too often",
)
PROJECTION_SCANNING = _declare(
    GAUGE,
    Group.ENTITIES,
    "projection_shards_scanning",
    _TYPE,
    "shards whose journals are not compared yet with a projection",
)
ENTITIES_WAITING = _declare(
    GAUGE,
    Group.ENTITIES,
    "entities_waiting_to_start",
    _TYPE,
    "remembered entities that have yet to start again here",
)
SHARDS = _declare(GAUGE, Group.ENTITIES, "shards", _TYPE, "shards hosted here")
HANDOFFS = _declare(
    COUNTER,
    Group.ENTITIES,
    "handoffs",
    f"{_TYPE} result",
    "moves that ended (`stopped`, or `owner_gone`) and deadlines that passed in one "
    "(`overdue`), on the coordinator's node",
)
REBALANCES = _declare(
    COUNTER,
    Group.ENTITIES,
    "rebalances",
    _TYPE,
    "shards that were chosen to move for balance, on the coordinator's node",
)
SHARDING_NOTES = _declare(
    COUNTER,
    Group.ENTITIES,
    "sharding_notes",
    f"{_TYPE} kind",
    "other notes of regions and coordinators, such as `rows_dropped`",
)

# ---- the store

STORE_LATENCY = _declare(
    HISTOGRAM,
    Group.STORE,
    "store_latency_seconds",
    f"{_TYPE} operation",
    "loads and saves of entities' state: `load`, `save`; every call, from the entity's "
    "request until the store's answer",
)
STORE_ERRORS = _declare(
    COUNTER, Group.STORE, "store_errors", "", "loads and saves of entities' state that failed"
)
VALUE_REQUESTS = _declare(
    COUNTER,
    Group.STORE,
    "value_requests",
    "request outcome",
    "requests of replicated values by this node that have ended: `get` or `write`; `done`, "
    "`refused`, `failed` (without effect) or `in doubt`",
)
REPLICA_ROWS = _declare(
    COUNTER,
    Group.STORE,
    "replica_repaired_rows",
    "",
    "rows that this node's replica of `cluster://` had missed, and got from other replicas; none "
    "without a replica",
)
REPLICA_BYTES = _declare(
    COUNTER, Group.STORE, "replica_repaired_bytes", "", "keys and states of these rows, in bytes"
)
REPLICA_REPAIR_AGE = _declare(
    GAUGE,
    Group.STORE,
    "replica_repair_age_seconds",
    "",
    "since this node's replica had last compared all rows with every other replica, and got what "
    "it had missed; it grows while a replica is away",
)

# ---- the cluster

MEMBERS = _declare(GAUGE, Group.CLUSTER, "members", "status", "members by status")
PHI = _declare(GAUGE, Group.CLUSTER, "phi", "node", "suspicion of each node that this one watches")
COORDINATOR_EPOCH = _declare(
    GAUGE, Group.CLUSTER, "coordinator_epoch", _TYPE, "highest coordinator epoch seen"
)
SUSPENDED = _declare(
    GAUGE,
    Group.CLUSTER,
    "suspended",
    "",
    "1 while the node is suspended: its entities handle no message",
)
SUSPENSIONS = _declare(
    COUNTER, Group.CLUSTER, "suspensions", "", "times that membership has suspended this node"
)

# ---- the node

TASKS_FAILED = _declare(
    COUNTER,
    Group.NODE,
    "tasks_failed",
    "",
    "tasks of the node that ended by an error, which is a defect; the log has the "
    "traceback, and the node is not ready any more",
)
VITALS = _declare(
    GAUGE,
    Group.NODE,
    "vitals",
    "what",
    "averages of how busy this node is: `busy`, `lag`, `rss`, `gc`, `mailbox`, `rate`, as "
    "in `/v1/load`",
)
LOOP_LAG = _declare(
    GAUGE,
    Group.NODE,
    "loop_lag_seconds",
    "",
    "time since the application's loop last completed an iteration",
)
POD_DELETION_COST = _declare(
    GAUGE,
    Group.NODE,
    "pod_deletion_cost",
    "",
    "the deletion cost that this node has written to its pod (`kubernetes.deletion_costs`)",
)
KUBERNETES_ERRORS = _declare(
    COUNTER,
    Group.NODE,
    "kubernetes_errors",
    "",
    "attempts to annotate the pod of this node that failed; the log has the reason",
)
BUILD_INFO = _declare(GAUGE, Group.NODE, "build_info", "version", "1")
