"""`--rewrite` writes transcripts anew instead of comparing them; people review the diff."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the scenario transcripts anew")


@pytest.fixture
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether transcripts are to be written."""
    return bool(request.config.getoption("--rewrite", default=False))
