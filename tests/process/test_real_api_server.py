"""A real API server of Kubernetes takes the objects of `deploy/kubernetes`, and lets nodes annotate
their pods and read their revisions with the rights of the components only.

It needs the binaries `kube-apiserver`, `etcd` and `kubectl`, the first at the path in
`KUBE_APISERVER`; so it runs only on request (`make test-kubernetes`). No kubelet and no
controller run: the test makes the ReplicaSet and the pods, and the nodes are processes beside them.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardbus.shells.pod_deletion_cost import ANNOTATION
from tests.certificates import Certificates
from tests.ports import free_port
from tests.process.nodes import Processes
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
BINARY = os.environ.get("KUBE_APISERVER", "")
PODS = ("shop-a", "shop-b", "shop-c")
pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(not BINARY, reason="KUBE_APISERVER names no API server"),
]


class ApiServer:
    """An etcd and an API server with the namespace `shop`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._processes = folder, list[subprocess.Popen[bytes]]()
        made = Certificates(folder / "tls")
        self.authority, self._port = made.authority, free_port()
        self.address = f"127.0.0.1:{self._port}"
        store, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        self._begin(
            "etcd", "--data-dir", folder / "etcd", "--listen-client-urls", store,
            "--advertise-client-urls", store, "--listen-peer-urls", peers,
        )  # fmt: skip
        (folder / "tokens.csv").write_text('admin-token,admin,1,"system:masters"\n')
        self._begin(
            BINARY, "--etcd-servers", store, "--bind-address", "127.0.0.1",
            "--secure-port", self._port, "--tls-cert-file", made.certificate,
            "--tls-private-key-file", made.key, "--authorization-mode", "RBAC",
            "--token-auth-file", folder / "tokens.csv", "--service-cluster-ip-range", "10.0.0.0/24",
            "--service-account-issuer", "https://shop.example",
            "--service-account-key-file", made.certificate,
            "--service-account-signing-key-file", made.key,
            "--disable-admission-plugins", "ServiceAccount", "--cert-dir", folder / "own",
        )  # fmt: skip

    def _begin(self, *command: object) -> None:
        with (self.folder / f"{Path(str(command[0])).name}.log").open("wb") as log:
            words = [str(word) for word in command]
            self._processes.append(subprocess.Popen(words, stdout=log, stderr=log))

    def kubectl(self, *words: str, given: str | None = None) -> str:
        command = [
            "kubectl", f"--server=https://{self.address}", "--token=admin-token",
            f"--certificate-authority={self.authority}", "--namespace=shop", *words,
        ]  # fmt: skip
        done = subprocess.run(command, input=given, text=True, capture_output=True, check=False)
        if done.returncode:
            raise AssertionError(f"kubectl {' '.join(words)}: {done.stderr}")
        return done.stdout

    def find(self, *words: str) -> Any:
        return json.loads(self.kubectl("get", *words, "--output=json"))

    async def ready(self) -> None:
        async def answers() -> bool:
            try:
                await asyncio.to_thread(self.kubectl, "get", "namespaces")
            except AssertionError:
                return False
            return True

        await until(answers, "the API server")

    def account(self, name: str = "shardbus") -> Path:
        """The folder that a pod has of its service account."""
        folder = self.folder / "account"
        folder.mkdir(exist_ok=True)
        (folder / "token").write_text(self.kubectl("create", "token", name))
        (folder / "ca.crt").write_bytes(self.authority.read_bytes())
        (folder / "namespace").write_text("shop")
        return folder

    def close(self) -> None:
        for process in reversed(self._processes):
            process.kill()
            process.wait()


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    server = ApiServer(tmp_path)
    yield server
    server.close()


def kustomization(folder: Path, *components: str, nodes: str = "base") -> Path:
    """The example, with these components, on the Deployment of `base` or on `stateful`."""
    shutil.copytree(ROOT / "deploy" / "kubernetes", folder / "k", dirs_exist_ok=True)
    file = folder / "k" / "example" / "kustomization.yaml"
    text = (ROOT / "deploy/kubernetes/example/kustomization.yaml").read_text(encoding="utf-8")
    text = text.replace("../base", f"../{nodes}")
    rows = "".join(f"  - ../{name}\n" for name in components)
    file.write_text(text + (f"\ncomponents:\n{rows}" if rows else ""), encoding="utf-8")
    return file.parent


def make_pods(api: ApiServer, revision: str) -> None:
    """The work of Kubernetes' controllers on a Deployment, as far as nodes see it."""
    [deployment] = api.find("deployments")["items"]
    spec = {key: deployment["spec"][key] for key in ("selector", "template")}
    replicas = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": "shop",
            "annotations": {"deployment.kubernetes.io/revision": revision},
        },
        "spec": {"replicas": len(PODS), **spec},
    }
    api.kubectl("create", "--filename=-", given=json.dumps(replicas))
    uid = api.find("replicaset", "shop")["metadata"]["uid"]
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "shop", "uid": uid}
    for name in PODS:
        metadata = {
            "name": name,
            "labels": spec["template"]["metadata"]["labels"],
            "ownerReferences": [{**owner, "controller": True}],
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata}
        api.kubectl(
            "create", "--filename=-", given=json.dumps({**pod, "spec": spec["template"]["spec"]})
        )


def costs(api: ApiServer) -> list[str]:
    pods = api.find("pods")["items"]
    return [pod["metadata"].get("annotations", {}).get(ANNOTATION, "") for pod in pods]


async def test_B146_B147_nodes_and_a_real_api_server(
    api: ApiServer, lab: Processes, tmp_path: Path
) -> None:
    await api.ready()
    api.kubectl("create", "namespace", "shop")
    api.kubectl("apply", f"--kustomize={kustomization(tmp_path)}")
    make_pods(api, revision="7")
    account = api.account()

    def settings(pod: str) -> tuple[str, ...]:
        return (
            "kubernetes.deletion_costs=3",
            "kubernetes.revision=true",
            "node.version_timeout=300",
            f"kubernetes.pod={pod}",
            f"kubernetes.api={api.address}",
            f"kubernetes.service_account={account}",
        )

    first = lab.begin(settings=settings(PODS[0]))
    forbidden = "let the service account of this pod get pods in namespace 'shop'"
    await until(lambda: forbidden in first.err.read_text(), "the missing right")
    api.kubectl("apply", f"--kustomize={kustomization(tmp_path, 'revision')}")
    await until(first.ready, "a node that may read its revision")
    forbidden = "let the service account of this pod patch pods in namespace 'shop'"
    await until(lambda: forbidden in first.err.read_text(), "the second missing right")
    assert costs(api) == ["", "", ""]
    api.kubectl("apply", f"--kustomize={kustomization(tmp_path, 'revision', 'deletion-cost')}")
    await until(lambda: costs(api)[0] == "300", "the cost of the first")
    others = [await lab.start(settings=settings(pod)) for pod in PODS[1:]]
    await until(lambda: costs(api) == ["300", "200", "100"], "the costs of all")
    rows = (await others[0].page("/v1/nodes") or {})["nodes"]
    assert {row["version"] for row in rows} == {"7"}
    assert await first.terminate() == 0
    await until(lambda: costs(api)[1:] == ["300", "200"], "the others are older now")


async def test_a_real_api_server_takes_the_stateful_nodes(api: ApiServer, tmp_path: Path) -> None:
    await api.ready()
    api.kubectl("create", "namespace", "shop")
    for components in ((), ("pre-stop",)):
        place = kustomization(tmp_path, *components, nodes="stateful")
        api.kubectl("apply", f"--kustomize={place}")
        assert api.find("deployments")["items"] == []
        [stateful_set] = api.find("statefulsets")["items"]
        spec, pods = stateful_set["spec"], stateful_set["spec"]["template"]
        services = {service["metadata"]["name"] for service in api.find("services")["items"]}
        assert spec["serviceName"] in services
        assert spec["replicas"] == 5
        assert pods["metadata"]["labels"]["app.kubernetes.io/version"] == "1.4.0"
        [container] = pods["spec"]["containers"]
        assert container["image"] == "registry.example.com/shop:1.4.0"
        assert container["args"] == ["node", "start", "shop:bus"]
        names = [entry["name"] for entry in container["env"]]
        assert len(names) == len(set(names))
        advertise = names.index("SHARDBUS_NODE__ADVERTISE")
        assert {"POD_NAME", "POD_NAMESPACE"} <= set(names[:advertise])
        assert ("lifecycle" in container) == bool(components)
