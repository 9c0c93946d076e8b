"""deploy/: its manifests are what Kubernetes takes, and their own commands are run, as a kubelet
would, in pods made out of namespaces."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.owned import PARDBG
from tests.distributed.runs import coverage, maps
from tests.harness import whole_messages
from tests.packaging import pods
from tests.processes import comes_true, end_tree, rank_env, run_argv

yaml = pytest.importorskip("yaml")
FOLDER = Path(__file__).parents[2] / "deploy"
KUBERNETES = FOLDER / "kubernetes"
MANIFESTS = sorted(KUBERNETES.glob("*.yaml"))
VERSION = "1.37"
"""Kubernetes' schemas that are checked against."""
TRAIN = """
import os, sys, torch
import torch.distributed as dist
dist.init_process_group("gloo")
value = torch.ones(4)
for _ in range(10):
    dist.all_reduce(value)
# In one write: a line and its end may else have another rank's between them.
os.write(1, b"rank %d of %d saw %d\\n" % (dist.get_rank(), dist.get_world_size(), value[0].item()))
dist.barrier()
dist.destroy_process_group()
sys.exit(CODE)
"""
pytestmark = [pytest.mark.timeout(240), pytest.mark.faults]


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((KUBERNETES / name).read_text("utf-8")))


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.stem)
def test_a_manifest_is_of_kubernetes_schema(path: Path) -> None:
    """PyTorchJob's own schema is in the operator, not in Kubernetes: its pods are checked."""
    checker = pytest.importorskip("kubernetes_validate")
    for document in documents(path.name):
        if document["kind"] == "PyTorchJob":
            for each in document["spec"]["pytorchReplicaSpecs"].values():
                pod = {"apiVersion": "v1", "kind": "Pod", **each["template"]}
                checker.validate(pod, VERSION, strict=True)
        else:
            checker.validate(document, VERSION, strict=True)


class Cluster:
    """Two pods' network, a claim that they share, a secret, and the program that they run."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.claim = folder, folder / "claim"
        self.claim.mkdir()
        self._stack = ExitStack()
        self.started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Cluster:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.started:
            end_tree(process.pid)
            process.wait(30)
        self._stack.close()

    def program(self, code: int) -> None:
        (self.folder / "train.py").write_text(TRAIN.replace("CODE", str(code)))

    def network(self, *names: tuple[str, ...], ipv6: bool = False) -> pods.Network:
        return self._stack.enter_context(pods.network(self.folder, names, ipv6))

    def pod(self, name: str, spec: dict[str, Any], net: pods.Network, number: int) -> pods.Pod:
        pod = pods.Pod(name, spec, net, number)
        pod.volume("recordings", self.claim)
        self._stack.callback(pod.remove)
        return pod

    def secret(self, port: int) -> dict[str, str]:
        """Made as job.yaml says."""
        key = self.folder / "run.key"
        made = run_argv(
            [*PARDBG, "run", "--hub", f"tcp://localhost:{port}", "--node-rank", "0", "--key",
             str(key), "-o", str(self.folder / "made.mcap"), "--", "true"],
            env=rank_env(), timeout_s=60,
        )  # fmt: skip
        assert made.code == 0, made.err
        return {"pardbg/run.key": key.read_text()}

    def start(self, pod: pods.Pod, number: int, env: dict[str, str]) -> None:
        container = pod.spec["containers"][number]
        log = self.folder / f"{pod.name}-{container['name']}.log"
        self.started.append(pod.start(container, env, self.folder, log))

    def codes(self) -> list[int | None]:
        """Exit codes of the containers; None of one that does not end."""
        comes_true(lambda: None not in [process.poll() for process in self.started], 150)
        return [process.returncode for process in self.started]

    def said(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')}" for log in logs)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """In /var/tmp: a pod has another /tmp."""
    pods.skip_unless_possible()
    with tempfile.TemporaryDirectory(prefix="pdk-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        with Cluster(Path(folder)) as made:
            yield made


def recorded(cluster: Cluster) -> tuple[list[int], list[int], list[str]]:
    """(ranks with records, the job's exit codes, lines of output)"""
    path = cluster.claim / "S.mcap"
    messages = list(whole_messages(path))
    ends = [d for d in maps(messages, b"D") if d["k"] == "end"]
    codes = [end["code"] for end in ends if not end.get("proc")]
    lines = [line["text"] for line in maps(messages, b"O")]
    known = {d["proc"]: d["rank"] for d in maps(messages, b"D") if d["k"] == "process"}
    return sorted(known[proc] for proc in coverage(messages)), codes, lines


def test_the_indexed_jobs_two_pods_make_one_recording_over_ipv6_alone(
    cluster: Cluster, free_port: Callable[..., int]
) -> None:
    _, job = documents("job.yaml")
    spec = job["spec"]["template"]["spec"]
    secrets = cluster.secret(free_port(3))
    cluster.program(0)
    names = [(f"train-{i}", f"train-{i}.{spec['subdomain']}") for i in (0, 1)]
    net = cluster.network(*names, ipv6=True)
    for index in (1, 0):
        pod = cluster.pod(f"train-{index}", spec, net, index)
        added = {"JOB_COMPLETION_INDEX": str(index)}
        cluster.start(pod, 0, pods.variables(spec["containers"][0], added, secrets))
    assert cluster.codes() == [0, 0], cluster.said()
    ranks, codes, lines = recorded(cluster)
    assert (ranks, codes) == ([0, 1, 2, 3], [0]), cluster.said()
    saw = {line.split("saw ")[1] for line in lines if "saw " in line}
    assert saw == {str(4**10)} and sum("saw " in line for line in lines) == 4


def test_the_pytorchjobs_master_and_worker_make_one_recording(
    cluster: Cluster, free_port: Callable[..., int]
) -> None:
    """Their variables are those of training-operator 1.9 (controller.v1/pytorch/envvar.go)."""
    (job,) = documents("pytorchjob.yaml")
    secrets = cluster.secret(free_port(3))
    cluster.program(0)
    net = cluster.network(("train-master-0",), ("train-worker-0",))
    for rank, replica in ((1, "Worker"), (0, "Master")):
        spec = job["spec"]["pytorchReplicaSpecs"][replica]["template"]["spec"]
        (container,) = spec["containers"]
        (port,) = (str(each["containerPort"]) for each in container["ports"])
        added = {
            "MASTER_PORT": port, "PET_MASTER_PORT": port, "MASTER_ADDR": "train-master-0",
            "PET_MASTER_ADDR": "train-master-0", "WORLD_SIZE": "4", "RANK": str(rank),
            "PET_NODE_RANK": str(rank), "PET_NPROC_PER_NODE": job["spec"]["nprocPerNode"],
            "PET_NNODES": "2",
        }  # fmt: skip
        pod = cluster.pod(f"train-{replica.lower()}-0", spec, net, rank)
        cluster.start(pod, 0, pods.variables(container, added, secrets))
    assert cluster.codes() == [0, 0], cluster.said()
    ranks, codes, lines = recorded(cluster)
    assert (ranks, codes) == ([0, 1, 2, 3], [0]), cluster.said()
    assert sum("saw " in line for line in lines) == 4


def test_an_image_with_the_agent_alone_is_recorded_from_beside(cluster: Cluster) -> None:
    """Every rank ends with 3, so torchrun, both containers and the recording with 1."""
    (pod,) = documents("agent-only.yaml")
    spec = pod["spec"]
    cluster.program(3)
    net = cluster.network(("train",), ("other",))
    made = cluster.pod("train", spec, net, 0)
    for number, container in enumerate(spec["containers"]):
        cluster.start(made, number, pods.variables(container, {}, {}))
    assert cluster.codes() == [1, 1], cluster.said()
    ranks, codes, _ = recorded(cluster)
    assert (ranks, codes) == ([0, 1], [1]), cluster.said()
