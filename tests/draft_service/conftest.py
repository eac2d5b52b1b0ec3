"""One tiny float64 model for all tests of the draft: in float64 no two ways of computing part at a near tie."""

import pytest
import torch

from ssd.models.loader import LoadedModel, load_model
from tests.draft_service.harness import Reference, Wire, make_engine
from tests.toy import make_toy


@pytest.fixture(scope="session")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    torch.set_num_threads(1)
    return load_model(make_toy(tmp_path_factory.mktemp("toy") / "model", tokenizer=False), dtype="float64")


@pytest.fixture(scope="session")
def reference(loaded: LoadedModel) -> Reference:
    return Reference(loaded)


@pytest.fixture
def wire(loaded: LoadedModel) -> Wire:
    return Wire(make_engine(loaded))
