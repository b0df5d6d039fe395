"""The objects of `deploy/kubernetes` fit the schemas of Kubernetes, agree with each other, and
start a node that this package understands; so do the StatefulSet and the components beside them."""

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
from shardbus_cli import main as cli
from shardbus_cli import node
from shardbus_cli.node_http import TIMEOUT_S
from tests.records import replace

PLACE = Path(__file__).resolve().parents[2] / "deploy" / "kubernetes"
FOLDER = PLACE / "base"
EXAMPLE = yaml.safe_load((PLACE / "example" / "kustomization.yaml").read_text(encoding="utf-8"))
BASE = yaml.safe_load((FOLDER / "kustomization.yaml").read_text(encoding="utf-8"))
VERSIONS = ("1.29", "1.34")
VARIABLE = "$(POD_IP)"


def of_file(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text(encoding="utf-8")))


def objects() -> list[dict[str, Any]]:
    return [object_ for name in BASE["resources"] for object_ in of_file(FOLDER / name)]


def one(kind: str, name: str = "shardbus") -> dict[str, Any]:
    [object_] = [o for o in objects() if (o["kind"], o["metadata"]["name"]) == (kind, name)]
    return object_


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


RIGHTS = {
    "deletion-cost": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]}],
    "revision": [
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
        {"apiGroups": ["apps"], "resources": ["replicasets"], "verbs": ["get"]},
    ],
}
"""The components, and the pods' permissions at the API."""


def roles(component: str) -> list[dict[str, Any]]:
    return of_file(PLACE / component / "role.yaml")


def merge(entries_: Any, change: Any) -> Any:
    """A change on top of an object, as Kustomize merges: lists by the names of their entries, with
    new entries first; other lists are replaced."""
    if isinstance(entries_, dict) and isinstance(change, dict):
        both = {key: merge(entries_[key], change[key]) for key in entries_.keys() & change.keys()}
        return {**entries_, **change, **both}
    if not isinstance(entries_, list) or not all("name" in entry for entry in [*entries_, *change]):
        return change
    by_name = {entry["name"]: entry for entry in entries_}
    new = [merge(by_name.get(entry["name"], {}), entry) for entry in change]
    rest = [entry for entry in entries_ if entry["name"] not in {entry["name"] for entry in change}]
    return [entry for entry in [*new, *rest] if entry.get("$patch") != "delete"]


def with_component(name: str) -> dict[str, Any]:
    """The Deployment of the base with a component."""
    [patch] = of_file(PLACE / name / "deployment.yaml")
    workload_: dict[str, Any] = merge(one("Deployment"), patch)
    return workload_


def stateful() -> dict[str, Any]:
    """The StatefulSet: the pods of the Deployment, with names."""
    [bare] = of_file(PLACE / "stateful" / "statefulset.yaml")
    [names] = of_file(PLACE / "stateful" / "names.yaml")
    template = one("Deployment")["spec"]["template"]
    workload_: dict[str, Any] = merge(merge(bare, {"spec": {"template": template}}), names)
    return workload_


def drained_first(workload: dict[str, Any]) -> dict[str, Any]:
    """A Deployment or a StatefulSet with the component `pre-stop`."""
    [patch] = of_file(PLACE / "pre-stop" / "pods.yaml")
    workload_: dict[str, Any] = merge(workload, {"spec": patch["spec"]})
    return workload_


WORKLOADS = {
    "deployment": one("Deployment"),
    "stateful": stateful(),
    "deployment, pre-stop": drained_first(one("Deployment")),
    "stateful, pre-stop": drained_first(stateful()),
}
every_workload = pytest.mark.parametrize("workload", WORKLOADS.values(), ids=WORKLOADS)
every_stateful = pytest.mark.parametrize(
    "workload", [WORKLOADS["stateful"], WORKLOADS["stateful, pre-stop"]]
)


def pod_of(workload: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = workload["spec"]["template"]["spec"]
    return spec


def environment_of(workload: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {entry["name"]: entry for entry in pod_of(workload)["containers"][0]["env"]}


NO_SETTINGS = ("POD_NAME", "POD_NAMESPACE", "SHARDBUS_NODE_TOKEN_FILE")


def settings_in(workload: dict[str, Any]) -> Settings:
    """The variables of a node in a pod of this Deployment or StatefulSet. As in a pod, a
    variable has the values of those that stand before it."""
    fields = {
        "metadata.name": "shardbus-2"
        if workload["kind"] == "StatefulSet"
        else "shardbus-7c5d-x2x9z",
        "metadata.namespace": "shop",
        "status.podIP": "10.1.2.3",
        "metadata.labels['app.kubernetes.io/version']": "1.0.0",
    }
    values: dict[str, str] = {}
    for name, entry in environment_of(workload).items():
        source = entry.get("valueFrom", {})
        field = source.get("fieldRef", {}).get("fieldPath")
        value = fields[field] if field else entry.get("value", "redis://r:6379/0")
        for variable, value_ in values.items():
            value = value.replace(f"$({variable})", value_)
        values[name] = value
    settings_ = {name: value for name, value in values.items() if name not in NO_SETTINGS}
    return load(from_environment(settings_))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("component", RIGHTS)
def test_the_schemas_accept_the_components(component: str, version: str) -> None:
    for each in (*roles(component), with_component(component)):
        kubernetes_validate.validate(each, version, strict=True)


@pytest.mark.parametrize("component", RIGHTS)
def test_a_component_gives_the_pods_its_right_and_no_other(component: str) -> None:
    [kustomization] = of_file(PLACE / component / "kustomization.yaml")
    assert kustomization["kind"] == "Component"
    files = {path.name for path in (PLACE / component).glob("*.yaml")} - {"kustomization.yaml"}
    patches = [patch["path"] for patch in kustomization["patches"]]
    assert files == {*kustomization["resources"], *patches}
    role, binding = roles(component)
    assert role["rules"] == RIGHTS[component]
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    account = one("ServiceAccount")["metadata"]["name"]
    assert binding["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    assert POD["spec"]["serviceAccountName"] == account


def test_the_components_tell_a_node_what_it_needs() -> None:
    costs = settings_in(with_component("deletion-cost"))
    assert (costs.kubernetes.deletion_costs, costs.kubernetes.revision) == (3, False)
    assert (costs.kubernetes.pod, costs.node.version) == ("shardbus-7c5d-x2x9z", "1.0.0")
    revision = settings_in(with_component("revision"))
    assert (revision.kubernetes.deletion_costs, revision.kubernetes.revision) == (0, True)
    assert revision.kubernetes.pod == "shardbus-7c5d-x2x9z"
    assert revision.node.version == Settings().node.version, "it would be the version"
    plain = settings_in(one("Deployment"))
    assert (plain.kubernetes, plain.node.version) == (Settings().kubernetes, "1.0.0")


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


@pytest.mark.usefixtures("own_log")
def test_a_pod_starts_a_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With its variables as Kubernetes fills them in."""
    started: list[Settings] = []

    def run(bus: ShardBus, settings: Settings, *others: object) -> int:
        started.append(settings)
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
    [settings] = started
    assert settings.node.advertise == "10.1.2.3"
    assert settings.node.seeds == ("store",)
    assert settings.node.version == "1.0.0"
    assert settings.store.url == "redis://redis:6379/0"
    assert not settings.security.insecure


@every_workload
def test_a_pod_has_the_time_to_drain(workload: dict[str, Any]) -> None:
    """The hook's time counts, too: its timeout, and a few questions that wait for an answer."""
    settings = Settings()
    leaves = Phases(settings.shutdown).total(settings.sharding.handoff_timeout) + AFTERWARDS_S
    hook = pod_of(workload)["containers"][0].get("lifecycle")
    if hook is not None:
        *command, drains = hook["preStop"]["exec"]["command"]
        assert command == ["shardbus", "drain", "self", "--timeout"]
        leaves += float(drains.removesuffix("s")) + 3 * TIMEOUT_S
    assert pod_of(workload)["terminationGracePeriodSeconds"] > leaves


def test_a_pod_may_do_nothing_that_it_need_not() -> None:
    pod, container = POD["spec"]["securityContext"], CONTAINER["securityContext"]
    assert pod["runAsNonRoot"] is True
    assert pod["runAsUser"] == 10001
    assert container["readOnlyRootFilesystem"] is True
    assert container["allowPrivilegeEscalation"] is False
    assert container["capabilities"] == {"drop": ["ALL"]}
    assert POD["spec"]["automountServiceAccountToken"] is False
    assert POD["spec"]["enableServiceLinks"] is False
    [keys] = [volume for volume in POD["spec"]["volumes"] if volume["name"] == "keys"]
    assert keys["secret"]["defaultMode"] == 0o440


@pytest.mark.parametrize("version", VERSIONS)
@every_workload
def test_the_schemas_accept_every_kind_of_workload(workload: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(workload, version, strict=True)


def test_the_stateful_nodes_are_the_base_with_another_kind() -> None:
    place = PLACE / "stateful"
    [kustomization] = of_file(place / "kustomization.yaml")
    assert kustomization["resources"] == ["../base", "statefulset.yaml"]
    names, deletion = kustomization["patches"]
    assert {path.name for path in place.glob("*.yaml")} == {
        "kustomization.yaml", "statefulset.yaml", names["path"],
    }  # fmt: skip
    removed = yaml.safe_load(deletion["patch"])
    assert removed.pop("$patch") == "delete"
    assert removed["metadata"] == one("Deployment")["metadata"]
    assert kustomization["components"] == ["template"]
    [copy] = of_file(place / "template" / "kustomization.yaml")[0]["replacements"]
    assert copy["source"] == {
        "kind": "Deployment",
        "name": "shardbus",
        "fieldPath": "spec.template",
    }
    [target] = copy["targets"]
    assert target["select"] == {"kind": "StatefulSet", "name": "shardbus"}
    assert target["fieldPaths"] == ["spec.template"]
    spec = stateful()["spec"]
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["updateStrategy"] == {"type": "RollingUpdate"}
    assert spec["replicas"] == one("Deployment")["spec"]["replicas"]
    assert spec["selector"]["matchLabels"].items() <= LABELS.items()


@every_stateful
def test_a_node_of_a_stateful_set_advertises_a_name_that_stays(workload: dict[str, Any]) -> None:
    service = one("Service", workload["spec"]["serviceName"])["spec"]
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert settings_in(workload).node.advertise == "shardbus-2.shardbus-nodes.shop.svc"
    variables = settings_in(one("Deployment"))
    assert settings_in(workload).node.seeds == variables.node.seeds
    assert settings_in(workload).node.version == variables.node.version


@every_workload
def test_a_pod_gets_secrets_from_the_secret_only(workload: dict[str, Any]) -> None:
    environment, pod = environment_of(workload), pod_of(workload)
    assert environment["SHARDBUS_STORE__URL"]["valueFrom"]["secretKeyRef"]["name"] == "shardbus"
    [keys] = [volume["secret"] for volume in pod["volumes"] if volume["name"] == "keys"]
    assert (keys["secretName"], keys["defaultMode"]) == ("shardbus", 0o440)
    mounted = {f"/etc/shardbus/{item['path']}" for item in keys["items"]}
    named = {name: entry["value"] for name, entry in environment.items() if "value" in entry}
    files = {value for value in named.values() if value.startswith("/etc/shardbus/")}
    assert files == mounted
    private = {name for name in named if name.endswith(("SECRET", "TOKEN", "TOKEN_FILE"))}
    assert {named[name] for name in private} == files


@pytest.mark.parametrize("kind", ["deployment", "stateful"])
def test_the_hook_may_drain_and_nothing_else_changes(kind: str) -> None:
    [kustomization] = of_file(PLACE / "pre-stop" / "kustomization.yaml")
    assert kustomization["kind"] == "Component"
    [patch] = kustomization["patches"]
    assert patch == {"path": "pods.yaml", "target": {"group": "apps", "name": "shardbus"}}
    plain, hooked = settings_in(WORKLOADS[kind]), settings_in(WORKLOADS[f"{kind}, pre-stop"])
    assert not plain.http.write
    assert hooked.http.write
    assert hooked.http.token_file == "/etc/shardbus/operator.token"
    environment = environment_of(WORKLOADS[f"{kind}, pre-stop"])
    assert environment["SHARDBUS_NODE_TOKEN_FILE"]["value"] == hooked.http.token_file
    assert replace(hooked, http=plain.http) == plain


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


def test_the_example_fits_both_kinds_of_workload() -> None:
    """Only the group names its changes, so `../stateful` may stand in place of `../base`."""
    [replacement] = EXAMPLE["replacements"]
    chosen = [EXAMPLE["patches"][0]["target"], replacement["source"]]
    chosen += [target["select"] for target in replacement["targets"]]
    for each in chosen:
        assert (each["group"], each["name"], "kind" in each) == ("apps", "shardbus", False)
    for workload in WORKLOADS.values():
        assert workload["apiVersion"].partition("/")[0] == "apps"
        assert workload["metadata"]["name"] == "shardbus"


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
