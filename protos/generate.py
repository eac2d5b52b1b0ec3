"""Generate the Python stubs of ssd.v1 beside their .proto files.

Run by `make protos` in an environment of its own that holds grpcio-tools 1.80.1: generated code refuses runtimes older
than its generator, so the generator is the oldest release that the project supports. `--check` compares instead of
writing.
"""

import argparse
import re
import sys
import tempfile
from importlib import resources
from pathlib import Path

from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent
SUFFIXES = ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")


def generate(out: Path) -> dict[Path, str]:
    """Run protoc into `out`; return the stubs, by path relative to protos/, with imports under the `protos` package."""
    sources = sorted(str(p.relative_to(ROOT)) for p in ROOT.glob("ssd/v1/*.proto"))
    include = str(resources.files("grpc_tools") / "_proto")
    arguments = [
        "protoc",
        f"-I{ROOT}",
        f"-I{include}",
        f"--python_out={out}",
        f"--pyi_out={out}",
        f"--grpc_python_out={out}",
    ]
    if protoc.main(arguments + sources) != 0:
        raise SystemExit("protoc failed")
    stubs = {}
    for path in sorted(out.rglob("*")):
        if not path.name.endswith(SUFFIXES):
            continue
        # The .proto package is `ssd.v1`; as a Python package that name belongs to the shared core, so the stubs live in
        # `protos.ssd.v1` and import each other from there.
        text = re.sub(r"^from ssd\.v1 import", "from protos.ssd.v1 import", path.read_text(), flags=re.MULTILINE)
        stubs[path.relative_to(out)] = text
    return stubs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="exit 1 if a committed stub differs")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as folder:
        stubs = generate(Path(folder))
    stale = [p for p, text in stubs.items() if not (ROOT / p).exists() or (ROOT / p).read_text() != text]
    if check:
        if stale:
            sys.exit("stubs out of date, run `make protos`: " + ", ".join(map(str, stale)))
        return
    for path in stale:
        (ROOT / path).write_text(stubs[path])
    print(f"{len(stubs)} stubs, {len(stale)} changed")


if __name__ == "__main__":
    main()
