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


def _event(name: str, fields: str = "") -> LogEvent:
    return LogEvent(name, tuple(fields.split()))


_ENTITY = "entity_type entity_id"

EVENTS: Mapping[tuple[str, str], LogEvent] = {
    ("asynchronous", "%s"): _event("tells_refused"),
    ("embedding", "this node is up again, as %s"): _event("rejoined", "node_now"),
    ("embedding", "the embedded node has ended: %s"): _event("embedded_node_ended", "reason"),
    ("embedding", "the embedded node stops before everything was handed off"): _event(
        "embedded_node_stops_early"
    ),
    ("embedding", "this node %s"): _event("rejoining"),
    ("embedding", "%s"): _event("leaving"),
    ("carrying", "%s %r carries nothing: dehydrate failed"): _event("dehydrate_failed", _ENTITY),
    ("carrying", "%s %r starts without what it carried"): _event("rehydrate_failed", _ENTITY),
    ("host", "%s: %d entities in memory have later homes elsewhere"): _event(
        "stale_entities", "entity_type count"
    ),
    ("direct_messages", "failed on a message of %s"): _event("message_failed", "entity_type"),
    ("durable_mailboxes", "the mailbox of %s %r: %s"): _event(
        "mailbox_store_failed", f"{_ENTITY} error"
    ),
    ("durable_mailboxes", "%s %r: a message of its mailbox is given up, %s: %s"): _event(
        "mail_given_up", f"{_ENTITY} reason error"
    ),
    ("entity_sends", "%s %r cannot deliver: %s"): _event("deliveries_stand", f"{_ENTITY} error"),
    ("entity_sends", "%s %r: a delivery to %s %r is given up, %s: %s"): _event(
        "delivery_given_up", f"{_ENTITY} to_type to_id reason error"
    ),
    ("outbox", "outbox %r: a delivery is given up, %s: %s"): _event(
        "outbox_delivery_given_up", "outbox reason error"
    ),
    ("work_queue", "item %d of %r failed: %s"): _event("work_failed", "item queue error"),
    ("event_log", "%s %r has no new snapshot: %s"): _event("snapshot_failed", f"{_ENTITY} error"),
    ("journal_scan", "the journals for %s: %s"): _event(
        "journals_not_scanned", "entity_type error"
    ),
    ("merging", "news of merged states of %s: %s"): _event(
        "merged_states_unread", "entity_type error"
    ),
    ("projecting", "%s cannot follow %r: %s"): _event("source_not_followed", f"{_ENTITY} error"),
    ("projecting", "%s %r: %d events were removed before it could handle them"): _event(
        "events_missing", f"{_ENTITY} count"
    ),
    ("reminding", "%s shard %s: %s"): _event("reminders_call_refused", "entity_type shard error"),
    ("reminding", "%s shard %s: a call for its reminders failed"): _event(
        "reminders_call_failed", "entity_type shard"
    ),
    ("reminding", "%s: reminder %r failed %d times"): _event(
        "reminder_given_up", "entity_type reminder attempts"
    ),
    ("reminded_shards", "the shards with reminders: %s"): _event(
        "reminded_shards_not_read", "error"
    ),
    (
        "reminded_shards",
        "reminders and messages in %d former shards wait in the store",
    ): _event("reminders_of_former_shards", "shards"),
    ("reminded_shards", "the reminders of %d entities of %r have moved"): _event(
        "reminders_moved", "count entity_type"
    ),
    ("reminded_shards", "the shard of %r is unknown: its reminders stay"): _event(
        "reminders_stay", "entity_id"
    ),
    ("remembering", "%s shard %s: %s"): _event("remembered_list_failed", "entity_type shard error"),
    ("remembering", "%s shard %s: a call for its remembered entities failed"): _event(
        "remembered_call_failed", "entity_type shard"
    ),
    ("remembering", "%s %r does not start elsewhere: %s"): _event(
        "relocation_failed", f"{_ENTITY} error"
    ),
    (
        "deaf_entities",
        "%s %r is busy without a task since %d s: it takes no message",
    ): _event("entity_deaf", f"{_ENTITY} seconds"),
    ("deferred", "piped work was not cancelled"): _event("work_not_cancelled"),
    ("slow_handlers", "%s of %s %r %s%s"): _event("slow_handler", f"method {_ENTITY} - -"),
    (
        "slow_handlers",
        "code outside of a handler blocks the loop since %.1f s, at %s",
    ): _event("other_code_blocks", "seconds place"),
    ("stopping", "%s %r did not stop in time: cut off"): _event("entity_cut_off", _ENTITY),
    ("stopping", "on_stop of %s %r failed"): _event("on_stop_failed", _ENTITY),
    ("supervision", "%s %r %s: %s: %s"): _event("entity_failed", f"{_ENTITY} - error_type error"),
    ("supervision", "the supervision of %s failed"): _event("supervision_failed", "entity_type"),
    ("server", "cut off a request for %.100s: this node ends"): _event("request_cut_off", "path"),
    ("starlette", "a request failed: %s: %s"): _event("request_failed", "error_type error"),
    ("dispatch", "dropped a %s: %s may not send it"): _event("message_not_allowed", "kind peer"),
    (
        "downing_log",
        "UNSAFE: members that are unreachable for %g s are downed on both sides of a split, which "
        "then go on as two clusters; no strategy decides (unsafe_auto_down_after)",
    ): _event("unsafe_downing", "seconds"),
    ("file_descriptors", "this process may open %d file descriptors, fewer than %d: %s"): _event(
        "few_file_descriptors", "limit wanted -"
    ),
    ("event_loop", "connections to port %d wait: all %d descriptors are in use: %s"): _event(
        "file_descriptors_used_up", "port limit -"
    ),
    ("file_descriptors", "%d of %d file descriptors are in use: %s"): _event(
        "file_descriptors_run_out", "used limit -"
    ),
    (
        "store_upkeep",
        "the store has another server, which may have lost writes: fences are raised",
    ): _event("store_server_changed"),
    ("node", "listening under secret %s"): _event("secret_changed", "fingerprint"),
    ("run", "the replica listens under secret %s"): _event("secret_changed", "fingerprint"),
    ("membership_link", "dropped a message of membership that %s may not send"): _event(
        "message_not_allowed", "peer"
    ),
    ("membership_link", "%s answers heartbeats but acknowledges no message: quarantined"): _event(
        "peer_quarantined", "peer"
    ),
    ("records", "%s"): _event("tells_refused"),
    ("join_attempts", "in no cluster after %.0f s: %s"): _event("join_waits", "seconds ways"),
    ("join_attempts", "%s"): _event("rejoin_waits"),
    ("node", "the cluster refuses: %s"): _event("command_refused", "reason"),
    ("store_upkeep", "the store may lack its identity and this node's address: %s"): _event(
        "registration_failed", "error"
    ),
    ("membership_store", "no answer about lease %s: %s"): _event("lease_unanswered", "lease error"),
    ("membership_store", "the lease %s was not asked for"): _event("lease_call_failed", "lease"),
    ("membership_store", "the record of the cluster that has the store was not read: %s"): _event(
        "claim_record_not_read", "error"
    ),
    ("membership_store", "the record of the cluster that has the store was not read"): _event(
        "claim_record_call_failed"
    ),
    (
        "membership_store",
        "the record of the cluster that has the store stays as it was: %s",
    ): _event("claim_record_not_written", "error"),
    ("membership_store", "no answer about the nodes that use this store: %s"): _event(
        "registered_nodes_not_read", "error"
    ),
    ("store_reach", "the store was not probed"): _event("store_not_probed"),
    (
        "store_reach",
        "this node cannot use the store, and %s can: the next oldest node takes over its"
        " coordinators",
    ): _event("store_out_of_reach", "member"),
    ("shutdown_phases", "%s: %s failed"): _event("shutdown_task_failed", "phase task"),
    ("app_version", "the revision of the Deployment is not known yet: %s"): _event(
        "revision_unknown", "error"
    ),
    ("pod_deletion_cost", "the pod of this node has the deletion cost %s"): _event(
        "deletion_cost_written", "cost"
    ),
    ("pod_deletion_cost", "the deletion cost is not written yet: %s"): _event(
        "deletion_cost_delayed", "error"
    ),
    ("pod_deletion_cost", "the deletion cost of the pod stays as it is: %s"): _event(
        "deletion_cost_given_up", "error"
    ),
    ("rpc", "the answer to %r failed: %s"): _event("answer_failed", "question error"),
    ("run", "a task of this process has stopped the loop, which goes on"): _event("loop_stopped"),
    ("run", "the cluster's secret is as it was"): _event("secret_unchanged"),
    ("run", "the keys stay as they were: %s"): _event("keys_kept", "reason"),
    ("session", "dropped a Hold: %s may not send it"): _event("message_not_allowed", "peer"),
    ("session_loss", "%d messages of %r may be lost: no acknowledgement came"): _event(
        "messages_unconfirmed", "count entity_type"
    ),
    ("stored_layouts", "the shards of %r change from %r to %r"): _event(
        "layout_changed", "entity_type before after"
    ),
    ("stored_layouts", "the stored table of %r was not compared: %s"): _event(
        "layout_not_compared", "entity_type error"
    ),
    ("subscriptions", "a callback of membership failed"): _event("callback_failed"),
    ("ticker", "%s: the periodic task failed, the others go on"): _event(
        "periodic_task_failed", "task"
    ),
    ("load_reports", "%s: %s"): _event("expected_load_failed", "entity_type error"),
    ("cluster_thread", "the cluster thread failed: %s"): _event("cluster_thread_failed", "error"),
    ("cluster_thread", "the application has not turned its loop for %.1f s: down"): _event(
        "loop_blocked_down", "seconds"
    ),
    ("cluster_thread", "dropped a malformed message: %s"): _event("gossip_malformed", "error"),
    (
        "cluster_thread",
        "the application has not turned its loop for %.1f s: the next oldest node takes over its "
        "coordinators",
    ): _event("loop_blocked", "seconds"),
    ("cluster_thread", "the cluster thread has ended"): _event("cluster_thread_ended"),
    ("coordinator", "the table of %r was not loaded"): _event("table_not_loaded", "entity_type"),
    ("coordinator", "the table of %r cannot be claimed: %s"): _event(
        "table_not_claimable", "entity_type error"
    ),
    ("coordinator", "the strategy of %r was not called"): _event(
        "strategy_not_called", "entity_type"
    ),
    ("coordinator", "the table of %r was not claimed"): _event("table_not_claimed", "entity_type"),
    ("coordinator", "the table of %r cannot be checked: %s"): _event(
        "table_not_checked", "entity_type error"
    ),
    ("coordinator", "the table of %r was not written: %s"): _event(
        "table_not_written", "entity_type error"
    ),
    ("coordinator", "the table of %r was not written"): _event("table_not_written", "entity_type"),
    ("coordinator", "the coordinator of %r has ended: %s"): _event(
        "coordinator_ended", "entity_type reason"
    ),
    ("coordinator", "remembered entities of %r: %s"): _event(
        "remembered_not_listed", "entity_type error"
    ),
    ("discovery", "removed the registrations of nodes that have ended: %s"): _event(
        "registrations_removed", "nodes"
    ),
    ("discovery", "looking for contacts failed, and is repeated: %s"): _event(
        "discovery_failed", "error"
    ),
    ("discovery", "looking for contacts works again"): _event("discovery_works"),
    ("leases", "the lease %r was not acquired"): _event("lease_not_acquired", "lease"),
    ("leases", "the lease %r was not renewed"): _event("lease_not_renewed", "lease"),
    ("leases", "the lease %r was not released"): _event("lease_not_released", "lease"),
    ("overrides", "the overrides of %r cannot be read and are ignored: %s"): _event(
        "overrides_unreadable", "entity_type error"
    ),
    ("region", "%d messages of %r found no home before this node ended"): _event(
        "messages_undelivered", "count entity_type"
    ),
    ("region", "no part of this node performs a %s"): _event("effect_unknown", "effect"),
    ("state_expiry", "%s: the sweep of idle states ended early: %s"): _event(
        "state_sweep_failed", "entity_type error"
    ),
    ("state_expiry", "%s: the sweep of idle states ended early"): _event(
        "state_sweep_not_done", "entity_type"
    ),
    ("outage", "the store %s %s%s"): _event("store_away", "store error -"),
    ("outage", "the store %s works again, after %.0f s"): _event("store_works", "store seconds"),
    ("redis_servers", "%s"): _event("store_settings"),
    ("replicated", "the store %s waits for replicas: %s"): _event(
        "store_waits_for_replicas", "store replicas"
    ),
    ("server", "%d rows read from %s in %.1f s"): _event("replica_rows_read", "rows path seconds"),
    ("server", "the replica %s serves: its store has %d disks"): _event(
        "replica_serves", "replica disks"
    ),
    ("server", "the replica %s has ring %d of %d disks"): _event(
        "replica_ring", "replica ring disks"
    ),
    ("server", "the disk %s is given up, and put aside: %s"): _event(
        "replica_disk_given_up", "path reason"
    ),
    ("turns", "the replica ends: its disk %s failed: %s"): _event(
        "replica_disk_failed", "path error"
    ),
    ("joining", "the replica %s has a blank disk, and is not in the ring: %s"): _event(
        "replica_not_in_ring", "replica reason"
    ),
    ("joining", "the replica %s has its blank disk in ring %d"): _event(
        "replica_disk_replaced", "replica ring"
    ),
    ("replicated", "%s was founded anew: acknowledged saves may be lost"): _event(
        "store_founded_anew", "url"
    ),
    (
        "replicated_data",
        "data.r is %s and data.w is %s: of %d replicas, a get may miss an acknowledged put",
    ): _event("values_may_be_missed", "r w replicas"),
    ("replicated", "%s: ring %d of %d disks"): _event("store_ring", "url ring disks"),
    ("peers", "the replica %s waits for %s"): _event("replica_waits", "replica reason"),
    ("disk", "the replica's disk in %s cannot be used: %s"): _event(
        "replica_disk_damaged", "path damage"
    ),
    ("child", "the replica %s; it is started again in %g s"): _event(
        "replica_ended", "how seconds"
    ),
    ("replica_links", "a call of this store cannot be sent: %s"): _event(
        "store_call_not_sent", "error"
    ),
    ("child", "the replica cannot be started: %s"): _event("replica_not_started", "error"),
    ("server_watch", "%s"): _event("store_settings"),
    ("store_wait", "this node %s once its store answers, %s: %s"): _event(
        "waits_for_store", "step until error"
    ),
    ("server_watch", "the store %s was not probed"): _event("server_not_probed", "store"),
    ("server_watch", "the settings of the store %s are in order again"): _event(
        "store_settings_in_order", "store"
    ),
    ("sqlite_worker", "the thread of the store %s failed"): _event("store_thread_failed", "store"),
    ("task_set", "a task failed: %s"): _event("task_failed", "task"),
    ("endpoint", "no connection to %s: %s"): _event("connection_denied", "peer reason"),
    ("endpoint", "dropped a message of %s in the name of another node"): _event(
        "message_forged", "peer"
    ),
    ("inbox", "dropped a run from %s: %s"): _event("run_malformed", "peer error"),
    ("inbox", "failed on a %s from %s"): _event("run_failed", "run peer"),
    ("incoming", "dropped a frame of type %d: %s may not send it"): _event(
        "frame_not_allowed", "frame peer"
    ),
    ("incoming", "refused a session: %s"): _event("session_refused", "reason"),
    ("incoming", "dropped a frame: %s"): _event("frame_malformed", "error"),
    ("outgoing", "dropped a frame from %s: %s"): _event("frame_malformed", "peer error"),
    ("connection_guard", "ended a connection from %s: %s%s"): _event(
        "connection_ended", "peer reason -"
    ),
    ("connection_guard", "connections are not watched any more"): _event("connections_unwatched"),
    ("connection_guard", "a check of the connections failed"): _event("connection_check_failed"),
    ("curve", "the keys stay as they were: %s"): _event("keys_kept", "reason"),
    ("network", "no socket for port %d: %s: raise the limit of `ulimit -n`"): _event(
        "socket_refused", "port error"
    ),
    ("pubsub", "no gossip from %s: %s"): _event("gossip_refused", "peer reason"),
    ("sockets", "ZeroMQ's threads do not end within %g s: they are left behind"): _event(
        "sockets_left_behind", "seconds"
    ),
    ("zap", "peers are not authenticated any more: every new connection is refused"): _event(
        "authentication_ended"
    ),
    ("zap", "refused a connection from %s: its key is not known here"): _event(
        "key_unknown", "peer"
    ),
    ("zap", "a peer is refused: its key could not be checked"): _event("key_not_checked"),
    ("unit", "worker %d cannot be started: %s"): _event("worker_not_started", "worker error"),
    ("unit", "worker %d did not end in time and is killed"): _event("worker_killed", "worker"),
    ("unit", "worker %d %s; it is restarted in %g s"): _event(
        "worker_restarted", "worker reason seconds"
    ),
    ("log_writer", "%d lines of the log were dropped: what reads it stood still"): _event(
        "log_lines_dropped", "count"
    ),
}
"""By the module that logs, and the text without its arguments."""


def event_of(record: logging.LogRecord) -> LogEvent | None:
    """Return the event of a line; None if it is not of shardbus."""
    own = getattr(record, "event", None)
    if isinstance(own, str):
        return LogEvent(own)
    return EVENTS.get((record.module, LEFT_OUT.sub("", str(record.msg))))


def fields_of(record: logging.LogRecord, event: LogEvent) -> dict[str, object]:
    """Return the arguments of a line by their names: numbers as they are, anything else as text."""
    args = record.args if isinstance(record.args, tuple) else ()
    return {
        name: arg if isinstance(arg, int | float) else written(arg)
        for name, arg in zip(event.fields, args, strict=False)
        if name != "-"
    }
