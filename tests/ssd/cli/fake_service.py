"""A process with nothing but a health service, run by path: `fake_service.py PORT NAME [ignore-sigterm]`."""

import signal
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from ssd.cli.lifeline import end_with_stdin


def main(port: str, name: str, *flags: str) -> None:
    """Serve until SIGTERM or until standard input closes."""
    ended = threading.Event()
    signal.signal(signal.SIGTERM, signal.SIG_IGN if "ignore-sigterm" in flags else lambda *_: ended.set())
    end_with_stdin(grace_s=0.2)
    servicer = health.HealthServicer()
    servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    server = grpc.server(ThreadPoolExecutor(2))
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    print("listening", flush=True)
    ended.wait()
    server.stop(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
