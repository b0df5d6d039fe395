"""Writes the files that monitoring reads, from the declarations in
`shardbus/admin/metric_catalogue.py`.

    python docs/make_monitoring.py

    docs/reference/metrics.md          every metric
    docs/reference/alerts.md           every alert, and its remedy
    deploy/prometheus/alerts.yml       the alerts, as rules of Prometheus
    deploy/grafana/shardbus.json       a dashboard: a row for each group, a panel for each metric

An alert names metrics by their declarations, so a renamed metric cannot leave an alert behind that
never fires. A test compares the files with this script's output, and loads them into Prometheus.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardbus.admin import metric_catalogue as catalogue
from shardbus.admin.metric_catalogue import METRICS, Group, MetricDeclaration, MetricKind

ROOT = Path(__file__).resolve().parent.parent
METRICS_PAGE = ROOT / "docs/reference/metrics.md"
ALERTS_PAGE = ROOT / "docs/reference/alerts.md"
RULES = ROOT / "deploy/prometheus/alerts.yml"
DASHBOARD = ROOT / "deploy/grafana/shardbus.json"

DO_NOT_EDIT = "Made by `docs/make_monitoring.py` from the declarations; do not edit."

METRICS_INTRO = f"""\
# Metrics

{DO_NOT_EDIT}

Prometheus's text format at `/metrics` of each node. Most have the label `entity_type`; none has an
entity's id. A unit of several workers adds the label `worker`. The node makes the text at each
request; [alerts](alerts.md) and a dashboard for Grafana are in `deploy/`.
"""

METRICS_CLOSING = """\
## Samples

Counters count every message. To time every message would cost more than many handlers, so the
histograms of handlers, mailboxes and asks are of *samples*: some 100 messages and 100 asks a second
on each node, and each counts for all messages since the last one. So `_count` and `_sum` are
estimates of the totals, and quantiles and means are those of all messages, not of the samples.

The samples are unbiased: the distance from one to the next is drawn anew each time, uniformly
between one and twice its mean, so that no rhythm of the senders can fall in step with it, and it
does not depend on what a message is or how long it takes. Within a batch every message is as likely
as any other. At less than about 100 runs of messages a second every run has a sample. Shard homes,
moves and calls of the store are rare or cost much more than their timing, so each is observed.

## Reasons of drops

`mailbox_full`, `expired`, `schema`, `unhandled`, `malformed`, `stopped`, `start_failed`, `failed`
and `rejected` (of tells: the handler raised), `reentrant`, `buffer_full`, `send_buffer_full`,
`hop_limit`, `refused`, `unconfirmed`, `undelivered`, `dropped_in_move`, `no_instance`, `abandoned`
(an ask that its sender gave up before it had a home) for messages (the last
of them are [dead letters](../how-to/operate.md#dropped-messages)); `malformed`, `no_session`,
`late_hello`, `unknown_type`, `unexpected`, `removed`, `early`, `early_notice`, `late_notice`,
`too_many_sessions` for frames;
for what a process [may not send](../security.md#without-a-secret): `not_allowed`, `not_authorized`,
`not_a_member` (it comes again when the node is a member); for sessions that
ended: `gave_way`, `never_a_member`; for connections that the node closed: `too_many_parts`,
`too_much_unread`, `too_many_connections`, `silent`. Reasons of membership and of the gossip port
begin with `gossip_`, as `gossip_malformed`, `gossip_no_cookie`, `gossip_not_asked` and
`gossip_not_a_subscription`.
"""

ALERTS_INTRO = f"""\
# Alerts

{DO_NOT_EDIT}

Rules for Prometheus, in `deploy/prometheus/alerts.yml`. `critical` means that messages are lost or
entities do not answer; `warning` that they soon may not.
"""


@dataclass(frozen=True, slots=True)
class Alert:
    """One rule. `expr` is PromQL; `lasts` is how long it must hold; `means` and `do` are for the
    person on call."""

    name: str
    expr: str
    lasts: str
    severity: str
    means: str
    do: str


def _rate(metric: MetricDeclaration, window: str = "1m", **labels: str) -> str:
    return f"rate({_selected(metric, labels)}[{window}])"


def _selected(metric: MetricDeclaration, labels: Mapping[str, str]) -> str:
    if unknown := set(labels) - set(metric.labels):
        raise ValueError(f"{metric.name} has no label {unknown}")
    pairs = ",".join(f'{name}=~"{value}"' for name, value in labels.items())
    return f"{metric.exposed}{{{pairs}}}" if pairs else metric.exposed


def _quantile(q: float, metric: MetricDeclaration, window: str, *by: str) -> str:
    names = ", ".join(("le", *by))
    return f"histogram_quantile({q}, sum by ({names}) (rate({metric.exposed}_bucket[{window}])))"


UP = f'{catalogue.MEMBERS.exposed}{{status="up"}}'
WARNING, CRITICAL = "warning", "critical"
LOST = "unconfirmed|buffer_full|hop_limit"

ALERTS = (
    Alert(
        "ShardbusNodeDown",
        'up{job="shardbus"} == 0',
        "1m",
        CRITICAL,
        "Prometheus cannot read a node's metrics: the process has ended, or its HTTP port is "
        "not reachable.",
        "`shardbus nodes` on another node shows whether the cluster has removed it.",
    ),
    Alert(
        "ShardbusClusterSplit",
        f"max({UP}) != min({UP})",
        "2m",
        CRITICAL,
        "Nodes count different numbers of members: the cluster is split, or gossip does not "
        "converge.",
        "`shardbus doctor` names the nodes that do not see each other.",
    ),
    Alert(
        "ShardbusSuspended",
        f"{catalogue.SUSPENDED.exposed} == 1",
        "30s",
        CRITICAL,
        "A node handles no message, because it may have been cut off from the others.",
        "Check the network between the nodes; `/readyz?verbose` has the reason.",
    ),
    Alert(
        "ShardbusSuspicion",
        f"{catalogue.PHI.exposed} > 8",
        "30s",
        WARNING,
        "A node does not answer heartbeats as it used to.",
        "Check its load and its network; it is removed if this goes on.",
    ),
    Alert(
        "ShardbusStoreErrors",
        f"{_rate(catalogue.STORE_ERRORS)} > 0",
        "30s",
        CRITICAL,
        "Loads or saves of state fail. Entities that need the store do not start.",
        "`/readyz?verbose` and the log of the node have the store's error.",
    ),
    Alert(
        "ShardbusStoreSlow",
        f"{_quantile(0.99, catalogue.STORE_LATENCY, '5m', 'operation')} > 0.5",
        "5m",
        WARNING,
        "One in a hundred loads or saves takes more than half a second.",
        "Look at the store's own latency, and at the network to it.",
    ),
    Alert(
        "ShardbusHandlerBlocksLoop",
        f'increase({_selected(catalogue.SLOW_HANDLERS, {"how": "blocked"})}[5m]) > 0',
        "0s",
        WARNING,
        "A handler has blocked the event loop, and with it every entity of the node.",
        "The log names the handler and the line; declare it `@handler(thread=True)`.",
    ),
    Alert(
        "ShardbusHandlersWait",
        f'increase({_selected(catalogue.SLOW_HANDLERS, {"how": "waited"})}[5m]) > 0',
        "5m",
        WARNING,
        "Handlers wait for longer than `slow_handler_after`; their entities take no other message.",
        "The log names the handler, the line where it waits, and which asks have no answer.",
    ),
    Alert(
        "ShardbusLoopLag",
        f"{catalogue.LOOP_LAG.exposed} > 1",
        "10s",
        CRITICAL,
        "The application's loop of a node does not turn.",
        "A handler blocks it, or the machine has no processor time left: see the log.",
    ),
    Alert(
        "ShardbusMailboxFull",
        f'{_rate(catalogue.MESSAGES_DROPPED, reason="mailbox_full")} > 0',
        "0s",
        CRITICAL,
        "Messages are dropped because an entity has `mailbox` messages waiting.",
        "One entity gets more than it can handle, or stands still: `shardbus explain TYPE ID`.",
    ),
    Alert(
        "ShardbusMessagesLost",
        f'{_rate(catalogue.MESSAGES_DROPPED, reason=LOST)} > 0',
        "0s",
        CRITICAL,
        "Messages were lost with a node or a connection, or found no room while a home was "
        "unknown.",
        "`/v1/events` and the log show which node was lost; senders that asked have an error.",
    ),
    Alert(
        "ShardbusNoHome",
        f"{catalogue.BUFFERED_MESSAGES.exposed} > 0",
        "1m",
        CRITICAL,
        "Messages have waited for a shard's home for a minute: no coordinator, or no node "
        "that may host it.",
        "`shardbus shards TYPE` and `shardbus doctor` say what is missing.",
    ),
    Alert(
        "ShardbusAsksSlow",
        f"{_quantile(0.99, catalogue.ASK_DURATION, '5m', 'entity_type')} > 1",
        "5m",
        WARNING,
        "One in a hundred asks takes more than a second.",
        "Compare `mailbox_wait` with `handler_duration` of the type: too many messages, or "
        "slow handlers.",
    ),
    Alert(
        "ShardbusEntitiesFail",
        f"{_rate(catalogue.ENTITY_FAILURES, '5m')} > 1",
        "5m",
        WARNING,
        "Handlers, starts or stops raise more than once a second.",
        "The log has the tracebacks.",
    ),
    Alert(
        "ShardbusEntitiesCutOff",
        f"increase({catalogue.ENTITIES_CUT_OFF.exposed}[15m]) > 0",
        "0s",
        WARNING,
        "Entities did not stop in time when their shard moved; what they had not saved is lost.",
        "Make `on_stop` and the handlers shorter, or `handoff_timeout` longer.",
    ),
    Alert(
        "ShardbusTaskFailed",
        f"{catalogue.TASKS_FAILED.exposed} > 0",
        "0s",
        WARNING,
        "A task of a node ended by an error, which is a defect of shardbus. The node is not ready.",
        "Restart the node, and report the traceback in its log.",
    ),
)  # fmt: skip


def rules(alerts: Sequence[Alert] = ALERTS, *, lasts: str | None = None) -> str:
    """The alerts as a rule file. `lasts` replaces the time that each must hold, for tests."""
    lines = [f"# {DO_NOT_EDIT}", "groups:", "  - name: shardbus", "    rules:"]
    for alert in alerts:
        lines += [
            f"      - alert: {alert.name}",
            f"        expr: {json.dumps(alert.expr)}",
            f"        for: {lasts or alert.lasts}",
            f"        labels: {{severity: {alert.severity}}}",
            "        annotations:",
            f"          summary: {json.dumps(alert.means)}",
            f"          description: {json.dumps(alert.do)}",
        ]
    return "\n".join([*lines, ""])


def alerts_page() -> str:
    """The page of alerts."""
    parts = [ALERTS_INTRO, *(_link(alert.name) for alert in ALERTS), ""]
    for alert in ALERTS:
        parts.append(f"## {alert.name}\n")
        parts.append(f"*{alert.severity}.* {alert.means} {alert.do}\n")
        held = "at once" if alert.lasts == "0s" else f"after {alert.lasts}"
        parts.append(f"Fires {held}:\n\n```text\n{alert.expr}\n```\n")
    return "\n".join(parts)


def metrics_page() -> str:
    """The page of metrics."""
    titles = [*(group.value for group in Group), "Samples", "Reasons of drops"]
    parts = [METRICS_INTRO, *(_link(title) for title in titles), ""]
    for group in Group:
        parts.append(f"## {group.value}\n\n| metric | kind | labels | meaning |\n|---|---|---|---|")
        for metric in METRICS:
            if metric.group is group:
                labels = ", ".join(f"`{label}`" for label in metric.labels)
                kind = metric.kind.value
                parts.append(f"| `{metric.exposed}` | {kind} | {labels} | {metric.meaning} |")
        parts.append("")
    return "\n".join([*parts, METRICS_CLOSING])


def _link(title: str) -> str:
    return f"- [{title}](#{title.lower().replace(' ', '-')})"


# ---- the dashboard

SOURCE = {"type": "prometheus", "uid": "${source}"}
WIDTH, HEIGHT, ACROSS = 8, 8, 24


def queries(metric: MetricDeclaration) -> list[tuple[str, str]]:
    """The queries of a metric's panel, each with its legend."""
    chosen = 'instance=~"$instance"'
    if "entity_type" in metric.labels:
        chosen += ',entity_type=~"$entity_type"'
    by = ", ".join(metric.labels)
    legend = " ".join(f"{{{{{label}}}}}" for label in metric.labels)
    name = metric.exposed
    match metric.kind:
        case MetricKind.HISTOGRAM:
            rate = f"sum by (le, {by}) (rate({name}_bucket{{{chosen}}}[$__rate_interval]))"
            return [
                (f"histogram_quantile({q}, {rate})", f"{legend} {100 * q:g} %") for q in (0.5, 0.99)
            ]
        case MetricKind.COUNTER:
            rate = f"rate({name}{{{chosen}}}[$__rate_interval])"
            return [(f"sum by ({by}) ({rate})" if by else rate, legend or "{{instance}}")]
        case MetricKind.GAUGE:
            return [(f"{name}{{{chosen}}}", f"{{{{instance}}}} {legend}".strip())]


def _panel(number: int, metric: MetricDeclaration, x: int, y: int) -> dict[str, Any]:
    unit = "short"
    if metric.kind is MetricKind.HISTOGRAM or metric.name.endswith("_seconds"):
        unit = "s"
    elif metric.kind is MetricKind.COUNTER:
        unit = "cps"
    return {
        "id": number,
        "type": "timeseries",
        "title": metric.name.removesuffix("_seconds").replace("_", " "),
        "description": metric.meaning,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}},
        "targets": [
            {"refId": chr(ord("A") + n), "expr": expr, "legendFormat": legend, "datasource": SOURCE}
            for n, (expr, legend) in enumerate(queries(metric))
        ],
    }


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name,
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def dashboard() -> dict[str, Any]:
    """The dashboard, as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    y = 0
    for group in Group:
        row = {"x": 0, "y": y, "w": ACROSS, "h": 1}
        panels.append({"id": len(panels) + 1, "type": "row", "title": group.value, "gridPos": row})
        y, x = y + 1, 0
        for metric in METRICS:
            if metric.group is not group:
                continue
            if x == ACROSS:
                x, y = 0, y + HEIGHT
            panels.append(_panel(len(panels) + 1, metric, x, y))
            x += WIDTH
        y += HEIGHT
    build, shards = catalogue.BUILD_INFO.exposed, catalogue.SHARDS.exposed
    return {
        "uid": "shardbus",
        "title": "shardbus",
        "tags": ["shardbus"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "10s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {
            "list": [
                {"name": "source", "type": "datasource", "query": "prometheus"},
                _variable("instance", f"label_values({build}, instance)"),
                _variable("entity_type", f"label_values({shards}, entity_type)"),
            ]
        },
        "panels": panels,
    }


def files() -> dict[Path, str]:
    """Every file that this script writes."""
    return {
        METRICS_PAGE: metrics_page(),
        ALERTS_PAGE: alerts_page(),
        RULES: rules(),
        DASHBOARD: json.dumps(dashboard(), indent=2) + "\n",
    }


if __name__ == "__main__":
    for path, content in files().items():
        path.write_text(content, encoding="utf-8")
