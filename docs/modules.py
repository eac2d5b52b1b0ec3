"""Write the module tables of docs/architecture.md from the modules' own docstrings; `--check` only compares.

The text between the markers is made by this file. A module is described by the first sentence of its docstring.
"""

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- modules: begin -->", "<!-- modules: end -->"
PACKAGES = (
    "ssd",
    "ssd/speculation",
    "ssd/models",
    "ssd/layers",
    "ssd/kernels",
    "ssd/runtime",
    "ssd/parallel",
    "ssd/tensor_plane",
    "ssd/rpc",
    "ssd/telemetry",
    "ssd/simulator",
    "ssd/cli",
    "target_service",
    "draft_service",
    "router",
    "bench",
    "bench/run",
    "bench/inflate",
)


def tables() -> str:
    """One table for each package that has modules."""
    parts = []
    for package in PACKAGES:
        modules = [file for file in sorted((ROOT / package).glob("*.py")) if not file.name.startswith("__")]
        if modules:
            rows = [f"| `{file.name}` | {first_sentence(file)} |" for file in modules]
            parts.append("\n".join([f"### {package}", "", "| module | what it is |", "|---|---|", *rows]))
    return "\n\n".join(parts)


def first_sentence(file: Path) -> str:
    """The first paragraph of a module's docstring, up to its last full stop."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return re.sub(r"\s+", " ", text.split("\n\n")[0]).strip().rstrip(".").replace("|", "\\|")


def page() -> str:
    """The page as it should be."""
    text = PAGE.read_text(encoding="utf-8")
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{tables()}\n\n{END}{tail}"


def main() -> None:
    wanted = page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(wanted, encoding="utf-8")
    elif PAGE.read_text(encoding="utf-8") != wanted:
        sys.exit("docs/architecture.md does not list the modules as they are: run `python docs/modules.py`")


if __name__ == "__main__":
    main()
