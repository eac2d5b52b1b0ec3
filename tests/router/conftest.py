"""Models and settings of the router's tests."""

from pathlib import Path

import pytest

from tests.router.fakes import model_directory


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a byte-level tokenizer and a chat template."""
    return model_directory(tmp_path_factory.mktemp("models") / "toy")
