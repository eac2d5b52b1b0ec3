import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from typer.testing import CliRunner

from protos.ssd.v1 import inference_pb2, inference_pb2_grpc, types_pb2
from ssd.cli.app import app
from ssd.cli.client import Client
from ssd.cli.errors import CliError
from ssd.cli.ports import free_ports
from ssd.cli.request import GenerateOptions, build_request
from ssd.errors import FieldError

Response = inference_pb2.GenerateStreamResponse
Handler = Callable[[inference_pb2.GenerateRequest, grpc.ServicerContext], Iterator[Response]]


class FakeRouter(inference_pb2_grpc.InferenceServiceServicer):
    """Answers with `handler` and remembers the requests."""

    def __init__(self) -> None:
        self.requests: list[inference_pb2.GenerateRequest] = []
        self.handler: Handler = hello
        self.address = ""

    def GenerateStream(  # noqa: N802 - gRPC's name
        self, request: inference_pb2.GenerateRequest, context: grpc.ServicerContext
    ) -> Iterator[Response]:
        self.requests.append(request)
        yield from self.handler(request, context)


def hello(_request: inference_pb2.GenerateRequest, _context: grpc.ServicerContext) -> Iterator[Response]:
    yield Response(start=inference_pb2.GenerationStart(request_id="r-1", model="toy", seed=3, prompt_tokens=2))
    yield Response(text="Hel", token_ids=[5, 6])
    yield Response(text="lo", token_ids=[7])
    yield Response(
        finish=inference_pb2.Finish(reason=types_pb2.FINISH_REASON_LENGTH),
        usage=inference_pb2.Usage(completion_tokens=3, rounds=2, proposed=2, accepted=1),
    )


@pytest.fixture
def router() -> Iterator[FakeRouter]:
    servicer = FakeRouter()
    server = grpc.server(ThreadPoolExecutor(2))
    inference_pb2_grpc.add_InferenceServiceServicer_to_server(servicer, server)
    servicer.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    yield servicer
    server.stop(0).wait()


def ask(router: FakeRouter, *arguments: str) -> tuple[int, str, BaseException | None]:
    result = CliRunner().invoke(app, ["generate", "hi", "--address", router.address, *arguments])
    return result.exit_code, result.output, result.exception


def test_text_is_streamed_as_it_comes(router: FakeRouter) -> None:
    heard: list[str] = []
    with Client(router.address, 10) as client:
        answer = client.generate(build_request("hi", GenerateOptions()), heard.append)
    assert heard == ["Hel", "lo"]
    assert (answer.text, answer.ids, answer.start.request_id) == ("Hello", [5, 6, 7], "r-1")
    assert 0 < answer.first_token_s <= answer.seconds


def test_generate_prints_the_text(router: FakeRouter) -> None:
    assert ask(router) == (0, "Hello\n", None)
    assert router.requests[0].chat.messages[0].content == "hi"


def test_raw_prompts_are_sent_as_they_are(router: FakeRouter) -> None:
    ask(router, "--raw")
    assert router.requests[0].text == "hi"


def test_json_is_one_object(router: FakeRouter) -> None:
    code, output, _ = ask(router, "--json")
    assert code == 0
    assert json.loads(output)["ids"] == [5, 6, 7]


def test_every_option_reaches_the_request(router: FakeRouter) -> None:
    options = "--mode sd --k 3 --fan-out 2 --temperature 0 --top-p 0.5 --top-k 4 --min-p 0.1 --seed 9 --max-tokens 8"
    more = "--min-tokens 2 --stop one --stop two --repetition-penalty 1.1 --presence-penalty 1 --frequency-penalty -1"
    ask(router, *options.split(), *more.split(), "--ignore-eos")
    request = router.requests[0]
    assert request.speculation == inference_pb2.SpeculationParameters(mode=types_pb2.MODE_SD, k=3, fan_out=2)
    assert request.sampling == types_pb2.SamplingParameters(
        temperature=0,
        top_p=0.5,
        top_k=4,
        min_p=0.1,
        seed=9,
        repetition_penalty=1.1,
        presence_penalty=1,
        frequency_penalty=-1,
    )
    assert request.stop == inference_pb2.StopParameters(
        max_tokens=8, min_tokens=2, texts=["one", "two"], ignore_eos=True
    )


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (
            "--mode auto --budget 12 --drafts 2 --fallback ngram",
            {
                "mode": types_pb2.MODE_AUTO,
                "fan_out_rule": types_pb2.FanOut(rule=types_pb2.FAN_OUT_RULE_MEASURED, budget=12),
                "drafts": 2,
                "fallback": types_pb2.FALLBACK_NGRAM,
            },
        ),
        (
            "--verification rejection --saguaro-c 0.5 --fan-out-rule geometric --budget 9",
            {
                "verification": types_pb2.VERIFICATION_REJECTION,
                "saguaro_c": 0.5,
                "fan_out_rule": types_pb2.FanOut(rule=types_pb2.FAN_OUT_RULE_GEOMETRIC, budget=9),
            },
        ),
        (
            "--fan-out-rule uniform --fan-out 4",
            {"fan_out_rule": types_pb2.FanOut(rule=types_pb2.FAN_OUT_RULE_UNIFORM, fan_out=4)},
        ),
    ],
)
def test_speculation_is_spoken_of_as_the_server_knows_it(
    router: FakeRouter, options: str, expected: dict[str, object]
) -> None:
    assert ask(router, *options.split())[0] == 0
    assert router.requests[0].speculation == inference_pb2.SpeculationParameters(**expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "option", ["--mode=fast", "--verification=hope", "--fallback=panic", "--fan-out-rule=explicit"]
)
def test_a_word_that_no_server_knows_is_refused_here(router: FakeRouter, option: str) -> None:
    _, _, error = ask(router, option)
    assert option.removeprefix("--").partition("=")[0].replace("-", "_") in str(error)
    assert not router.requests


def test_options_not_given_are_absent(router: FakeRouter) -> None:
    ask(router)
    request = router.requests[0]
    assert not request.sampling.HasField("temperature")
    assert not request.stop.HasField("max_tokens")
    assert not request.speculation.HasField("k")


@pytest.mark.parametrize(
    ("code", "status"), [(grpc.StatusCode.INVALID_ARGUMENT, 2), (grpc.StatusCode.RESOURCE_EXHAUSTED, 1)]
)
def test_a_refusal_shows_status_and_message(router: FakeRouter, code: grpc.StatusCode, status: int) -> None:
    def refuse(_request: inference_pb2.GenerateRequest, context: grpc.ServicerContext) -> Iterator[Response]:
        context.abort(code, "top_k: is -1")
        yield Response()

    router.handler = refuse
    _, _, error = ask(router)
    assert isinstance(error, CliError)
    assert (error.message, error.status) == (f"{code.name}: top_k: is -1", status)


def test_a_closed_output_cancels_the_call(router: FakeRouter) -> None:
    cancelled = threading.Event()

    def endless(_request: inference_pb2.GenerateRequest, context: grpc.ServicerContext) -> Iterator[Response]:
        context.add_callback(cancelled.set)
        yield Response(start=inference_pb2.GenerationStart(request_id="r"), text="x", token_ids=[1])
        cancelled.wait(30)

    def break_off(_text: str) -> None:
        raise BrokenPipeError

    router.handler = endless
    with Client(router.address, 60) as client, pytest.raises(BrokenPipeError):
        client.generate(build_request("hi", GenerateOptions()), break_off)
    assert cancelled.wait(10)


def test_no_router_is_said_with_what_to_do() -> None:
    address = f"127.0.0.1:{free_ports('127.0.0.1', 1)[0]}"
    command = [sys.executable, "-m", "ssd.cli", "generate", "hi", "--address", address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == (
        f"error: no router answers at {address}; start one with `ssd up`, or name another with --address\n"
    )
    assert done.stdout == ""


def test_an_empty_chat_prompt_is_refused_here() -> None:
    result = CliRunner().invoke(app, ["generate", ""])
    assert isinstance(result.exception, CliError)
    assert result.exception.status == 2


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("seed", -1, "0..18446744073709551615"), ("k", -1, "0..4294967295"), ("top_k", 1 << 40, "32-bit")],
)
def test_a_number_that_no_request_can_hold_is_named(name: str, value: int, message: str) -> None:
    with pytest.raises(FieldError, match=message) as refused:
        build_request("hi", GenerateOptions(**{name: value}))
    assert refused.value.field == name


def test_a_server_of_another_kind_is_no_router() -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        with Client(address, 10) as client, pytest.raises(CliError, match=f"{address} is no router"):
            client.generate(build_request("hi", GenerateOptions()))
    finally:
        server.stop(0).wait()


def test_a_deadline_is_told_by_the_option_that_set_it(router: FakeRouter) -> None:
    ended = threading.Event()

    def slow(_request: inference_pb2.GenerateRequest, context: grpc.ServicerContext) -> Iterator[Response]:
        context.add_callback(ended.set)
        yield Response(text="Hel", token_ids=[5])
        ended.wait(10)

    router.handler = slow
    with Client(router.address, 0.3) as client, pytest.raises(CliError, match=r"within 0\.3 s \(--timeout\)"):
        client.generate(build_request("hi", GenerateOptions()))
    assert ended.wait(10), "the server does not work on for nobody"
