"""The events that shardbus logs: each has one stable name, whatever its text is.

A line is found by the module that logs it and by its text without arguments, so the code logs as
any library does, and no call needs to name its event. The arguments become fields under the names
given here; `-` leaves one out, because it has no meaning by itself. The notes of machines and the
events of membership name themselves (`node.event_log`).

The library only logs. Code that writes the lines, as the command line does, calls `event_of` and
`fields_of`.

Source: docs/reference/logs.md; B.62.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import NamedTuple

from shardbus.error_text import written

LEFT_OUT = re.compile(r" \(\d+ lines like it were left out\)$")
"""The text that the limit on a log's rate appends."""


class LogEvent(NamedTuple):
    """One event: its name, and the names of its arguments."""

    name: str
    fields: tuple[str, ...] = ()


_TABLE = """
asynchronous: tells_refused: %s
embedding: rejoined node_now: this node is up again, as %s
embedding: embedded_node_ended reason: the embedded node has ended: %s
embedding: embedded_node_stops_early: the embedded node stops before everything was handed off
embedding: rejoining: this node %s
embedding: leaving: %s
carrying: dehydrate_failed entity_type entity_id: %s %r carries nothing: dehydrate failed
carrying: rehydrate_failed entity_type entity_id: %s %r starts without what it carried
host: stale_entities entity_type count: %s: %d entities in memory have later homes elsewhere
direct_messages: message_failed entity_type: failed on a message of %s
durable_mailboxes: mailbox_store_failed entity_type entity_id error: the mailbox of %s %r: %s
durable_mailboxes: mail_given_up entity_type entity_id reason error: %s %r: a message of its mailbox
    is given up, %s: %s
entity_sends: deliveries_stand entity_type entity_id error: %s %r cannot deliver: %s
entity_sends: delivery_given_up entity_type entity_id to_type to_id reason error: %s %r: a delivery
    to %s %r is given up, %s: %s
outbox: outbox_delivery_given_up outbox reason error: outbox %r: a delivery is given up, %s: %s
work_queue: work_failed item queue error: item %d of %r failed: %s
event_log: snapshot_failed entity_type entity_id error: %s %r has no new snapshot: %s
journal_scan: journals_not_scanned entity_type error: the journals for %s: %s
merging: merged_states_unread entity_type error: news of merged states of %s: %s
projecting: source_not_followed entity_type entity_id error: %s cannot follow %r: %s
projecting: events_missing entity_type entity_id count: %s %r: %d events were removed before it
    could handle them
reminding: reminders_call_refused entity_type shard error: %s shard %s: %s
reminding: reminders_call_failed entity_type shard: %s shard %s: a call for its reminders failed
reminding: reminder_given_up entity_type reminder attempts: %s: reminder %r failed %d times
reminded_shards: reminded_shards_not_read error: the shards with reminders: %s
reminded_shards: reminders_of_former_shards shards: reminders and messages in %d former shards wait
    in the store
reminded_shards: reminders_moved count entity_type: the reminders of %d entities of %r have moved
reminded_shards: reminders_stay entity_id: the shard of %r is unknown: its reminders stay
remembering: remembered_list_failed entity_type shard error: %s shard %s: %s
remembering: remembered_call_failed entity_type shard: %s shard %s: a call for its remembered
    entities failed
remembering: relocation_failed entity_type entity_id error: %s %r does not start elsewhere: %s
deaf_entities: entity_deaf entity_type entity_id seconds: %s %r is busy without a task since %d s:
    it takes no message
deferred: work_not_cancelled: piped work was not cancelled
slow_handlers: slow_handler method entity_type entity_id - -: %s of %s %r %s%s
slow_handlers: other_code_blocks seconds place: code outside of a handler blocks the loop since %.1f
    s, at %s
stopping: entity_cut_off entity_type entity_id: %s %r did not stop in time: cut off
stopping: on_stop_failed entity_type entity_id: on_stop of %s %r failed
supervision: entity_failed entity_type entity_id - error_type error: %s %r %s: %s: %s
supervision: supervision_failed entity_type: the supervision of %s failed
server: request_cut_off path: cut off a request for %.100s: this node ends
starlette: request_failed error_type error: a request failed: %s: %s
dispatch: message_not_allowed kind peer: dropped a %s: %s may not send it
downing_log: unsafe_downing seconds: UNSAFE: members that are unreachable for %g s are downed on
    both sides of a split, which then go on as two clusters; no strategy decides
    (unsafe_auto_down_after)
file_descriptors: few_file_descriptors limit wanted -: this process may open %d file descriptors,
    fewer than %d: %s
event_loop: file_descriptors_used_up port limit -: connections to port %d wait: all %d descriptors
    are in use: %s
file_descriptors: file_descriptors_run_out used limit -: %d of %d file descriptors are in use: %s
store_upkeep: store_server_changed: the store has another server, which may have lost writes: fences
    are raised
node: secret_changed fingerprint: listening under secret %s
run: secret_changed fingerprint: the replica listens under secret %s
membership_link: message_not_allowed peer: dropped a message of membership that %s may not send
membership_link: peer_quarantined peer: %s answers heartbeats but acknowledges no message:
    quarantined
records: tells_refused: %s
join_attempts: join_waits seconds ways: in no cluster after %.0f s: %s
join_attempts: rejoin_waits: %s
node: command_refused reason: the cluster refuses: %s
store_upkeep: registration_failed error: the store may lack its identity and this node's address: %s
membership_store: lease_unanswered lease error: no answer about lease %s: %s
membership_store: lease_call_failed lease: the lease %s was not asked for
membership_store: claim_record_not_read error: the record of the cluster that has the store was not
    read: %s
membership_store: claim_record_call_failed: the record of the cluster that has the store was not
    read
membership_store: claim_record_not_written error: the record of the cluster that has the store stays
    as it was: %s
membership_store: registered_nodes_not_read error: no answer about the nodes that use this store: %s
store_reach: store_not_probed: the store was not probed
store_reach: store_out_of_reach member: this node cannot use the store, and %s can: the next oldest
    node takes over its coordinators
shutdown_phases: shutdown_task_failed phase task: %s: %s failed
app_version: revision_unknown error: the revision of the Deployment is not known yet: %s
pod_deletion_cost: deletion_cost_written cost: the pod of this node has the deletion cost %s
pod_deletion_cost: deletion_cost_delayed error: the deletion cost is not written yet: %s
pod_deletion_cost: deletion_cost_given_up error: the deletion cost of the pod stays as it is: %s
rpc: answer_failed question error: the answer to %r failed: %s
run: loop_stopped: a task of this process has stopped the loop, which goes on
run: secret_unchanged: the cluster's secret is as it was
run: keys_kept reason: the keys stay as they were: %s
session: message_not_allowed peer: dropped a Hold: %s may not send it
session_loss: messages_unconfirmed count entity_type: %d messages of %r may be lost: no
    acknowledgement came
stored_layouts: layout_changed entity_type before after: the shards of %r change from %r to %r
stored_layouts: layout_not_compared entity_type error: the stored table of %r was not compared: %s
subscriptions: callback_failed: a callback of membership failed
ticker: periodic_task_failed task: %s: the periodic task failed, the others go on
load_reports: expected_load_failed entity_type error: %s: %s
cluster_thread: cluster_thread_failed error: the cluster thread failed: %s
cluster_thread: loop_blocked_down seconds: the application has not turned its loop for %.1f s: down
cluster_thread: gossip_malformed error: dropped a malformed message: %s
cluster_thread: loop_blocked seconds: the application has not turned its loop for %.1f s: the next
    oldest node takes over its coordinators
cluster_thread: cluster_thread_ended: the cluster thread has ended
coordinator: table_not_loaded entity_type: the table of %r was not loaded
coordinator: table_not_claimable entity_type error: the table of %r cannot be claimed: %s
coordinator: strategy_not_called entity_type: the strategy of %r was not called
coordinator: table_not_claimed entity_type: the table of %r was not claimed
coordinator: table_not_checked entity_type error: the table of %r cannot be checked: %s
coordinator: table_not_written entity_type error: the table of %r was not written: %s
coordinator: table_not_written entity_type: the table of %r was not written
coordinator: coordinator_ended entity_type reason: the coordinator of %r has ended: %s
coordinator: remembered_not_listed entity_type error: remembered entities of %r: %s
discovery: registrations_removed nodes: removed the registrations of nodes that have ended: %s
discovery: discovery_failed error: looking for contacts failed, and is repeated: %s
discovery: discovery_works: looking for contacts works again
leases: lease_not_acquired lease: the lease %r was not acquired
leases: lease_not_renewed lease: the lease %r was not renewed
leases: lease_not_released lease: the lease %r was not released
overrides: overrides_unreadable entity_type error: the overrides of %r cannot be read and are
    ignored: %s
region: messages_undelivered count entity_type: %d messages of %r found no home before this node
    ended
region: effect_unknown effect: no part of this node performs a %s
state_expiry: state_sweep_failed entity_type error: %s: the sweep of idle states ended early: %s
state_expiry: state_sweep_not_done entity_type: %s: the sweep of idle states ended early
outage: store_away store error -: the store %s %s%s
outage: store_works store seconds: the store %s works again, after %.0f s
redis_servers: store_settings: %s
replicated: store_waits_for_replicas store replicas: the store %s waits for replicas: %s
server: replica_rows_read rows path seconds: %d rows read from %s in %.1f s
server: replica_serves replica disks: the replica %s serves: its store has %d disks
server: replica_ring replica ring disks: the replica %s has ring %d of %d disks
server: replica_disk_given_up path reason: the disk %s is given up, and put aside: %s
turns: replica_disk_failed path error: the replica ends: its disk %s failed: %s
joining: replica_not_in_ring replica reason: the replica %s has a blank disk, and is not in the
    ring: %s
joining: replica_disk_replaced replica ring: the replica %s has its blank disk in ring %d
joining: replica_is_spare replica: the replica %s is a spare: it has no rows until a ring has it
joining: replica_gives_way replica spare: the replica %s is away for long: the spare %s takes its
    place
joining: replica_stays replica reason: the replica %s is away, and its replacement waits for %s
joining: replica_not_replaced replica spare reason: the replica %s has not given way to the spare
    %s: %s
joining: store_ring_changed ring replicas: ring %d of the store has the replicas %s
replicated: store_founded_anew url: %s was founded anew: acknowledged saves may be lost
replicated_data: values_may_be_missed r w replicas: data.r is %s and data.w is %s: of %d replicas, a
    get may miss an acknowledged put
replicated: store_ring url ring disks: %s: ring %d of %d disks
peers: replica_waits replica reason: the replica %s waits for %s
disk: replica_disk_damaged path damage: the replica's disk in %s cannot be used: %s
child: replica_ended how seconds: the replica %s; it is started again in %g s
replica_links: store_call_not_sent error: a call of this store cannot be sent: %s
child: replica_not_started error: the replica cannot be started: %s
server_watch: store_settings: %s
store_wait: waits_for_store step until error: this node %s once its store answers, %s: %s
server_watch: server_not_probed store: the store %s was not probed
server_watch: store_settings_in_order store: the settings of the store %s are in order again
sqlite_worker: store_thread_failed store: the thread of the store %s failed
task_set: task_failed task: a task failed: %s
endpoint: connection_denied peer reason: no connection to %s: %s
endpoint: message_forged peer: dropped a message of %s in the name of another node
inbox: run_malformed peer error: dropped a run from %s: %s
inbox: run_failed run peer: failed on a %s from %s
incoming: frame_not_allowed frame peer: dropped a frame of type %d: %s may not send it
incoming: session_refused reason: refused a session: %s
incoming: frame_malformed error: dropped a frame: %s
outgoing: frame_malformed peer error: dropped a frame from %s: %s
connection_guard: connection_ended peer reason -: ended a connection from %s: %s%s
connection_guard: connections_unwatched: connections are not watched any more
connection_guard: connection_check_failed: a check of the connections failed
curve: keys_kept reason: the keys stay as they were: %s
network: socket_refused port error: no socket for port %d: %s: raise the limit of `ulimit -n`
pubsub: gossip_refused peer reason: no gossip from %s: %s
sockets: sockets_left_behind seconds: ZeroMQ's threads do not end within %g s: they are left behind
zap: authentication_ended: peers are not authenticated any more: every new connection is refused
zap: key_unknown peer: refused a connection from %s: its key is not known here
zap: key_not_checked: a peer is refused: its key could not be checked
unit: worker_not_started worker error: worker %d cannot be started: %s
unit: worker_killed worker: worker %d did not end in time and is killed
unit: worker_restarted worker reason seconds: worker %d %s; it is restarted in %g s
log_writer: log_lines_dropped count: %d lines of the log were dropped: what reads it stood still
"""
"""The module that logs, the name of the event and the names of its arguments, and the text."""


def _declared(row: str) -> tuple[tuple[str, str], LogEvent]:
    module, words, text = row.split(": ", 2)
    name, *fields = words.split()
    return (module, text), LogEvent(name, tuple(fields))


EVENTS: Mapping[tuple[str, str], LogEvent] = dict(
    map(_declared, _TABLE.replace("\n    ", " ").strip().split("\n"))
)
"""By the module that logs, and the text without its arguments."""


def event_of(record: logging.LogRecord) -> LogEvent | None:
    """Return the event of a line; None if it is not of shardbus."""
    event = getattr(record, "event", None)
    if isinstance(event, str):
        return LogEvent(event)
    return EVENTS.get((record.module, LEFT_OUT.sub("", str(record.msg))))


def fields_of(record: logging.LogRecord, event: LogEvent) -> dict[str, object]:
    """Return the arguments of a line by their names: numbers as they are, anything else as text."""
    args = record.args if isinstance(record.args, tuple) else ()
    return {
        name: arg if isinstance(arg, int | float) else written(arg)
        for name, arg in zip(event.fields, args, strict=False)
        if name != "-"
    }
