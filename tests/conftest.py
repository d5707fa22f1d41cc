from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from sddmm.backends.selection import forget_choices
from sddmm.cache import CACHE
from sddmm.testing import H200, poisoned_outputs

__all__ = ["DATA", "H200", "ROOT", "shared_folder"]

ROOT = Path(__file__).parent.parent
DATA = Path(__file__).parent / "data"

# What a process may keep of a GPU's memory for its next test: other processes share the GPU.
_KEPT_BYTES = 4 << 30


def shared_folder(factory: pytest.TempPathFactory, name: str) -> Path:
    """A folder of this session, which all processes of pytest-xdist share."""
    base = factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / name
    folder.mkdir(exist_ok=True)
    return folder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The slow ones first, so that no process is left with one of them at the end."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is None)


def _seed(nodeid: str) -> None:
    """The numbers of `torch.randn` and its kin: others in each place, the same in each run."""
    torch.manual_seed(zlib.crc32(nodeid.encode()))


def pytest_collectstart(collector: pytest.Collector) -> None:
    """The numbers that a module draws as it is imported."""
    _seed(collector.nodeid)


def pytest_runtest_setup(item: pytest.Item) -> None:
    _seed(item.nodeid)
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No plan, choice or level of logging of another test, no matrix of the user's cache, NaN in
    every new output."""
    logging.root.setLevel(logging.WARNING)  # Hydra's configurations set another, and disable
    for name in logging.root.manager.loggerDict:
        logging.getLogger(name).disabled = False
    CACHE.clear()
    forget_choices()
    monkeypatch.setenv("SDDMM_DATASETS_CACHE", str(tmp_path / "datasets-cache"))
    with poisoned_outputs():
        yield
    if torch.cuda.is_initialized() and torch.cuda.memory_reserved() > _KEPT_BYTES:
        torch.cuda.empty_cache()
