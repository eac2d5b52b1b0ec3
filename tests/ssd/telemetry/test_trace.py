"""Parts of a trace are bounded, survive a killed process, and join into what Chrome opens."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from ssd.errors import FieldError
from ssd.telemetry import trace
from ssd.telemetry.trace import FileTracer, NoTracer, PartError, merge, open_tracer, parts_of, read_part


def test_spans_and_instants_of_two_services_stand_on_one_clock(tmp_path):
    file = tmp_path / "t.json"
    for service, at in (("target", 2.0), ("draft", 1.5)):
        tracer = open_tracer(str(file), service)
        tracer.span("engine", "step", at, at + 0.25, rows=3)
        tracer.instant("engine", "published", at + 0.3)
        tracer.close()
    assert merge(file, parts_of(file)) == 4
    events = json.loads(file.read_text())
    assert {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"} == {"target", "draft"}
    timed = [e for e in events if e["ph"] != "M"]
    assert [e["ts"] for e in timed] == pytest.approx([1.5e6, 1.8e6, 2e6, 2.3e6])
    assert timed[2]["dur"] == pytest.approx(250_000) and timed[2]["args"] == {"rows": 3}
    assert timed[1]["ph"] == "i" and timed[1]["name"] == "published"


def test_lanes_are_named_once_in_each_process(tmp_path):
    tracer = FileTracer(tmp_path / "t.json", "router")
    for at in range(3):
        tracer.span("engine", "a", at, at + 1)
        tracer.span("mail", "b", at, at + 1)
    tracer.close()
    events = list(trace.chrome_events(parts_of(tmp_path / "t.json")))
    assert sorted(e["args"]["name"] for e in events if e["name"] == "thread_name") == ["engine", "mail"]
    assert len({e["tid"] for e in events if e["ph"] == "X"}) == 2


def test_without_a_file_nothing_happens():
    tracer = open_tracer("", "target")
    assert isinstance(tracer, NoTracer)
    tracer.span("engine", "step", 1.0, 2.0)
    tracer.instant("engine", "step", 1.0)
    assert tracer.now() == 0.0
    tracer.close()


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(FieldError, match=r"trace: .*/missing/t\.json: No such file"):
        open_tracer(str(tmp_path / "missing" / "t.json"), "target")


def test_events_are_written_while_the_process_runs(tmp_path):
    tracer = FileTracer(tmp_path / "t.json", "target", flush_every_s=0.01)
    tracer.span("engine", "step", 1.0, 2.0)
    deadline = time.monotonic() + 20
    while not read_part(tracer.path)[2]:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    tracer.close()


def test_what_waits_is_bounded_and_losses_are_told(tmp_path, monkeypatch):
    monkeypatch.setattr(trace, "MOST_WAITING", 10)
    tracer = FileTracer(tmp_path / "t.json", "target", flush_every_s=60)
    for at in range(25):
        tracer.instant("engine", "tick", float(at))
    tracer.close()
    tracer.instant("engine", "late", 1.0)
    events = read_part(tracer.path)[2]
    assert len(events) == 11
    assert events[-1][1] == "dropped" and events[-1][4] == {"events": 15}


def test_many_threads_lose_nothing(tmp_path):
    tracer = FileTracer(tmp_path / "t.json", "target", flush_every_s=0.001)
    threads = [
        threading.Thread(target=lambda: [tracer.span("engine", "s", i, i + 1) for i in range(500)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tracer.close()
    assert len(read_part(tracer.path)[2]) == 2000


def test_an_orderly_end_writes_everything_and_a_killed_process_leaves_a_readable_part(tmp_path):
    def child(body):
        code = (
            "import sys, time, os, pathlib\n"
            "from ssd.telemetry.trace import FileTracer\n"
            "tracer = FileTracer(pathlib.Path(sys.argv[1]), 'target', flush_every_s=0.01)\n"
            "tracer.span('engine', 'step', 1.0, 2.0)\n" + body
        )
        return subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "t.json")], stdout=subprocess.PIPE)

    orderly = child("")
    assert orderly.wait(60) == 0
    killed = child("time.sleep(0.5); print('now', flush=True); time.sleep(60)")
    killed.stdout.readline()
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait(60)
    with (tmp_path / f"t.json.target-{killed.pid}.part").open("a") as part:
        part.write('[["engine", "cut o')
    assert merge(tmp_path / "t.json", parts_of(tmp_path / "t.json")) == 2


def test_only_the_parts_of_this_trace_are_taken(tmp_path):
    for name in ("t.json", "other.json", "t[1].json"):
        FileTracer(tmp_path / name, "target").close()
    assert len(parts_of(tmp_path / "t.json")) == len(parts_of(tmp_path / "t[1].json")) == 1


def test_a_trace_of_nothing_is_an_empty_array(tmp_path):
    assert merge(tmp_path / "t.json", []) == 0
    assert json.loads((tmp_path / "t.json").read_text()) == []


def test_a_file_that_is_no_part_is_named(tmp_path):
    part = tmp_path / "t.json.x-1.part"
    part.write_text("hello\n")
    with pytest.raises(PartError, match=r"t\.json\.x-1\.part is no part"):
        read_part(part)
