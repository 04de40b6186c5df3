"""An S3 server for tests: moto's, in a process of its own, one request at a time; writes may be made to fail.

    python object_store.py PORT BUCKET [FAILURES]

With FAILURES = 20 one write in twenty is answered by an error, at random; half of those were carried out all the same.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Any

BUCKET = "sweeps"


@contextlib.contextmanager
def serving(failures: int = 0) -> Iterator[dict[str, str]]:
    """A running server; yields the variables by which fsspec finds it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, __file__, str(port), BUCKET, str(failures)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"},
    )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(f"{address}/{BUCKET}", process)
        yield {
            "FSSPEC_S3_ENDPOINT_URL": address,
            "FSSPEC_S3_KEY": "x",
            "FSSPEC_S3_SECRET": "x",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",  # the store must cope by itself
            "AWS_EC2_METADATA_DISABLED": "true",
        }
    finally:
        process.kill()
        process.wait()


@contextlib.contextmanager
def bucket(failures: int = 0) -> Iterator[tuple[str, dict[str, str]]]:
    """A running server that this process uses, too; yields its bucket and the variables for other processes."""
    import fsspec
    from fsspec.config import conf

    with serving(failures) as variables:
        options = {name.removeprefix("FSSPEC_S3_").lower(): value for name, value in variables.items()}
        conf["s3"] = {name: options[name] for name in ("endpoint_url", "key", "secret")}
        conf["s3"]["config_kwargs"] = {"retries": {"max_attempts": 0}}
        yield f"s3://{BUCKET}", variables
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        del conf["s3"]


def _wait_for(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, "the server has ended"
        with contextlib.suppress(OSError):
            try:
                urllib.request.urlopen(address, timeout=5).close()
            except urllib.error.HTTPError as error:
                error.close()
                if error.code != 404:
                    return
            else:
                return
        time.sleep(0.1)
    raise TimeoutError("the server did not start")


class _Failing:
    """An application that answers one write in so many with an error."""

    def __init__(self, application: Any, failures: int) -> None:
        self._application, self._failures = application, failures
        self._draw, self._lock = random.Random(0), threading.Lock()

    def __call__(self, environment: dict[str, Any], start: Any) -> Iterable[bytes]:
        with self._lock:  # a conditional put looks and writes: as one step
            fails = environment["REQUEST_METHOD"] in ("PUT", "POST") and self._failures
            if fails and self._draw.randrange(self._failures) == 0:
                if self._draw.random() < 0.5:
                    list(self._application(environment, lambda *_: None))
                start("500 Internal Server Error", [("Content-Type", "application/xml")])
                return [b"<Error><Code>InternalError</Code><Message>made to fail</Message></Error>"]
            return list(self._application(environment, start))


def main() -> None:
    """Serve until killed."""
    import boto3
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    port, bucket, failures = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    application = _Failing(DomainDispatcherApplication(create_backend_app), 0)

    def begin() -> None:
        client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1")
        client.create_bucket(Bucket=bucket)
        application._failures = failures

    threading.Timer(1.0, begin).start()
    run_simple("127.0.0.1", port, application, threaded=True)


if __name__ == "__main__":
    main()
