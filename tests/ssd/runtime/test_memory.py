"""How much KV room a GPU of given numbers has."""

from dataclasses import replace

import pytest

from ssd.config import CPU_KV_TOKENS, EngineConfig
from ssd.errors import FieldError
from ssd.models.errors import ModelError
from ssd.models.loader import load_model
from ssd.runtime.assembly import make_runner
from ssd.runtime.kv_cache import block_bytes
from ssd.runtime.memory import GIB, Measured, kv_blocks
from ssd.runtime.step_sizes import Demand
from tests.toy import make_toy

ROOMY = Measured(total=140 * GIB, free=130 * GIB, held=10 * GIB, working=GIB)
ENGINE = EngineConfig(device="cuda", max_sequences=1 << 40)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return load_model(make_toy(tmp_path_factory.mktemp("toy")))


def test_what_is_left_of_the_share_is_kv(loaded):
    size = block_bytes(loaded, 16)
    assert kv_blocks(loaded, ENGINE, Demand(), ROOMY) == (126 - 10 - 0.5 - 1 - 1.5) * GIB // size
    half = replace(ENGINE, memory_fraction=0.5)
    assert kv_blocks(loaded, half, Demand(), ROOMY) == (70 - 13) * GIB // size


def test_what_another_process_holds_is_not_counted_on(loaded):
    taken = replace(ROOMY, free=20 * GIB)
    assert kv_blocks(loaded, ENGINE, Demand(), taken) == int(17.5 * GIB) // block_bytes(loaded, 16)


def test_no_more_than_all_sequences_could_use(loaded):
    engine = replace(ENGINE, max_sequences=3, max_context=100)
    assert kv_blocks(loaded, engine, Demand(queries=12), ROOMY) == 3 * 7
    assert kv_blocks(loaded, engine, Demand(queries=12, branches=10, depth=8), ROOMY) == 3 * 12


@pytest.mark.parametrize("change", [{"free": 2 * GIB}, {"held": 125 * GIB}, {"working": 125 * GIB}])
def test_no_room_is_said_with_numbers_and_what_to_change(loaded, change):
    with pytest.raises(ModelError, match=r"GiB.*memory_fraction = 0.9.*lower token_budget"):
        kv_blocks(loaded, ENGINE, Demand(), replace(ROOMY, **change))


def test_the_cpu_has_its_own_default(loaded):
    assert EngineConfig().kv_tokens == CPU_KV_TOKENS == 16384
    assert EngineConfig(device="cuda").kv_tokens == 0
    runner, pool = make_runner(loaded, EngineConfig(kv_tokens=1600))
    assert pool.blocks == 100 and not runner.draws
    with pytest.raises(FieldError, match="for a GPU"):
        make_runner(loaded, EngineConfig(device="cuda"))


def test_graphs_need_a_gpu(loaded):
    with pytest.raises(FieldError, match="cuda_graphs: needs one GPU"):
        make_runner(loaded, EngineConfig(kv_tokens=160, cuda_graphs="on"))
    assert make_runner(loaded, EngineConfig(cuda_graphs="off"))[1].blocks == 1024
