"""The recipe of docs/operations/deployment.md for Kubernetes, against a stand-in for its API server."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pandas as pd
import pytest
import recipes
import yaml
from alerts import check
from flights import read_flights, write_replay
from kafka_broker import free_ports
from kube_api import KubeApi
from local_spark import JAVA_OPTIONS

from timerheap.spark import ensure_java

pytestmark = pytest.mark.world("kubernetes")

VERSION = "1.37"  # of Kubernetes, whose schema the package kubernetes-validate has
MICRO_BATCHES = 4


def manifests() -> list[Any]:
    return [found for block in recipes.blocks("Kubernetes", "yaml") for found in yaml.safe_load_all(block)]


@pytest.mark.parametrize("manifest", manifests(), ids=lambda manifest: manifest["kind"])
def test_the_manifests_fit_the_schema(manifest: dict[str, Any]) -> None:
    kubernetes_validate.validate(manifest, VERSION, strict=True)


def test_a_manifest_with_a_mistake_does_not_fit() -> None:
    pod = next(found for found in manifests() if found["kind"] == "Pod")
    pod["spec"]["volumes"][0]["hostpath"] = pod["spec"]["volumes"][0].pop("hostPath")
    with pytest.raises(kubernetes_validate.ValidationError, match="hostpath"):
        kubernetes_validate.validate(pod, VERSION, strict=True)


@pytest.fixture(scope="module")
def flights() -> pd.DataFrame:
    return read_flights().query("month == 1")


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory, flights: pd.DataFrame) -> Iterator[Path]:
    work = tmp_path_factory.mktemp("kubernetes")
    write_replay(flights, work / "replay" / "flights", MICRO_BATCHES)
    for module in (
        "examples/flights.py",
        "examples/overdue.py",
        "tests/support/programs/flights_on_executors.py",
    ):
        shutil.copy(recipes.ROOT / module, work)
    yield work
    shutil.rmtree(work)


@pytest.fixture(scope="module")
def kubernetes(work: Path) -> Iterator[KubeApi]:
    """The API after the recipe has run; an executor was killed."""
    image = {
        "SPARK_HOME": str(recipes.SPARK),
        "JAVA_HOME": str(ensure_java()),
        "JDK_JAVA_OPTIONS": JAVA_OPTIONS,
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
    }
    port, blocks = free_ports("127.0.0.1", 2)
    (block,) = recipes.blocks("Kubernetes", "sh")
    (template,) = (found for found in manifests() if found["kind"] == "Pod")
    (work / "executor.yaml").write_text(yaml.safe_dump(template))
    (work / "token").touch()
    # In a cluster, the name of the driver's service leads to it, and its account has a token.
    network = {"spark.driver.host": "127.0.0.1"}
    with KubeApi(work / "containers", image, network) as api:
        settings = {
            "spark.kubernetes.driver.master": api.url,
            "spark.kubernetes.authenticate.driver.mounted.oauthTokenFile": work / "token",
            "spark.kubernetes.submission.waitAppCompletion": "false",
            "spark.kubernetes.executor.enableApiWatcher": "false",  # the stand-in has no watches
            "spark.kubernetes.executor.apiPollingInterval": "1s",
            "spark.kubernetes.allocation.batch.delay": "500ms",
            "spark.submit.pyFiles": f"local://{work}/flights.py,local://{work}/overdue.py",
            "spark.driver.port": port,
            "spark.driver.blockManager.port": blocks,
            "spark.scheduler.minRegisteredResourcesRatio": 1,
            "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s",
            "spark.locality.wait": 0,
            "spark.sql.shuffle.partitions": 2,
            "spark.ui.enabled": "false",
        }
        job = f"local://{work}/flights_on_executors.py {work}/replay {work}/told.json executor"
        command = block.replace("k8s://https://host:443", f"k8s://{api.url}")
        recipes.run(command.replace("local:///opt/job/job.py", job), work, settings)
        until = time.monotonic() + 400
        while not (work / "told.json").exists():
            driver = next((pod for name, pod in api.processes.items() if name.endswith("-driver")), None)
            if time.monotonic() > until or (driver and driver.poll() is not None):
                time.sleep(1)
                if not (work / "told.json").exists():
                    raise AssertionError(f"{sorted(api.objects)}\n{logs(work)}")
            time.sleep(0.2)
        yield api


def logs(work: Path) -> str:
    return "\n".join(
        f"{log}: ...{log.read_text(errors='replace')[-3_000:]}" for log in (work / "containers").rglob("log")
    )


def test_all_that_spark_creates_fits_the_schema(kubernetes: KubeApi) -> None:
    kinds = {found["kind"] for found in kubernetes.asked}
    assert kinds == {"Pod", "Service", "ConfigMap", "NetworkPolicy"}
    for found in kubernetes.asked:
        kubernetes_validate.validate(found, VERSION, strict=True)


def test_the_pods_have_what_the_recipe_asks_for(kubernetes: KubeApi) -> None:
    pods = [found for found in kubernetes.asked if found["kind"] == "Pod"]
    drivers = [pod for pod in pods if pod["metadata"]["labels"]["spark-role"] == "driver"]
    executors = [pod for pod in pods if pod["metadata"]["labels"]["spark-role"] == "executor"]
    assert len(drivers) == 1
    assert len(executors) == 3  # one for the one that was killed
    assert drivers[0]["spec"]["serviceAccountName"] == "spark"
    assert drivers[0]["spec"]["restartPolicy"] == "Never"
    for pod in executors:
        (container,) = pod["spec"]["containers"]
        assert container["image"] == "registry.example.com/alerts:1"
        assert container["resources"]["limits"]["memory"] == f"{1024 + 2048}Mi"
        environment = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert environment["SPARK_LOCAL_DIRS"] == "/mnt/spark"
        # The settings of the session in the job reach the executors.
        assert environment["SPARK_SIMPLIFIED_TRACEBACK"] == "1"
        volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
        assert volumes["spark-local-dir-1"]["hostPath"]["path"] == "/mnt/disks/ssd0"
        assert not any("emptyDir" in volume for volume in volumes.values())


def test_the_alerts_equal_those_of_pandas(
    kubernetes: KubeApi, work: Path, flights: pd.DataFrame, tell: Callable[..., None]
) -> None:
    where = "Kubernetes, containers as processes"
    check(work / "replay/alerts", work / "told.json", flights, MICRO_BATCHES, "executor", tell, where)
