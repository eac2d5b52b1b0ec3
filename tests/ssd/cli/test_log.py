import io
from pathlib import Path
from types import SimpleNamespace

from ssd.cli.logtail import LogTail, describe
from ssd.cli.progress import Progress


def test_json_lines_are_described_and_others_left_alone() -> None:
    assert describe('{"service": "target", "event": "loading", "percent": 40, "level": "info", "timestamp": "t"}') == (
        "loading percent=40"
    )
    assert describe('{"event": "died", "exception": "Traceback…"}') == "died\nTraceback…"
    assert describe("plain words") == "plain words"
    assert describe("[1]") == "[1]"


def test_only_complete_lines_are_read_and_none_twice(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"one\ntw")
    tail = LogTail(path, keep=2)
    assert tail.read() == ["one"]
    with path.open("ab") as file:
        file.write(b"o\nthree\n")
    assert tail.read() == ["two", "three"]
    assert tail.read() == []
    assert tail.last() == ["two", "three"]


def test_the_last_words_may_lack_their_line_end(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_bytes(b"one\n\nterminate called")
    assert LogTail(path).last() == ["one", "terminate called"]


def test_progress_tells_news_once_and_announces_ready_services(tmp_path: Path) -> None:
    path = tmp_path / "target.log"
    path.write_text('{"event": "loading", "percent": 10, "megabytes": 97}\n{"event": "other"}\n')
    child = SimpleNamespace(tail=LogTail(path), ready=False, spec=SimpleNamespace(name="target", address="127.0.0.1:1"))
    out, err = io.StringIO(), io.StringIO()
    progress = Progress(SimpleNamespace(children={"target": child}), out=out, err=err)  # type: ignore[arg-type]
    progress.tick()
    progress.tick()
    assert err.getvalue() == "target  loading, 10 % of 97 MB\n"
    child.ready = True
    progress.tick()
    progress.tick()
    assert out.getvalue() == "target  ready at 127.0.0.1:1\n"


def test_verbose_progress_copies_every_line(tmp_path: Path) -> None:
    path = tmp_path / "draft.log"
    path.write_text("a\nb\n")
    child = SimpleNamespace(tail=LogTail(path), ready=False, spec=SimpleNamespace(name="draft", address="127.0.0.1:1"))
    err = io.StringIO()
    Progress(SimpleNamespace(children={"draft": child}), verbose=True, err=err).tick()  # type: ignore[arg-type]
    assert err.getvalue() == "draft  | a\ndraft  | b\n"
