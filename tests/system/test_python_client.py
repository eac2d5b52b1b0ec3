"""The Python client that the README shows, against a running system."""

import re
import subprocess
import sys
from pathlib import Path

from tests.system.services import System

ROOT = Path(__file__).parents[2]


def test_the_readmes_client_prints_an_answer(system: System) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert "127.0.0.1:50051" in code
    code = code.replace("127.0.0.1:50051", system.address)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert re.search(r"\n\d+ tokens in \d+ rounds of the target\n$", done.stdout), done.stdout
