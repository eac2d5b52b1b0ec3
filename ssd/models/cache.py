"""A folder of things made once: whole directories that appear in one step, with one maker at a time."""

import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from ssd.models.errors import ModelError

LOCK_LIMIT_S = 1800.0
POLL_S = 0.1
_SAMPLES, _SAMPLE = 64, 1 << 16  # their number, and bytes of one


def cache_root(environment: Mapping[str, str] | None = None) -> Path:
    """$SSD_CACHE, else ssd-serve under $XDG_CACHE_HOME, else ~/.cache/ssd-serve."""
    known = os.environ if environment is None else environment
    if known.get("SSD_CACHE"):
        return Path(known["SSD_CACHE"]).expanduser()
    base = known.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "ssd-serve"


def identity(path: Path, revision: int) -> str:
    """16 hex digits for a file's content: from its size and samples all over it, since the whole may have many
    gigabytes. Not from its time: whoever installs a package anew has the same file."""
    size = path.stat().st_size
    digest = sha256(f"{revision} {size} ".encode())
    with path.open("rb") as file:
        for number in range(_SAMPLES + 1):
            file.seek(max(0, size - _SAMPLE) * number // _SAMPLES)
            digest.update(file.read(_SAMPLE))
    return digest.hexdigest()[:16]


def made_once(directory: Path, make: Callable[[Path], None], *, limit_s: float = LOCK_LIMIT_S) -> Path:
    """`directory`, made by `make(empty directory)` if it is not there.

    It is renamed into place when it is whole, so a maker that dies leaves nothing behind that could be taken for it. A
    second process waits for the first, up to `limit_s` seconds; ModelError after that or where the folder is not
    writable.
    """
    if directory.is_dir():
        return directory
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with _locked(directory.with_name(f".{directory.name}.lock"), limit_s):
            if not directory.is_dir():
                _make(directory, make)
    except OSError as error:
        raise ModelError(f"{directory} cannot be made: {error}; SSD_CACHE names another cache folder") from None
    return directory


def _make(directory: Path, make: Callable[[Path], None]) -> None:
    unfinished = directory.with_name(f".{directory.name}.unfinished")
    # The lock is held, so what lies here belongs to a maker that died.
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir()
    try:
        make(unfinished)
        unfinished.rename(directory)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


@contextmanager
def _locked(path: Path, limit_s: float) -> Iterator[None]:
    # The kernel drops the lock when its holder ends, however it ends.
    with path.open("w") as file:
        deadline = time.monotonic() + limit_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise ModelError(
                        f"another process has held {path} for {limit_s:g} s; end it and try again"
                    ) from None
                time.sleep(POLL_S)
        yield
