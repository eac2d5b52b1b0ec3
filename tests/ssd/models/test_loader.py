"""Weights reach their layers whole or in shards, and nothing is missing or left over unnoticed."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from ssd.layers.build import Build
from ssd.layers.embedding import VocabEmbedding
from ssd.layers.shard import Shard
from ssd.models.checkpoint import write_checkpoint
from ssd.models.errors import ModelError
from ssd.models.loader import load_model
from tests.ssd.engine import Engine, random_ids
from tests.ssd.threads import on_threads
from tests.toy import make_toy

WEIGHTS = "model.safetensors"


def rewrite(path, change):
    weights = load_file(path / WEIGHTS)
    change(weights)
    save_file(weights, path / WEIGHTS)


def test_several_files_with_an_index_load_as_one(tmp_path):
    path = make_toy(tmp_path)
    ids = random_ids(30, seed=1)
    expected = Engine.load(path, dtype="float64").logits(ids)
    weights = load_file(path / WEIGHTS)
    (path / WEIGHTS).unlink()
    write_checkpoint(path, weights.items(), most_bytes=200_000)
    assert len(list(path.glob("*.safetensors"))) > 2
    assert torch.equal(Engine.load(path, dtype="float64").logits(ids), expected)
    next(path.glob("model-00002*")).unlink()
    with pytest.raises(ModelError, match=r"model-00002\.safetensors is missing"):
        load_model(path)


def test_an_index_that_promises_too_much_is_refused(tmp_path):
    path = make_toy(tmp_path)
    index = {"weight_map": {"model.norm.weight": WEIGHTS, "model.layers.9.mlp.up_proj.weight": WEIGHTS}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match=r"lacks tensors that the index promises: model\.layers\.9"):
        load_model(path)


def test_missing_left_over_and_misshapen_tensors_are_named(tmp_path):
    lacking = make_toy(tmp_path / "lacking")
    rewrite(lacking, lambda weights: weights.pop("model.layers.1.self_attn.k_proj.weight"))
    with pytest.raises(ModelError, match=r"lacks tensors: model\.layers\.1\.self_attn\.k_proj\.weight"):
        load_model(lacking)
    excess = make_toy(tmp_path / "excess")
    rewrite(excess, lambda weights: weights.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}))
    with pytest.raises(ModelError, match=r"no place for: model\.layers\.0\.self_attn\.q_proj\.bias"):
        load_model(excess)
    misshapen = make_toy(tmp_path / "misshapen")
    rewrite(misshapen, lambda weights: weights.update({"model.layers.2.mlp.down_proj.weight": torch.zeros(64, 175)}))
    with pytest.raises(
        ModelError, match=r"down_proj\.weight has shape \[64, 175\], the configuration implies \[64, 176\]"
    ):
        load_model(misshapen)
    (misshapen / WEIGHTS).write_bytes(b"not safetensors")
    with pytest.raises(ModelError, match="not a readable safetensors file"):
        load_model(misshapen)
    (misshapen / WEIGHTS).unlink()
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor"):
        load_model(misshapen)


def test_a_tied_model_may_be_stored_with_a_copy_of_its_head(tmp_path):
    path = make_toy(tmp_path, tie=True)
    rewrite(path, lambda weights: weights.update({"lm_head.weight": weights["model.embed_tokens.weight"].clone()}))
    assert load_model(path).model.lm_head is None


@pytest.mark.parametrize("tie", [True, False])
def test_a_draft_borrows_its_embedding_from_the_target(tmp_path, tie):
    target = make_toy(tmp_path / "target", tie=tie)
    draft = make_toy(tmp_path / "draft", tie=tie)
    ids = random_ids(20, seed=2)
    expected = Engine.load(draft, dtype="float64").logits(ids)
    rewrite(
        draft, lambda weights: [weights.pop(name, None) for name in ("model.embed_tokens.weight", "lm_head.weight")]
    )
    with pytest.raises(ModelError, match=r"stored without model\.embed_tokens\.weight: name the model that lends it"):
        load_model(draft)
    assert torch.equal(Engine.load(draft, dtype="float64", embedding_from=target).logits(ids), expected)


def test_progress_ends_with_everything_done(tmp_path):
    calls = []
    load_model(make_toy(tmp_path), progress=lambda done, total: calls.append((done, total)))
    assert calls == sorted(calls) and calls[-1][0] == calls[-1][1] > 700_000


def test_unknown_dtype_and_device_are_refused(tmp_path):
    path = make_toy(tmp_path)
    with pytest.raises(ValueError, match="dtype 'int8' is not known; known: auto, float32"):
        load_model(path, dtype="int8")
    with pytest.raises(ValueError, match="device 'warp:0'"):
        load_model(path, device="warp:0")


class Slice:
    """A tensor in memory with the face of one in a file."""

    def __init__(self, tensor):
        self.tensor = tensor

    def get_shape(self):
        return list(self.tensor.shape)

    def __getitem__(self, index):
        return self.tensor[index]


@pytest.mark.parametrize(("family", "size"), [("llama", 2), ("qwen2", 2), ("qwen3", 2), ("llama", 4), ("qwen2", 4)])
def test_shards_together_compute_what_the_whole_computes(tmp_path, family, size):
    # 2 key/value heads: split over 2 ranks, replicated on 4. 320 rows of vocabulary split evenly over both.
    path = make_toy(tmp_path, family)
    ids = random_ids(40, seed=3)
    expected = Engine.load(path, dtype="float64").logits(ids)

    def run(rank, collective):
        return Engine.load(path, dtype="float64", shard=Shard(rank, size, collective)).logits(ids)

    for result in on_threads(size, run):
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-10)


def test_each_shard_holds_its_part_of_every_matrix(tmp_path):
    path = make_toy(tmp_path)
    whole = load_file(path / WEIGHTS)
    halves = [load_model(path, dtype="float32", shard=Shard(rank, 2)).model for rank in range(2)]
    qkv = [half.model.layers[1].self_attn.qkv_proj.weight for half in halves]
    for index, name in enumerate(("q_proj", "k_proj", "v_proj")):
        parts = [weight.split([32, 16, 16])[index] for weight in qkv]
        assert torch.equal(torch.cat(parts), whole[f"model.layers.1.self_attn.{name}.weight"])
    down = [half.model.layers[1].mlp.down_proj.weight for half in halves]
    assert torch.equal(torch.cat(down, dim=1), whole["model.layers.1.mlp.down_proj.weight"])
    embedding = [half.model.embed_tokens.weight for half in halves]
    assert torch.equal(torch.cat(embedding), whole["model.embed_tokens.weight"])


def test_a_vocabulary_that_does_not_divide_is_filled_up():
    vocab, hidden = 10, 4
    whole = torch.randn(vocab, hidden)

    def run(rank, collective):
        layer = VocabEmbedding(vocab, hidden, Build(shard=Shard(rank, 3, collective)))
        layer.load("weight", Slice(whole))
        return layer.logits(layer(torch.arange(vocab)))

    for result in on_threads(3, run):
        torch.testing.assert_close(result, whole @ whole.T)


def test_heads_that_cannot_be_split_are_refused(tmp_path):
    with pytest.raises(ModelError, match="attention heads = 4 cannot be split over 3 ranks"):
        load_model(make_toy(tmp_path), shard=Shard(0, 3))
