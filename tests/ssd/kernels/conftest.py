"""Without a GPU the kernels run in Triton's interpreter, which has to be chosen before they are imported."""

import importlib.util

import pytest
import torch

from tests.ssd.kernels.interpreted import interpret

TRITON = importlib.util.find_spec("triton") is not None
if TRITON and not torch.cuda.is_available():
    interpret()


class WithoutTriton(pytest.Module):
    """A module of tests that cannot even be imported."""

    def collect(self):
        pytest.skip("Triton is not installed", allow_module_level=True)


def pytest_pycollect_makemodule(module_path, parent):
    return None if TRITON else WithoutTriton.from_parent(parent, path=module_path)


@pytest.fixture
def device():
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
