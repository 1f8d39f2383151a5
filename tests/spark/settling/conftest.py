"""What tests of keys that settle share."""

from __future__ import annotations

from pathlib import Path

import pytest
from settled_files import Repeated


@pytest.fixture
def repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repeated:
    return Repeated(tmp_path / "local", monkeypatch)
