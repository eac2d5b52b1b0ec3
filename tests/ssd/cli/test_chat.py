import io
import sys
from collections.abc import Callable, Iterator

import pytest

from protos.ssd.v1 import inference_pb2
from ssd.cli.chat import Conversation
from ssd.cli.client import Answer
from ssd.cli.errors import CliError
from ssd.cli.request import GenerateOptions

Reply = str | BaseException


class FakeClient:
    """Replies in turn; an exception comes after half a word."""

    def __init__(self, *replies: Reply) -> None:
        self._replies = iter(replies)
        self.histories: list[list[str]] = []

    def generate(self, request: inference_pb2.GenerateRequest, on_text: Callable[[str], None]) -> Answer:
        self.histories.append([m.content for m in request.chat.messages])
        reply = next(self._replies)
        if isinstance(reply, BaseException):
            on_text("half")
            raise reply
        on_text(reply)
        return Answer(usage=inference_pb2.Usage(completion_tokens=1), seconds=1.0)


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    def say(*lines: str) -> None:
        monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))

    return say


def talk(client: FakeClient, *, system: str | None = None, metrics: bool = False) -> Conversation:
    conversation = Conversation(client, GenerateOptions(), system, metrics)  # type: ignore[arg-type]
    conversation.run()
    return conversation


def test_each_turn_carries_the_history(say: Callable[..., None]) -> None:
    say("one", "", "two")
    client = FakeClient("first", "second")
    talk(client, system="be brief")
    assert client.histories == [["be brief", "one"], ["be brief", "one", "first", "two"]]


def test_a_stopped_answer_stays_in_the_history(say: Callable[..., None]) -> None:
    say("one", "two")
    client = FakeClient(KeyboardInterrupt(), "ok")
    talk(client)
    assert client.histories[1] == ["one", "half", "two"]


def test_a_refused_turn_is_dropped_and_the_conversation_goes_on(
    say: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    say("too long", "two")
    client = FakeClient(CliError("INVALID_ARGUMENT: chat: too long"), "ok")
    talk(client)
    assert client.histories[1] == ["two"]
    assert "error: INVALID_ARGUMENT: chat: too long" in capsys.readouterr().err


def test_metrics_follow_each_answer(say: Callable[..., None], capsys: pytest.CaptureFixture[str]) -> None:
    say("one")
    talk(FakeClient("first"), metrics=True)
    assert "[1 tokens, 1.0 tok/s" in capsys.readouterr().out


def test_ctrl_c_at_the_prompt_does_not_end_the_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: Iterator[Reply] = iter([KeyboardInterrupt(), "hello", EOFError()])

    def ask(_prompt: str) -> str:
        answer = next(answers)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr("builtins.input", ask)
    client = FakeClient("hi")
    talk(client)
    assert client.histories == [["hello"]]


def test_a_failed_turn_is_remembered(say: Callable[..., None]) -> None:
    say("one", "two")
    assert talk(FakeClient(CliError("no service"), "ok")).failed
    say("one")
    assert not talk(FakeClient("ok")).failed
