"""Nodes ask an API server about their pods, over TLS: the oldest node has the highest cost, and the
revision of the Deployment is the version."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shardbus import Entity, ShardBus, handler
from shardbus.admin.metrics import render
from shardbus.config.settings import KubernetesSettings, NodeSettings
from shardbus.errors import ConfigError
from shardbus.node import app_version
from shardbus.node.app_version import version_source, with_version
from shardbus.node.node import Node
from shardbus.shells.pod_deletion_cost import ANNOTATION
from shardbus.transport import kubernetes_api
from shardbus.transport.kubernetes_api import ApiFailure, PodApi
from tests.certificates import Certificates
from tests.kubernetes_api import CARRY_OUT, DRIP, NO_HTTP, SILENCE, KubernetesApi
from tests.loopback.nodes import Nodes, http
from tests.records import replace
from tests.waiting import until


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[KubernetesApi]:
    async with KubernetesApi(tmp_path) as server:
        server.add("a")
        yield server


def settings(api: KubernetesApi, pod: str = "a", costs: int = 3) -> KubernetesSettings:
    return KubernetesSettings(
        deletion_costs=costs, pod=pod, api=api.address, service_account=str(api.account)
    )


def pod_of(api: KubernetesApi) -> PodApi:
    return PodApi(settings(api), {})


def application() -> ShardBus:
    bus = ShardBus("shop")

    @bus.entity("counter", shards=4)
    class Counter(Entity):
        @handler
        def add(self, amount: int) -> int:
            return amount

    return bus


# One request


async def test_an_annotation_is_set_and_the_others_stay(api: KubernetesApi) -> None:
    api.annotations["a"]["other"] = "1"
    assert await pod_of(api).annotate(ANNOTATION, "300") is None
    assert api.annotations["a"] == {"other": "1", ANNOTATION: "300"}
    [(line, headers, _)] = api.requests
    assert line == "PATCH /api/v1/namespaces/shop/pods/a?fieldManager=shardbus HTTP/1.1"
    assert headers["host"] == api.address


async def test_the_address_is_what_kubernetes_tells_a_pod(api: KubernetesApi) -> None:
    host, port = api.address.split(":")
    variables = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    assert await PodApi(replace(settings(api), api=""), variables).annotate("x", "1") is None
    with pytest.raises(ConfigError, match="this process is in no pod"):
        PodApi(replace(settings(api), api=""), {})


@pytest.mark.parametrize(
    ("status", "final", "words"),
    [
        (400, True, "answers 400: busy"),
        (401, False, "does not accept the token of"),
        (403, False, "cannot patch resource"),
        (404, True, "does not find pod 'a' of namespace 'shop'"),
        (409, False, "answers 409: the object has been modified"),
        (422, True, "answers 422: busy"),
        (429, False, "answers 429: busy"),
        (500, False, "answers 500: busy"),
        (503, False, "answers 503: busy"),
        (NO_HTTP, False, "is incomplete or is not HTTP"),
        (302, True, "answers 302"),
    ],
)
async def test_refusals(api: KubernetesApi, status: int, final: bool, words: str) -> None:
    api.orders = [status]
    failure = await pod_of(api).annotate("x", "1")
    assert failure is not None
    assert (failure.final, words in failure.text) == (final, True), failure
    assert "\n" not in failure.text
    assert api.token not in failure.text


async def test_a_missing_right_names_the_role(api: KubernetesApi) -> None:
    api.orders = [403]
    failure = await pod_of(api).annotate("x", "1")
    assert failure is not None
    assert "a Role must let the service account of this pod patch pods" in failure.text
    [place] = re.findall(r"deploy/\S+", failure.text)
    assert (Path(__file__).resolve().parents[2] / place).is_dir()


async def test_an_api_server_that_stays_silent(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_api, "ANSWER_WITHIN_S", 0.2)
    api.orders = [SILENCE]
    failure = await pod_of(api).annotate("x", "1")
    assert failure is not None
    assert failure.text == f"no answer of {api.address} within 0.2 s"
    assert not failure.final


async def test_the_deadline_is_for_the_whole_answer_and_ends_the_connection(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_api, "ANSWER_WITHIN_S", 1.0)
    api.orders = [DRIP]
    failure = await pod_of(api).annotate("x", "1")
    assert failure is not None
    assert failure.text == f"no answer of {api.address} within 1 s"
    await until(lambda: api.cut_off, "the end of the connection")


async def test_nothing_listens(api: KubernetesApi) -> None:
    failure = await PodApi(replace(settings(api), api="127.0.0.1:1"), {}).annotate("x", "1")
    assert failure is not None
    assert "cannot reach 127.0.0.1:1" in failure.text


async def test_a_token_that_kubernetes_replaces_is_read_again(api: KubernetesApi) -> None:
    pod = pod_of(api)
    assert await pod.annotate("x", "1") is None
    api.token = "second.token"
    failure = await pod.annotate("x", "2")
    assert failure is not None
    assert not failure.final
    api.rotate("second.token")
    assert await pod.annotate("x", "2") is None
    assert api.annotations["a"] == {"x": "2"}


async def test_another_authority_is_not_trusted(api: KubernetesApi, tmp_path: Path) -> None:
    certificate = (api.account / "ca.crt").read_bytes()
    foreign = Certificates(tmp_path / "foreign").authority.read_bytes()
    (api.account / "ca.crt").write_bytes(foreign)
    failure = await pod_of(api).annotate("x", "1")
    assert failure is not None
    assert f"the certificate of {api.address} is not trusted" in failure.text
    assert not api.requests, "the token was sent to a server that is not the API server"
    (api.account / "ca.crt").write_bytes(certificate)
    assert await pod_of(api).annotate("x", "1") is None


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("token", None, "token cannot be read: No such file or directory"),
        ("token", b"", "has no token"),
        ("token", b"two\r\nX-Header: 1", "has no token"),
        ("token", b"\xff\xfe", "it is no text"),
        ("ca.crt", None, "ca.crt cannot be read"),
        ("ca.crt", b"nothing", "has no certificates"),
    ],
)
async def test_files_that_cannot_be_used(
    api: KubernetesApi, name: str, content: bytes | None, words: str
) -> None:
    pod = pod_of(api)
    (api.account / name).unlink()
    if content is not None:
        (api.account / name).write_bytes(content)
    failure = await pod.annotate("x", "1")
    assert failure is not None
    assert words in failure.text
    assert not api.requests


def test_a_namespace_that_is_none_stops_the_start(tmp_path: Path) -> None:
    pod_settings = KubernetesSettings(api="127.0.0.1:1", service_account=str(tmp_path))
    with pytest.raises(ConfigError, match="namespace cannot be read"):
        PodApi(pod_settings, {})
    (tmp_path / "namespace").write_text("../kube-system")
    with pytest.raises(ConfigError, match="has no namespace"):
        PodApi(pod_settings, {})


# The revision


async def test_the_revision_is_that_of_the_replica_set_of_the_pod(api: KubernetesApi) -> None:
    api.add("b", revision="12")
    pod = PodApi(settings(api, "b"), {})
    assert await pod.revision() == "12"
    assert [line.split(" ")[:2] for line, _, _ in api.requests] == [
        ["GET", "/api/v1/namespaces/shop/pods/b"],
        ["GET", "/apis/apps/v1/namespaces/shop/replicasets/shop-12"],
    ]


@pytest.mark.parametrize(
    ("owners", "annotations", "words"),
    [
        ([], {}, "belongs to nothing"),
        ([{"kind": "StatefulSet", "name": "shop", "controller": True}], {}, "to a StatefulSet"),
        ([{"kind": "ReplicaSet", "name": "shop-1"}], {}, "belongs to nothing"),
        ([{"kind": "ReplicaSet", "name": "../x", "controller": True}], {}, "not to a Deployment"),
        (None, {}, "'shop-1' has no revision"),
        (None, {"deployment.kubernetes.io/revision": "new"}, "'shop-1' has no revision"),
    ],
)
async def test_a_pod_without_a_revision(
    api: KubernetesApi, owners: Any, annotations: dict[str, str], words: str
) -> None:
    if owners is not None:
        api.owners["a"] = owners
    api.replicas["shop-1"] = annotations
    revision = await pod_of(api).revision()
    assert isinstance(revision, ApiFailure)
    assert (revision.final, words in revision.text) == (True, True), revision


async def test_each_missing_right_is_named(api: KubernetesApi) -> None:
    for orders, right in (([403], "get pods"), ([CARRY_OUT, 403], "get replicasets")):
        api.orders = [*orders]
        revision = await pod_of(api).revision()
        assert isinstance(revision, ApiFailure)
        assert f"let the service account of this pod {right} in namespace 'shop'" in revision.text


async def test_a_node_has_the_revision_as_its_version(
    api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_version, "PAUSE_FIRST_S", 0.01)
    api.add("a", revision="7")
    api.orders = [500, 403]
    pod_settings = replace(settings(api), revision=True)
    node_settings = await with_version(NodeSettings(), version_source(pod_settings, lambda: "1.0"))
    assert node_settings.version == "7"
    assert len(api.requests) == 4


async def test_a_node_without_its_revision_does_not_start(api: KubernetesApi) -> None:
    pod_settings = replace(settings(api), revision=True)
    api.owners["a"] = []
    with pytest.raises(ConfigError, match=r"DeploymentRevision failed .* belongs to nothing"):
        await with_version(NodeSettings(), version_source(pod_settings, None))
    api.orders = [SILENCE]
    with pytest.raises(
        ConfigError, match=r"DeploymentRevision has returned no version within 0\.2"
    ):
        await with_version(NodeSettings(version_timeout=0.2), version_source(pod_settings, None))


def test_without_the_setting_the_application_says_the_version() -> None:
    assert version_source(KubernetesSettings(), None) is None


# Nodes


def costs(api: KubernetesApi) -> list[str]:
    return [pod.get(ANNOTATION, "") for _, pod in sorted(api.annotations.items())]


async def test_the_oldest_nodes_have_the_highest_costs(api: KubernetesApi) -> None:
    nodes, bus = Nodes(), application()
    async with nodes:
        started: list[Node] = []
        for pod in "abcd":
            api.add(pod)
            nodes.kubernetes = settings(api, pod, costs=2)
            started.append(await nodes.start(bus))
        await until(lambda: costs(api) == ["200", "100", "0", "0"], "costs by age")
        await nodes.leave(started[0])
        await until(lambda: costs(api) == ["200", "200", "100", "0"], "the next have aged")
        page = render(started[1]).decode()  # type: ignore[arg-type]
        assert "\nshardbus_pod_deletion_cost 200.0\n" in page
        assert "\nshardbus_kubernetes_errors_total 0.0\n" in page


async def test_a_node_works_without_the_right(
    api: KubernetesApi, caplog: pytest.LogCaptureFixture
) -> None:
    api.orders = [403] * 100
    nodes, bus = Nodes(), application()
    async with nodes:
        nodes.kubernetes = settings(api)
        node = await nodes.start(bus)
        await until(lambda: api.requests, "an attempt")
        async with http(node) as client:
            assert (await client.get("/readyz")).status_code == 200
            counter = r"shardbus_kubernetes_errors_total [1-9]"

            async def counted() -> bool:
                return bool(re.search(counter, (await client.get("/metrics")).text))

            await until(counted, "the failure in the metrics")
        client = await nodes.client(node)
        assert await client.ask("counter", "c", "add", 3) == 3
    assert "a Role must let the service account" in caplog.text


async def test_a_node_that_is_not_asked_to_asks_nothing(api: KubernetesApi) -> None:
    nodes = Nodes()
    async with nodes:
        nodes.kubernetes = replace(settings(api), deletion_costs=0)
        node = await nodes.start(application())
        assert node.reports.pod_cost is None
    assert not api.requests
