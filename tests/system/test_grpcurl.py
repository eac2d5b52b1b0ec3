"""The real grpcurl against the router: what the README shows."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.system.services import System


def grpcurl(*arguments: str) -> str:
    """Standard output of one call that must succeed."""
    beside = Path(sys.executable).parent / "grpcurl"
    binary = str(beside) if beside.exists() else shutil.which("grpcurl")
    assert binary is not None, "grpcurl is part of the test extra"
    done = subprocess.run([binary, "-plaintext", *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def call(system: System, method: str, request: dict[str, Any]) -> list[dict[str, Any]]:
    """The response messages of a call."""
    text = grpcurl("-d", json.dumps(request), system.address, method)
    decoder, found, at = json.JSONDecoder(), [], 0
    while text[at:].strip():
        message, at = decoder.raw_decode(text, at + len(text[at:]) - len(text[at:].lstrip()))
        found.append(message)
    return found


def test_list_names_the_public_services(system: System) -> None:
    services = grpcurl(system.address, "list").split()
    assert {"ssd.v1.InferenceService", "ssd.v1.AdminService", "grpc.health.v1.Health"} <= set(services)


def test_describe_shows_a_method(system: System) -> None:
    text = grpcurl(system.address, "describe", "ssd.v1.InferenceService.GenerateStream")
    assert "rpc GenerateStream ( .ssd.v1.GenerateRequest ) returns ( stream .ssd.v1.GenerateStreamResponse );" in text


def test_describe_shows_a_message(system: System) -> None:
    assert "optional double temperature = 1;" in grpcurl(system.address, "describe", "ssd.v1.SamplingParameters")


def test_generate_stream_starts_streams_and_ends_with_usage(system: System) -> None:
    request = {"text": "hello", "sampling": {"temperature": 0}, "stop": {"maxTokens": 12, "ignoreEos": True}}
    messages = call(system, "ssd.v1.InferenceService/GenerateStream", request)
    assert "start" in messages[0]
    assert sum(len(m.get("token_ids", [])) for m in messages) == 12
    assert messages[-1]["finish"] == {"reason": "FINISH_REASON_LENGTH"}
    assert messages[-1]["usage"]["completion_tokens"] == 12


def test_health_of_the_process_and_of_the_service(system: System) -> None:
    for name in ("", "ssd.v1.InferenceService"):
        assert call(system, "grpc.health.v1.Health/Check", {"service": name}) == [{"status": "SERVING"}]


def test_target_and_draft_can_be_asked_as_well(system: System) -> None:
    for name in ("target", "draft"):
        address = system.specs[name].address
        assert f"ssd.v1.{name.capitalize()}Service" in grpcurl(address, "list").split()
