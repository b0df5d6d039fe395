"""The objects of `deploy/kubernetes` fit the schemas of Kubernetes, agree with each other, and
start a node that this package understands; so does the component `deletion-cost`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from shardbus import ShardBus
from shardbus.config.loading import from_environment, load
from shardbus.config.settings import Settings
from shardbus.node.served_node import AFTERWARDS_S
from shardbus.node.shutdown_phases import Phases
from shardbus.node.supervisor_link import SupervisorLink
from shardbus_cli import main as cli
from shardbus_cli import node

PLACE = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
FOLDER = PLACE / "base"
EXAMPLE = yaml.safe_load((PLACE / "example" / "kustomization.yaml").read_text(encoding="utf-8"))
BASE = yaml.safe_load((FOLDER / "kustomization.yaml").read_text(encoding="utf-8"))
COMPONENT = PLACE / "deletion-cost"
VERSIONS = ("1.29", "1.34")
VARIABLE = "$(POD_IP)"


def of_file(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def objects() -> list[dict[str, Any]]:
    return [found for name in BASE["resources"] for found in of_file(FOLDER / name)]


def one(kind: str, name: str = "shardbus") -> dict[str, Any]:
    [found] = [o for o in objects() if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    return found


POD = one("Deployment")["spec"]["template"]
[CONTAINER] = POD["spec"]["containers"]
LABELS = POD["metadata"]["labels"]
PORTS = {port["name"]: port["containerPort"] for port in CONTAINER["ports"]}
ENVIRONMENT = {entry["name"]: entry for entry in CONTAINER["env"]}


@pytest.mark.parametrize("version", VERSIONS)
def test_the_schemas_of_kubernetes_accept_every_object(version: str) -> None:
    for each in objects():
        kubernetes_validate.validate(each, version, strict=True)
    wrong = one("Deployment")
    wrong["spec"]["replica"] = 3
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, version, strict=True)


def test_every_file_belongs_to_the_base() -> None:
    files = {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    assert files == set(BASE["resources"])


[ROLE, BINDING] = of_file(COMPONENT / "role.yaml")
[COSTS] = of_file(COMPONENT / "deployment.yaml")


@pytest.mark.parametrize("version", VERSIONS)
def test_the_schemas_accept_the_right_to_write_deletion_costs(version: str) -> None:
    for each in (ROLE, BINDING):
        kubernetes_validate.validate(each, version, strict=True)
    [given] = COSTS["spec"]["template"]["spec"]["containers"]
    merged = one("Deployment")
    pod = merged["spec"]["template"]["spec"]
    pod["automountServiceAccountToken"] = True
    pod["containers"][0]["env"] += given["env"]
    kubernetes_validate.validate(merged, version, strict=True)


def test_the_component_gives_the_pods_that_right_and_no_other() -> None:
    [component] = of_file(COMPONENT / "kustomization.yaml")
    assert component["kind"] == "Component"
    files = {path.name for path in COMPONENT.glob("*.yaml")} - {"kustomization.yaml"}
    assert files == {*component["resources"], *(patch["path"] for patch in component["patches"])}
    assert ROLE["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}]
    assert BINDING["roleRef"]["name"] == ROLE["metadata"]["name"]
    account = one("ServiceAccount")["metadata"]["name"]
    assert BINDING["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    assert POD["spec"]["serviceAccountName"] == account


def test_the_component_patches_the_pods_of_the_base() -> None:
    """Kustomize merges by the names of the Deployment and of the container."""
    deployment, pod = one("Deployment"), COSTS["spec"]["template"]["spec"]
    assert COSTS["metadata"]["name"] == deployment["metadata"]["name"]
    [container] = pod["containers"]
    assert container["name"] == CONTAINER["name"]
    assert pod["automountServiceAccountToken"] is True
    given = {entry["name"]: entry for entry in container["env"]}
    assert not given.keys() & ENVIRONMENT.keys()
    fields = {"metadata.name": "shardbus-7c5d-x2x9z"}
    values = {
        name: entry.get("value") or fields[entry["valueFrom"]["fieldRef"]["fieldPath"]]
        for name, entry in given.items()
    }
    kubernetes = load(from_environment(values)).kubernetes
    assert (kubernetes.deletion_costs, kubernetes.pod) == (3, "shardbus-7c5d-x2x9z")


def test_selectors_and_names_of_ports_meet_the_pods() -> None:
    selectors = [
        one("Deployment")["spec"]["selector"]["matchLabels"],
        one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"],
        one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"],
        one("Service")["spec"]["selector"],
        one("Service", "shardbus-nodes")["spec"]["selector"],
    ]
    for selector in selectors:
        assert selector.items() <= LABELS.items()
    named = [
        port["targetPort"]
        for o in objects()
        if o["kind"] == "Service"
        for port in o["spec"]["ports"]
    ]
    rules = one("NetworkPolicy")["spec"]["ingress"]
    named += [port["port"] for rule in rules for port in rule["ports"]]
    probes = [
        CONTAINER[kind]["httpGet"] for kind in ("startupProbe", "readinessProbe", "livenessProbe")
    ]
    named += [probe["port"] for probe in probes]
    assert set(named) <= PORTS.keys()
    assert [probe["path"] for probe in probes] == ["/startupz", "/readyz", "/livez"]
    defaults = Settings()
    assert PORTS["messages"] == defaults.node.port
    assert PORTS["gossip"] == defaults.node.port + 1
    assert PORTS["http"] == defaults.http.port


def test_nodes_that_are_not_ready_are_found_by_name_too() -> None:
    assert one("Service", "shardbus-nodes")["spec"]["publishNotReadyAddresses"] is True
    assert one("Service", "shardbus-nodes")["spec"]["clusterIP"] == "None"


def test_a_pod_starts_a_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With its variables as Kubernetes fills them in."""
    found: list[Settings] = []

    def run(
        bus: ShardBus,
        settings: Settings,
        origins: dict[str, str],
        ready_fd: int | None,
        leash: SupervisorLink | None,
        rejoins_by: list[str],
    ) -> int:
        found.append(settings)
        return 0

    monkeypatch.setattr(node, "_run", run)
    for command in (["keys", "new"], ["keys", "token"]):
        file = "cluster.secret" if command[1] == "new" else "reader.token"
        assert cli.run([*command, str(tmp_path / file)]) == 0
    fields = {
        "status.podIP": "10.1.2.3",
        "metadata.labels['app.kubernetes.io/version']": LABELS["app.kubernetes.io/version"],
    }
    for name, entry in ENVIRONMENT.items():
        source = entry.get("valueFrom", {})
        value = entry.get("value", "redis://redis:6379/0")
        if "fieldRef" in source:
            value = fields[source["fieldRef"]["fieldPath"]]
        value = value.replace(VARIABLE, "10.1.2.3").replace("/etc/shardbus", str(tmp_path))
        if name != "POD_IP":
            monkeypatch.setenv(name, value)
    assert list(ENVIRONMENT).index("POD_IP") < list(ENVIRONMENT).index("SHARDBUS_NODE__ADVERTISE")
    assert cli.run(CONTAINER["args"]) == 0
    [settings] = found
    assert settings.node.advertise == "10.1.2.3"
    assert settings.node.seeds == ("store",)
    assert settings.node.version == "1.0.0"
    assert settings.store.url == "redis://redis:6379/0"
    assert not settings.security.insecure


def test_a_pod_has_the_time_to_drain() -> None:
    settings = Settings()
    leaves = Phases(settings.shutdown).total(settings.sharding.handoff_timeout) + AFTERWARDS_S
    assert POD["spec"]["terminationGracePeriodSeconds"] > leaves


def test_a_pod_may_do_nothing_that_it_need_not() -> None:
    pod, container = POD["spec"]["securityContext"], CONTAINER["securityContext"]
    assert pod["runAsNonRoot"] is True
    assert pod["runAsUser"] == 10001
    assert container["readOnlyRootFilesystem"] is True
    assert container["allowPrivilegeEscalation"] is False
    assert container["capabilities"] == {"drop": ["ALL"]}
    assert POD["spec"]["automountServiceAccountToken"] is False
    [keys] = [volume for volume in POD["spec"]["volumes"] if volume["name"] == "keys"]
    assert keys["secret"]["defaultMode"] == 0o440


def test_new_shards_go_to_the_version_of_the_image() -> None:
    """The tag of the image becomes the label that the node reads its version from. A base is
    finished before the tag is replaced, so the example copies it, and not the base."""
    [image] = EXAMPLE["images"]
    [replacement] = EXAMPLE["replacements"]
    name, tag = CONTAINER["image"].split(":")
    assert (name, tag) == (image["name"], LABELS["app.kubernetes.io/version"])
    assert "images" not in BASE
    assert replacement["source"]["fieldPath"] == "spec.template.spec.containers.[name=node].image"
    assert replacement["source"]["options"] == {"delimiter": ":", "index": 1}
    [target] = replacement["targets"]
    assert target["fieldPaths"] == ["spec.template.metadata.labels.[app.kubernetes.io/version]"]


def test_the_example_replaces_the_command_of_the_node() -> None:
    assert EXAMPLE["resources"] == ["../base"]
    [patch] = EXAMPLE["patches"]
    [change] = yaml.safe_load(patch["patch"])
    assert change["path"] == "/spec/template/spec/containers/0/args"
    assert change["value"][:2] == CONTAINER["args"][:2]


def test_a_new_node_is_there_before_an_old_one_leaves() -> None:
    rolling = one("Deployment")["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": 1, "maxUnavailable": 0}
    assert one("PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
