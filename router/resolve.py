"""The model directory that a name stands for, without torch in this process.

A GGUF file is converted once, which needs torch, so everything but a plain directory is looked up in a child process:
`python -m router.resolve MODEL` prints the directory.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from ssd.models.builtin import resolve_model
from ssd.models.errors import ModelError
from ssd.rpc.server import StartupError

_REFUSED = 3


async def resolve(model: str) -> Path:
    """The Hugging Face directory of a built-in name, a directory or a GGUF file. Raises StartupError."""
    if Path(model).expanduser().is_dir():
        try:
            return resolve_model(model)
        except ModelError as error:
            raise StartupError(f"model: {error}") from error
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    child = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "router.resolve",
        model,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment,
    )
    try:
        answer, complaint = await child.communicate()
    finally:
        if child.returncode is None:
            child.kill()
    if child.returncode != 0:
        lines = complaint.decode(errors="replace").strip().splitlines()
        raise StartupError(f"model: {lines[-1] if lines else f'cannot be read, status {child.returncode}'}")
    return Path(answer.decode().strip())


def _main(model: str) -> int:
    try:
        sys.stdout.write(str(resolve_model(model)))
    except ModelError as error:
        sys.stderr.write(str(error).replace("\n", " "))
        return _REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1]))
