"""An inflated model computes what the small one does, however it gets its weights."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from bench.inflate.check import check
from bench.inflate.placement import place
from bench.inflate.recipe import Recipe, read_recipe, write_recipe
from bench.inflate.shapes import SHAPES, parse_shape
from bench.inflate.weights import InflatedWeights, zero_share
from bench.inflate.writing import write_inflated
from ssd.errors import FieldError
from ssd.models.builtin import DRAFT, TARGET
from ssd.models.config import ModelConfig
from ssd.models.errors import ModelError
from ssd.models.loader import load_model
from tests.ssd.engine import Engine, random_ids
from tests.toy import LLAMA3_ROPE, VOCAB, make_toy

# The toy: 3 layers, hidden 64, intermediate 176, 4 heads of 16 that share 2 key heads, vocabulary 320.
WIDE = "layers=5,hidden=96,intermediate=200,heads=12,kv_heads=4,head_dim=32,vocab=400"
NARROW_GROUPS = "layers=3,hidden=80,intermediate=176,heads=6,kv_heads=6,head_dim=16,vocab=320"
DEEP = "layers=9,hidden=64,intermediate=176,heads=4,kv_heads=2,head_dim=16,vocab=320"
SHAPES_TRIED = (WIDE, NARROW_GROUPS, DEEP)


def small_and_big(small, big, ids):
    """Logits of both over one text, the big one's padding apart: (small, big, padding)."""
    expected, found = Engine(small).logits(ids), Engine(big).logits(ids)
    return expected, found[:, : expected.shape[1]], found[:, expected.shape[1] :]


@pytest.mark.parametrize("text", SHAPES_TRIED)
@pytest.mark.parametrize("options", [{"tie": True}, {"rope": LLAMA3_ROPE}])
def test_a_written_model_has_the_small_ones_logits_and_greedy_ids(tmp_path, text, options):
    base = make_toy(tmp_path / "small", seed=3, **options)
    recipe = Recipe(str(base), parse_shape(text))
    write_inflated(tmp_path / "big", recipe, torch.float32, shard_bytes=200_000)
    assert (tmp_path / "big" / "model.safetensors.index.json").is_file()
    small, big = load_model(base, dtype="float32"), load_model(tmp_path / "big", dtype="float32")
    expected, found, padding = small_and_big(small, big, random_ids(50, seed=1))
    assert (expected - found).abs().max() < 1e-4
    assert not padding.numel() or padding.max() < -1e3
    prompts = [random_ids(n, seed=n) for n in (3, 20)]
    assert Engine(big).generate(prompts, 24) == Engine(small).generate(prompts, 24)


def test_a_recipe_alone_gives_the_same_model_as_its_written_weights(tmp_path):
    base = make_toy(tmp_path / "small")
    recipe = Recipe(str(base), parse_shape(WIDE))
    write_inflated(tmp_path / "written", recipe, torch.float32)
    write_recipe(tmp_path / "recipe", recipe, "float32")
    assert not list((tmp_path / "recipe").glob("*.safetensors"))
    assert read_recipe(tmp_path / "recipe") == recipe
    calls = []
    made = load_model(tmp_path / "recipe", dtype="float32", progress=lambda *call: calls.append(call))
    written = load_model(tmp_path / "written", dtype="float32")
    for name, parameter in written.model.named_parameters():
        assert torch.equal(made.model.get_parameter(name), parameter), name
    assert made.config == written.config
    assert calls[-1][0] == calls[-1][1] == sum(p.nbytes for p in made.model.parameters())


def test_a_draft_without_an_embedding_takes_its_lenders_and_its_lenders_tokenizer(tmp_path):
    lender, base = make_toy(tmp_path / "lender", tie=True), make_toy(tmp_path / "small", seed=5, tie=True)
    weights = load_file(base / "model.safetensors")
    weights["model.embed_tokens.weight"] = load_file(lender / "model.safetensors")["model.embed_tokens.weight"]
    whole = tmp_path / "whole"
    shutil.copytree(base, whole)
    save_file(weights, whole / "model.safetensors")
    del weights["model.embed_tokens.weight"]
    save_file(weights, base / "model.safetensors")
    (base / "tokenizer.json").unlink()
    recipe = Recipe(str(base), parse_shape(WIDE), embedding_from=str(lender))
    write_inflated(tmp_path / "big", recipe, torch.float32)
    assert (tmp_path / "big" / "tokenizer.json").is_file()
    ids = random_ids(20, seed=4)
    expected, found, _ = small_and_big(
        load_model(whole, dtype="float32"), load_model(tmp_path / "big", dtype="float32"), ids
    )
    assert (expected - found).abs().max() < 1e-4


def test_the_check_finds_equal_models_equal_and_others_not(tmp_path, monkeypatch):
    base = make_toy(tmp_path / "small")
    recipe = Recipe(str(base), parse_shape(WIDE))
    texts = [random_ids(30, seed=1), random_ids(7, seed=2)]
    found = check(recipe, texts)
    assert found.equal and found.positions == found.same == 37 and 0 < found.logits < 1e-4
    monkeypatch.setattr(InflatedWeights, "_norm", lambda self, name: torch.ones(self.placement.shape.hidden))
    assert not check(recipe, texts).equal


def test_what_reaches_nothing_is_random_and_the_share_of_zeros_is_stated_truly(tmp_path):
    base = make_toy(tmp_path / "small")
    placement = place(ModelConfig.from_directory(base), parse_shape(WIDE))
    big = load_model_weights(tmp_path, base)
    assert (big["model.layers.4.self_attn.q_proj.weight"] != 0).all()
    assert (big["model.layers.0.mlp.up_proj.weight"] != 0).all()
    read = {name: w for name, w in big.items() if not name.endswith(("norm.weight", "embed_tokens.weight"))}
    # The head's column for the constant channel is left out of the count.
    zeros = sum(int((w == 0).sum()) for w in read.values()) - VOCAB
    total = sum(w.numel() for w in read.values())
    assert zeros / total == pytest.approx(zero_share(placement))
    assert total == placement.shape.parameters_read


def load_model_weights(tmp_path, base):
    write_inflated(tmp_path / "big", Recipe(str(base), parse_shape(WIDE)), torch.float32)
    return load_file(tmp_path / "big" / "model.safetensors")


@pytest.mark.parametrize("name", SHAPES)
def test_the_shipped_pair_fits_every_shape(name):
    for base in (TARGET, DRAFT) if name in ("8b", "32b", "70b") else (DRAFT,):
        layers = {TARGET: 30, DRAFT: 4}[base]
        small = ModelConfig("llama", 49152, 576, 1536, layers, 9, 3, 64, 8192, make_rope(), 1e-5, True)
        placement = place(small, SHAPES[name])
        assert len(placement.query_rows.unique()) == 9 * 64
        assert placement.constant**2 + placement.norm_eps * SHAPES[name].hidden == pytest.approx(576e-5)
        assert placement.norm_eps > 0 and 0.1 < zero_share(placement) < 0.45


def make_rope():
    from ssd.layers.rope import Rope

    return Rope(100000.0)


def test_each_query_head_reads_a_copy_of_its_own_key_head():
    small = ModelConfig("llama", 320, 64, 176, 3, 9, 3, 16, 1024, make_rope())
    placement = place(small, parse_shape("0.6b,head_dim=32"))
    # Groups of 3 become groups of 2, so there are two copies of each key head.
    heads = (placement.query_rows[::16] // 32).tolist()
    keys = [(rows[::16] // 32).tolist() for rows in placement.key_rows]
    assert heads == [0, 1, 2, 4, 5, 6, 8, 9, 10] and keys == [[0, 2, 4], [1, 3, 5]]
    for head, big in enumerate(heads):
        assert any(copy[head // 3] == big // 2 for copy in keys)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layers=2,hidden=96,intermediate=200,heads=12,kv_heads=4,head_dim=32,vocab=400", "layers = 2 cannot hold"),
        ("layers=3,hidden=64,intermediate=200,heads=12,kv_heads=4,head_dim=32,vocab=400", "at least 65 are needed"),
        ("layers=3,hidden=96,intermediate=200,heads=12,kv_heads=4,head_dim=24,vocab=400", "no multiple"),
        ("layers=3,hidden=96,intermediate=200,heads=3,kv_heads=3,head_dim=16,vocab=320", "cannot hold 2 copies"),
        ("layers=3,hidden=96,intermediate=200,heads=9,kv_heads=4,head_dim=16,vocab=320", "evenly"),
        ("layers=3,hidden=96", "missing: intermediate"),
        ("33b", "no shape '33b'; there are 0.6b"),
        ("32b,width=3", "not SIZE=NUMBER"),
    ],
)
def test_a_shape_that_does_not_fit_is_named(tmp_path, text, message):
    base = make_toy(tmp_path / "small")
    with pytest.raises(FieldError, match=message):
        Recipe(str(base), parse_shape(text)).placement()


def test_other_families_and_dtypes_that_cannot_hold_it_are_refused(tmp_path):
    qwen = make_toy(tmp_path / "qwen", "qwen3")
    with pytest.raises(FieldError, match="only a Llama"):
        Recipe(str(qwen), parse_shape(WIDE)).placement()
    base = make_toy(tmp_path / "small")
    with pytest.raises(FieldError, match="float16 cannot rule out"):
        write_inflated(tmp_path / "big", Recipe(str(base), parse_shape(WIDE)), torch.float16)


def test_a_broken_recipe_is_refused_by_name(tmp_path):
    (tmp_path / "inflate.json").write_text("{}")
    with pytest.raises(ModelError, match=r"inflate\.json is no recipe"):
        read_recipe(tmp_path)


def test_a_full_disk_is_noticed_before_anything_is_written(tmp_path, monkeypatch):
    base = make_toy(tmp_path / "small")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))
    with pytest.raises(ModelError, match="--recipe"):
        write_inflated(tmp_path / "big", Recipe(str(base), parse_shape(WIDE)))
    assert not list((tmp_path / "big").iterdir())


def test_the_configuration_is_the_small_ones_with_other_sizes(tmp_path):
    base = make_toy(tmp_path / "small")
    write_recipe(tmp_path / "big", Recipe(str(base), parse_shape(WIDE), max_position=4096), "bfloat16")
    config = ModelConfig.from_directory(tmp_path / "big")
    small = ModelConfig.from_directory(base)
    assert (config.layers, config.hidden_size, config.vocab_size, config.max_position) == (5, 96, 400, 4096)
    assert (config.rope, config.eos_ids, config.stored_dtype) == (small.rope, small.eos_ids, "bfloat16")
    assert json.loads((tmp_path / "big" / "inflate.json").read_text())["base"] == str(base.resolve())
