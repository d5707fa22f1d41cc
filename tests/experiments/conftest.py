"""What the tests of the laboratory share."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _tables_of_any_width(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest's workers have COLUMNS in their environment, to which tables would be cut."""
    monkeypatch.delenv("COLUMNS", raising=False)
