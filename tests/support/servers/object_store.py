"""An S3 endpoint on loopback, in this process: it counts requests, and answers them one after the other.

moto keeps the objects, in memory. S3 refuses an object of which only a part arrives, as when its writer is
killed; moto would keep the part, so it never sees it.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from io import BytesIO
from types import TracebackType
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote

import boto3
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

__all__ = ["ObjectStore", "Request"]

SHORT = b"<Error><Code>IncompleteBody</Code><Message>the body has ended too early</Message></Error>"
DENIED = b"<Error><Code>AccessDenied</Code><Message>as the test wants it</Message></Error>"


class Request(NamedTuple):
    """What was asked for: PUT, COPY, LIST, GET, HEAD or DELETE, and the key, or prefix of keys."""

    kind: str
    key: str


class Handler(WSGIRequestHandler):
    """Asks for the body of a request once: by itself, werkzeug sends a second "100 Continue"."""

    def handle_expect_100(self) -> bool:
        return True


class ObjectStore:
    """A running endpoint.

    Attributes
    ----------
    url : str
    requests : collections.Counter
        How often each `Request` was made.
    refuses : callable
        Whether it answers a `Request` with "403 Forbidden", which S3A does not try again; at first, none.
    settings : dict of str to str
        Settings of a Spark that reaches it as ``s3a://``.
    """

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._inner = DomainDispatcherApplication(create_backend_app)
        self._turn = threading.Lock()
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.port}"
        self.requests: Counter[Request] = Counter()
        self.refuses: Callable[[Request], bool] = lambda request: False
        self.settings = {
            "spark.hadoop.fs.s3a.endpoint": self.url,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
            "spark.hadoop.fs.s3a.access.key": "key",
            "spark.hadoop.fs.s3a.secret.key": "secret",
            "spark.hadoop.fs.s3a.aws.credentials.provider": (
                "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider"
            ),
        }
        self.client: Any = boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id="key",
            aws_secret_access_key="secret",
        )

    def bucket(self) -> str:
        """Make a bucket, and return its name."""
        name = f"b{uuid.uuid4().hex[:12]}"
        self.client.create_bucket(Bucket=name)
        return name

    def keys(self, bucket: str, prefix: str = "") -> list[str]:
        """Return the keys in a bucket."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
        return [each["Key"] for page in pages for each in page.get("Contents", ())]

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        chunked = environ.pop("HTTP_TRANSFER_ENCODING", "") == "chunked"  # as PyArrow sends it
        size = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(*([] if chunked else [size])) if size or chunked else b""
        if chunked:
            size = len(body)
            environ["CONTENT_LENGTH"] = str(size)
        if len(body) < size:
            start("400 Bad Request", [("Content-Type", "application/xml")])
            return [SHORT]
        environ["wsgi.input"] = BytesIO(body)
        with self._turn:
            request = asked(environ)
            self.requests[request] += 1
            if self.refuses(request):
                start("403 Forbidden", [("Content-Type", "application/xml")])
                return [DENIED]
            return list(self._inner(environ, start))

    def __enter__(self) -> ObjectStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def asked(environ: dict[str, Any]) -> Request:
    """Return what a request asks for; those of a multipart upload are all PUT, as S3's price list has it."""
    method = environ["REQUEST_METHOD"]
    query = parse_qs(environ.get("QUERY_STRING", ""), keep_blank_values=True)
    key = unquote(environ["PATH_INFO"]).lstrip("/").partition("/")[2]
    if method == "GET" and not key:
        return Request("LIST", query.get("prefix", [""])[0])
    if method == "POST":
        return Request("DELETE" if "delete" in query else "PUT", key)
    if method == "PUT" and "HTTP_X_AMZ_COPY_SOURCE" in environ:
        return Request("COPY", key)
    return Request(method, key)
