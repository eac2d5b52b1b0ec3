"""What is made once appears whole or not at all, whoever makes it."""

import fcntl
import os
import threading
from pathlib import Path

import pytest

from ssd.models.cache import cache_root, identity, made_once
from ssd.models.errors import ModelError


def test_a_maker_that_fails_leaves_nothing_that_looks_made(tmp_path):
    def fail(directory):
        (directory / "half").write_text("x")
        raise KeyError("broken")

    with pytest.raises(KeyError):
        made_once(tmp_path / "thing", fail)
    assert not (tmp_path / "thing").exists()
    made = made_once(tmp_path / "thing", lambda directory: (directory / "whole").write_text("x"))
    assert [file.name for file in made.iterdir()] == ["whole"]


def test_what_a_killed_maker_left_is_not_taken_over(tmp_path):
    (tmp_path / ".thing.unfinished").mkdir()
    (tmp_path / ".thing.unfinished" / "half").write_text("x")
    assert not list(made_once(tmp_path / "thing", lambda directory: None).iterdir())


def test_many_at_once_make_it_once(tmp_path):
    made, start = [], threading.Barrier(4, timeout=30)

    def run():
        start.wait()
        made_once(tmp_path / "thing", made.append)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(made) == 1 and (tmp_path / "thing").is_dir()


def test_waiting_for_another_maker_has_a_limit(tmp_path):
    with (tmp_path / ".thing.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(ModelError, match="another process has held"):
            made_once(tmp_path / "thing", lambda directory: None, limit_s=0.0)


def test_the_cache_folder_follows_the_environment():
    assert cache_root({"SSD_CACHE": "/a", "XDG_CACHE_HOME": "/b"}) == Path("/a")
    assert cache_root({"XDG_CACHE_HOME": "/b"}) == Path("/b/ssd-serve")
    assert cache_root({}) == Path.home() / ".cache" / "ssd-serve"


def test_identity_changes_with_content_and_revision(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"one")
    first = identity(path, 1)
    assert identity(path, 1) == first != identity(path, 2)
    os.utime(path, (1.0, 1.0))
    assert identity(path, 1) == first, "the same file, installed at another time"
    path.write_bytes(b"two")
    assert identity(path, 1) != first


@pytest.mark.parametrize("place", [0, 1 << 16, 3_000_001, (1 << 22) - 1])
def test_identity_sees_any_byte_of_a_file_of_a_few_megabytes(tmp_path, place):
    path, content = tmp_path / "file", bytearray(1 << 22)
    path.write_bytes(content)
    first = identity(path, 1)
    content[place] = 1
    path.write_bytes(content)
    assert identity(path, 1) != first
