"""What tests share: one torch thread each, and double precision for those that compare numbers closely."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator

import pytest
import torch

from support.compiled import compile_kernels
from support.failing_calls import compile_library
from support.suite import Zygote


def pytest_sessionstart() -> None:
    """Two workers compile the kernels side by side, one number type each, before a test needs them."""
    number_types = {"gw0": torch.float64, "gw1": torch.float32}
    dtype = number_types.get(os.environ.get("PYTEST_XDIST_WORKER", ""))
    if dtype is not None:
        compile_kernels(dtype)


def pytest_collection_finish() -> None:
    """The garbage collector need not look at thousands of collected tests again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """On shared cores several threads per process cost more time than they save."""
    torch.set_num_threads(1)


@pytest.fixture
def double_precision() -> Iterator[None]:
    """Float64 parameters and a fixed seed."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(before)


@pytest.fixture(autouse=True)
def denormal_numbers() -> Iterator[None]:
    """Runs take tiny numbers as zero, which is a setting of the thread; the next test starts without it."""
    yield
    torch.set_flush_denormal(False)


@pytest.fixture(autouse=True)
def compiled_code() -> Iterator[None]:
    """Code that torch.compile has made is forgotten: while there is any, every `attach` looks for compiled modules."""
    yield
    frames = sys.modules.get("torch._dynamo.convert_frame")
    if frames is not None and frames.input_codes.seen:
        torch.compiler.reset()


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """A process that forks `neoteny` commands, whose system calls can be made to fail where there is a C compiler."""
    zygote = Zygote(compile_library(tmp_path_factory.mktemp("library")))
    yield zygote
    zygote.close()
