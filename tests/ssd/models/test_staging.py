"""Files read through staging buffers give the tensors that safetensors gives."""

import pytest
import torch
from safetensors.torch import load_file, save_file

from ssd.models import staging
from ssd.models.errors import ModelError
from ssd.models.loader import load_model
from ssd.models.staging import Staging, header
from tests.ssd.engine import Engine, random_ids
from tests.toy import make_toy

CPU = torch.device("cpu")


def test_tensors_larger_and_smaller_than_a_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr(staging, "CHUNK_BYTES", 1000)
    tensors = {
        "a": torch.randn(7, 333),
        "b": torch.randn(5).to(torch.bfloat16),
        "c": torch.randn(250, dtype=torch.float64),
        "d": torch.empty(0, 4),
        "e": torch.randn(9000, dtype=torch.float64).to(torch.float16),
    }
    save_file(tensors, tmp_path / "x.safetensors")
    reader = Staging(CPU)
    found = {name: source[:].clone() for name, source in reader.read(tmp_path / "x.safetensors", {"a", "c", "d", "e"})}
    assert found.keys() == {"a", "c", "d", "e"}
    for name, tensor in found.items():
        assert torch.equal(tensor, tensors[name])
    (only,) = (source.get_shape() for _, source in reader.read(tmp_path / "x.safetensors", {"b"}))
    assert only == [5]
    reader.close()


def test_a_model_loads_the_same_through_them(tmp_path, monkeypatch):
    path = make_toy(tmp_path, "qwen3", tie=True)
    ids = random_ids(20, seed=1)
    expected = Engine.load(path, dtype="float64").logits(ids)
    monkeypatch.setattr("ssd.models.loader.stages", lambda model: True)
    steps = []
    loaded = load_model(path, dtype="float64", progress=lambda done, total: steps.append((done, total)))
    assert torch.equal(Engine(loaded).logits(ids), expected)
    assert steps == sorted(steps) and steps[-1][0] == steps[-1][1]


def test_a_file_that_ends_early_is_named(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.randn(1000)}, path)
    path.write_bytes(path.read_bytes()[:-8])
    reader = Staging(CPU)
    with pytest.raises(ModelError, match=r"x\.safetensors ends before"):
        list(reader.read(path, {"a"}))
    reader.close()


def test_a_dtype_of_no_model_is_named(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.arange(3)}, path)
    with pytest.raises(ModelError, match="a is of dtype I64"):
        header(path)
    assert load_file(path)["a"].tolist() == [0, 1, 2]
