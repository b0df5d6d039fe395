"""A real node exports its spans by OTLP, and they join the trace of a client in another process."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from shardbus import AsyncClient
from tests import spans
from tests.process.nodes import Processes
from tests.spans import Spans, id_of
from tests.waiting import PATIENCE_S, until


class Collector:
    """Takes spans as the OpenTelemetry collector does: POST /v1/traces, protobuf."""

    def __init__(self) -> None:
        received = self.received = list[Span]()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    import gzip

                    body = gzip.decompress(body)
                request = ExportTraceServiceRequest.FromString(body)
                for resource in request.resource_spans:
                    for scope in resource.scope_spans:
                        received.extend(scope.spans)
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1/traces"
        self._thread = threading.Thread(target=self._server.serve_forever)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def collector() -> Iterator[Collector]:
    collector = Collector()
    yield collector
    collector.close()


async def test_B151_a_collector_gets_the_spans_of_a_node_in_the_trace_of_its_client(
    lab: Processes, collector: Collector
) -> None:
    spans.install()
    kept = Spans()
    kept.clear()
    settings = ("tracing.enabled=true",)
    node = await lab.start(settings=settings, APP_COLLECTOR=collector.url)
    await lab.agree()
    async_client = AsyncClient(
        f"tcp://{node.address}",
        cluster="lab",
        tracing=True,
        timeout=PATIENCE_S,
        connect_timeout=PATIENCE_S,
    )
    async with async_client as client:
        with kept.root():
            assert await client.call("account", "a-1", "add", 5) == 5
    names = {"handle account.add", "save account"}
    await until(lambda: names <= {span.name for span in collector.received}, "the spans")
    ask_span = kept.span("ask account")
    context = ask_span.get_span_context()
    assert context is not None
    [handled] = [span for span in collector.received if span.name == "handle account.add"]
    [saved] = [span for span in collector.received if span.name == "save account"]
    assert int.from_bytes(handled.trace_id, "big") == context.trace_id
    assert int.from_bytes(handled.parent_span_id, "big") == id_of(ask_span)
    assert saved.parent_span_id == handled.span_id
    about = {pair.key: pair.value for pair in handled.attributes}
    assert about["shardbus.entity_id"].string_value == "a-1"
    assert about["shardbus.process"].string_value.startswith(node.address)
