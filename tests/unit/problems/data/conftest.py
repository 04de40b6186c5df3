"""A dataset of two small files, served by this machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from neoteny.problems.data.datasets import DATASETS
from support.data_server import Server, known_from


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    served = Server()
    thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield served
    served.shutdown()
    served.server_close()
    thread.join()


@pytest.fixture
def tiny(server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder into which the dataset "tiny" is fetched."""
    monkeypatch.setitem(DATASETS, "tiny", known_from(server.address))
    return cache / "tiny"
