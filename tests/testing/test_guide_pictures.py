"""The pictures of the guides show what queries do now."""

from __future__ import annotations

import pytest
from guide_pictures import FOLDER, PICTURES


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_what_a_query_does(name: str) -> None:
    drawn = PICTURES[name]().svg()
    assert (FOLDER / name).read_text() == drawn, "run python tests/support/pages/guide_pictures.py"
