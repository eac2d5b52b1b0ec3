from collections.abc import Iterator

import pytest

from tests.system.services import System, Toys, running_system
from tests.toy import make_noisy_draft, make_toy


@pytest.fixture(scope="session")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Toys:
    """A target, and a draft that is the target plus a little noise."""
    folder = tmp_path_factory.mktemp("toys")
    target = make_toy(folder / "toy", "llama")
    return Toys(target, make_noisy_draft(target, folder / "toy-draft", 0.02))


@pytest.fixture(scope="module")
def system(toys: Toys, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """Services for the tests of one module that leave them as they were."""
    with running_system(toys, tmp_path_factory.mktemp("system")) as running:
        yield running
