"""Text and chat to ids."""

import datetime
import json

import grpc
import pytest

from protos.ssd.v1 import inference_pb2
from router.tokenization import load_tokenization
from ssd.errors import FieldError
from ssd.rpc.status import ApiError
from tests.router.fakes import model_directory


def chat(*messages):
    return inference_pb2.ChatInput(messages=[inference_pb2.ChatMessage(role=r, content=c) for r, c in messages])


def with_template(directory, template, **settings):
    """A model whose tokenizer_config.json has this chat template."""
    model_directory(directory)
    file = directory / "tokenizer_config.json"
    content = json.loads(file.read_text()) | {"chat_template": template} | settings
    file.write_text(json.dumps(content))
    return directory


async def rendered(directory, *messages, now=datetime.datetime.now):
    tokenization = load_tokenization(directory, now)
    return tokenization.tokenizer.decode(await tokenization.of_chat(chat(*messages)), special_tokens=True)


async def test_special_tokens_are_known_to_the_template_as_text_or_as_objects(tmp_path):
    template = (
        "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m.content | trim }}{{ eos_token }}{% endfor %}"
    )
    directory = with_template(tmp_path / "a", template, eos_token={"content": "<|im_end|>", "special": True})
    assert await rendered(directory, ("user", " hi ")) == "<|bos|>[user]hi<|im_end|>"


async def test_special_tokens_may_stand_in_a_map_of_their_own(tmp_path):
    directory = with_template(tmp_path / "a", "{{ pad_token }}|{{ bos_token }}")
    (directory / "special_tokens_map.json").write_text(json.dumps({"pad_token": "<|eos|>", "bos_token": "other"}))
    assert await rendered(directory, ("user", "x")) == "<|eos|>|<|bos|>"


async def test_a_template_file_wins_over_the_settings(tmp_path):
    directory = with_template(tmp_path / "a", "settings")
    (directory / "chat_template.jinja").write_text("file")
    assert await rendered(directory, ("user", "x")) == "file"


async def test_of_several_named_templates_the_default_is_taken(tmp_path):
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "plain"}]
    assert await rendered(with_template(tmp_path / "a", named), ("user", "x")) == "plain"


async def test_templates_may_use_what_templates_use(tmp_path):
    template = (
        "{%- set ns = namespace(n=0) %}{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}\n"
        "    {% generation %}\n    {{ m | tojson }}\n    {% endgeneration %}\n"
        "    {% set ns.n = ns.n + 1 %}{% if ns.n > 1 %}{% break %}{% endif %}{% endfor %}"
        "{{ strftime_now('%Y-%m-%d') }}{{ tools is none }}{% if add_generation_prompt %}>{% endif %}"
    )
    directory = with_template(tmp_path / "a", template)
    text = await rendered(directory, ("system", "s"), ("user", "<é>"), now=lambda: datetime.datetime(2031, 5, 17))
    assert json.loads(text[: text.index("}") + 1]) == {"role": "user", "content": "<é>"}
    assert "<é>" in text
    assert text.split("}")[1].strip() == "2031-05-17True>"


async def test_a_template_may_refuse_messages(tmp_path):
    template = "{% if messages[0].role != 'user' %}{{ raise_exception('must begin with user') }}{% endif %}"
    directory = with_template(tmp_path / "a", template)
    with pytest.raises(ApiError, match="must begin with user") as caught:
        await rendered(directory, ("system", "x"))
    assert caught.value.code == grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "template", ["{{ 1 + 'a' }}", "{{ nowhere.to.go }}", "{{ ''.__class__.__mro__[1].__subclasses__() }}"]
)
async def test_a_template_that_fails_is_the_messages_fault_and_cannot_reach_out(tmp_path, template):
    with pytest.raises(ApiError, match="refuses them"):
        await rendered(with_template(tmp_path / "a", template), ("user", "x"))


async def test_without_a_template_chat_is_unimplemented_and_text_works(tmp_path):
    tokenization = load_tokenization(with_template(tmp_path / "a", None))
    with pytest.raises(ApiError) as caught:
        await tokenization.of_chat(chat(("user", "x")))
    assert caught.value.code == grpc.StatusCode.UNIMPLEMENTED
    assert await tokenization.of_text("x") == [ord("x")]


async def test_a_template_that_cannot_be_compiled_names_the_setting(tmp_path):
    with pytest.raises(FieldError, match="chat template") as caught:
        load_tokenization(with_template(tmp_path / "a", "{% if %}"))
    assert caught.value.field == "model"


async def test_a_long_text_gives_the_same_ids_as_a_short_one(tmp_path):
    tokenization = load_tokenization(model_directory(tmp_path / "a"))
    assert await tokenization.of_text("ab" * 5000) == [97, 98] * 5000
