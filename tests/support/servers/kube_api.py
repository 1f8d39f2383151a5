"""A stand-in for Kubernetes: keeps what Spark asks for, and runs the containers of its pods as processes.

It answers as much of the API as Spark uses, over HTTP. A container starts as the entrypoint of Spark's image
starts it. There are no images, volumes, names of services or accounts: what a pod says of these, a test has
to look at.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import uuid
from collections.abc import Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

__all__ = ["KubeApi"]

KINDS = {
    "pods": "Pod",
    "services": "Service",
    "configmaps": "ConfigMap",
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "networkpolicies": "NetworkPolicy",
}


class KubeApi:
    """The API server and the only node.

    Parameters
    ----------
    folder : pathlib.Path
        For the logs and local directories of the containers.
    environment : mapping of str to str
        What an image would have: Spark's home, Java, Python.
    driver_settings : mapping of str to str
        What the network of a cluster would make true for the driver.

    Attributes
    ----------
    url : str
    asked : list of dict
        All objects that were created, as they were sent.
    processes : dict of str to subprocess.Popen
        By the name of the pod.
    """

    def __init__(
        self, folder: Path, environment: Mapping[str, str], driver_settings: Mapping[str, str]
    ) -> None:
        self.folder, self.environment, self.driver_settings = folder, environment, driver_settings
        self.asked: list[dict[str, Any]] = []
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.lock = threading.RLock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        for process in self.processes.values():
            end(process)

    def create(self, resource: str, body: dict[str, Any]) -> dict[str, Any]:
        """Keep an object; start a pod."""
        with self.lock:
            self.asked.append(json.loads(json.dumps(body)))
            name = body["metadata"].setdefault("name", f"{resource}-{uuid.uuid4().hex[:8]}")
            body["metadata"] |= {"uid": str(uuid.uuid4()), "namespace": "default", "resourceVersion": "1"}
            body["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
            self.objects[resource, name] = body
            if resource == "pods":
                body["status"] = {"phase": "Pending", "podIP": "127.0.0.1", "hostIP": "127.0.0.1"}
                self._wait_for_configuration(name)
            elif resource == "configmaps":
                for pod in [name for kind, name in self.objects if kind == "pods"]:
                    self._wait_for_configuration(pod)
        return body

    def _wait_for_configuration(self, name: str) -> None:
        """Start a pod that has not started, if the objects that its volumes name exist."""
        pod = self.objects["pods", name]
        wanted = [volume["configMap"]["name"] for volume in pod["spec"]["volumes"] if "configMap" in volume]
        if name not in self.processes and all(("configmaps", one) in self.objects for one in wanted):
            self.processes[name] = self._start(name, pod)

    def _start(self, name: str, pod: dict[str, Any]) -> subprocess.Popen[bytes]:
        home = self.folder / name
        home.mkdir()
        (container,) = pod["spec"]["containers"]
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        maps = {one["name"]: one["configMap"] for one in pod["spec"]["volumes"] if "configMap" in one}
        places = {mounts[volume]: str(home / volume) for volume in maps}
        for volume, source in maps.items():
            (home / volume).mkdir()
            paths = {item["key"]: item["path"] for item in source.get("items", [])}
            for key, text in self.objects["configmaps", source["name"]].get("data", {}).items():
                (home / volume / paths.get(key, key)).write_text(moved(text, places))
        given = {}
        for variable in container["env"]:
            source = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")
            fields = {"status.podIP": "127.0.0.1", "metadata.name": name}
            given[variable["name"]] = fields[source] if source else variable.get("value", "")
        environment = {**os.environ, **self.environment, **given, "SPARK_LOCAL_DIRS": str(home / "local")}
        environment = {name: moved(text, places) for name, text in environment.items()}
        with (home / "log").open("wb") as log:
            return subprocess.Popen(
                self._command([moved(word, places) for word in container["args"]], environment),
                cwd=home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _command(self, arguments: list[str], given: Mapping[str, str]) -> list[str]:
        """Return what the entrypoint of Spark's image runs."""
        if arguments[0] == "driver":
            settings = [
                word for name, value in self.driver_settings.items() for word in ("--conf", f"{name}={value}")
            ]
            submit = f"{given['SPARK_HOME']}/bin/spark-submit"
            return [submit, *settings, "--deploy-mode", "client", *arguments[1:]]
        options = sorted(
            (int(name.rpartition("_")[2]), value)
            for name, value in given.items()
            if name.startswith("SPARK_JAVA_OPT_")
        )
        memory = given["SPARK_EXECUTOR_MEMORY"]
        return [
            f"{given['JAVA_HOME']}/bin/java",
            *(value for _, value in options),
            *(f"-Xms{memory}", f"-Xmx{memory}", "-cp", f"{given['SPARK_HOME']}/jars/*"),
            "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
            *("--driver-url", given["SPARK_DRIVER_URL"], "--executor-id", given["SPARK_EXECUTOR_ID"]),
            *("--cores", given["SPARK_EXECUTOR_CORES"], "--app-id", given["SPARK_APPLICATION_ID"]),
            *("--hostname", given["SPARK_EXECUTOR_POD_IP"]),
            *("--resourceProfileId", given["SPARK_RESOURCE_PROFILE_ID"]),
            *("--podName", given["SPARK_EXECUTOR_POD_NAME"]),
        ]

    def shown(self, resource: str, name: str) -> dict[str, Any]:
        """Return an object, a pod with the state of its process."""
        found = self.objects[resource, name]
        process = self.processes.get(name)
        if resource == "pods" and process:
            code = process.poll()
            phase = {None: "Running", 0: "Succeeded"}.get(code, "Failed")
            ended = {"exitCode": code, "reason": "Completed" if code == 0 else "Error"}
            state = {"running": {}} if code is None else {"terminated": ended}
            (container,) = found["spec"]["containers"]
            found["status"] |= {
                "phase": phase,
                "containerStatuses": [
                    {
                        "name": container["name"],
                        "image": container["image"],
                        "imageID": "",
                        "ready": code is None,
                        "restartCount": 0,
                        "state": state,
                    }
                ],
            }
        return found

    def delete(self, resource: str, names: list[str]) -> None:
        """Forget objects; end the processes of pods."""
        for name in names:
            self.objects.pop((resource, name), None)
            if resource == "pods" and name in self.processes:
                end(self.processes[name])

    def selected(self, resource: str, selector: str) -> list[str]:
        """Return the names of the objects whose labels fit ``a=b,c!=d``."""
        terms = [part.partition("=") for part in selector.split(",") if part]
        wanted = {key: value for key, _, value in terms if not key.endswith("!")}
        unwanted = {key[:-1]: value for key, _, value in terms if key.endswith("!")}
        return [
            name
            for (kind, name), found in self.objects.items()
            if kind == resource
            if wanted.items() <= found["metadata"].get("labels", {}).items()
            if not unwanted.items() & found["metadata"].get("labels", {}).items()
        ]

    def _handler(api) -> type[BaseHTTPRequestHandler]:
        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def body(self) -> Any:
                raw = b""
                if self.headers.get("Transfer-Encoding") == "chunked":
                    while size := int(self.rfile.readline(), 16):
                        raw += self.rfile.read(size)
                        self.rfile.readline()
                    self.rfile.readline()
                elif length := int(self.headers.get("Content-Length") or 0):
                    raw = self.rfile.read(length)
                return yaml.safe_load(raw) if raw else None

            def answer(self, found: Any, code: int = 200) -> None:
                raw = json.dumps(found).encode()
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def status(self, code: int) -> None:
                state = "Success" if code < 400 else "Failure"
                self.answer({"kind": "Status", "apiVersion": "v1", "status": state, "code": code}, code)

            def do(self) -> None:
                address = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(address.query).items()}
                words = [unquote(word) for word in address.path.split("/") if word]
                sent = self.body()
                # /api/v1/namespaces/default/pods/a, /apis/networking.k8s.io/v1/namespaces/...
                place = words.index("default") + 1 if "default" in words else len(words)
                resource, name = (*words[place:], None, None)[:2]
                if resource not in KINDS:
                    self.status(404)
                    return
                selector = query.get("labelSelector", "")
                with api.lock:
                    method = self.command
                    if query.get("watch") == "true":
                        self.status(404)
                    elif method == "POST":
                        self.answer(api.create(resource, sent), 201)
                    elif method in ("PUT", "PATCH") and name:
                        if (resource, name) not in api.objects:
                            api.create(resource, sent)
                        elif resource != "pods":
                            api.objects[resource, name] |= {
                                part: sent[part] for part in ("data", "spec") if part in sent
                            }
                        self.answer(api.shown(resource, name))
                    elif method == "DELETE":
                        api.delete(resource, [name] if name else api.selected(resource, selector))
                        self.status(200)
                    elif name:
                        if (resource, name) in api.objects:
                            self.answer(api.shown(resource, name))
                        else:
                            self.status(404)
                    else:
                        items = [api.shown(resource, one) for one in api.selected(resource, selector)]
                        found = {"kind": f"{KINDS[resource]}List", "apiVersion": "v1", "items": items}
                        self.answer(found | {"metadata": {"resourceVersion": "1"}})

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do

        return Handler


def moved(text: str, places: Mapping[str, str]) -> str:
    """Return a text with the folders of this machine in place of those of a container."""
    for inside, outside in places.items():
        text = text.replace(inside, outside)
    return text


def end(process: subprocess.Popen[bytes]) -> None:
    """End a container, and all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
