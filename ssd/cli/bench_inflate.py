"""`ssd bench inflate`: a big pair that computes what the small one does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ssd.cli.errors import BAD_INPUT, FAILED, CliError
from ssd.models.builtin import DRAFT, TARGET

if TYPE_CHECKING:
    from bench.inflate.recipe import Recipe

CHECK_TEXTS = 3
CHECK_CHARACTERS = 200


def inflate(
    folder: Annotated[Path, typer.Argument(help="Gets the directories `target` and `draft`, each a model.")],
    target: Annotated[
        str,
        typer.Option(help="Shape: 8b, 32b, 70b, one with changes (8b,layers=40), or all sizes; none = no target."),
    ] = "8b",
    draft: Annotated[str, typer.Option(help="Shape: 0.6b, 1b, ... as for --target; none = no draft.")] = "1b",
    target_model: Annotated[str, typer.Option(help="The small target: a built-in name or a directory.")] = TARGET,
    draft_model: Annotated[str, typer.Option(help="The small draft.")] = DRAFT,
    recipe: Annotated[
        bool,
        typer.Option("--recipe", help="Write no weights, only how to make them: they are made in memory when loaded."),
    ] = False,
    dtype: Annotated[str, typer.Option(help="Of the weights: bfloat16 or float32.")] = "bfloat16",
    max_position: Annotated[int | None, typer.Option(help="Longest context; default: the small model's.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Compare the logits with the small models' in float32, layer by layer.")
    ] = False,
    check_device: Annotated[str, typer.Option(help="Where the comparison is computed.")] = "cpu",
) -> None:
    """Write big models with the small pair's function: real text and acceptance at a big model's cost."""
    from bench.inflate.recipe import Recipe
    from bench.inflate.shapes import parse_shape
    from ssd.models.errors import ModelError

    if dtype not in ("bfloat16", "float32"):
        raise CliError(f"--dtype: is {dtype!r}, must be bfloat16 or float32", BAD_INPUT)
    wanted = {
        name: Recipe(base, parse_shape(shape), max_position=max_position)
        for name, base, shape in (("target", target_model, target), ("draft", draft_model, draft))
        if shape != "none"
    }
    try:
        for name, one in wanted.items():
            print(described(name, one), flush=True)
            _make(folder / name, one, dtype, recipe)
            print(f"{name}: {'a recipe' if recipe else 'written'} in {folder / name}", flush=True)
        unequal = [name for name, one in wanted.items() if check and not _check(name, one, check_device)]
    except (ModelError, OSError) as error:
        raise CliError(str(error), BAD_INPUT) from None
    if unequal:
        raise typer.Exit(FAILED)


def described(name: str, recipe: Recipe) -> str:
    """Sizes, and how much of them is zero because it must be."""
    from bench.inflate.weights import zero_share

    shape = recipe.shape
    sizes = f"{shape.layers} layers, hidden {shape.hidden}, intermediate {shape.intermediate}, "
    sizes += f"{shape.heads}/{shape.kv_heads} heads of {shape.head_dim}, vocabulary {shape.vocab}"
    read = f"a step reads {shape.parameters_read / 1e9:.2f} G weights"
    zero = 100 * zero_share(recipe.placement())
    return f"{name}: {recipe.base} as {shape.name} ({sizes}); {read}, {zero:.0f} % of them zero"


def _make(directory: Path, recipe: Recipe, dtype: str, only_recipe: bool) -> None:
    if only_recipe:
        from bench.inflate.recipe import write_recipe

        write_recipe(directory, recipe, dtype)
        return
    import torch

    from bench.inflate.writing import write_inflated

    shown = -1

    def progress(done: int, total: int) -> None:
        nonlocal shown
        if 100 * done // total > shown:
            shown = 100 * done // total
            end = "\n" if done >= total else ""
            print(f"\r  {shown} % of {total / 1e9:.1f} GB", end=end, file=sys.stderr, flush=True)

    write_inflated(directory, recipe, getattr(torch, dtype), progress=progress)


def _check(name: str, recipe: Recipe, device: str) -> bool:
    """Say how far both are apart on a few of the project's prompts."""
    from bench.datasets import OWN_FILE, records
    from bench.inflate.check import TOLERANCE
    from bench.inflate.check import check as compare
    from ssd.models.builtin import resolve_model
    from ssd.tokenizer import TOKENIZER_FILE, load_tokenizer

    base = resolve_model(recipe.base)
    lender = recipe.lender
    holder = base if (base / TOKENIZER_FILE).is_file() or lender is None else resolve_model(lender)
    tokenizer = load_tokenizer(holder)
    prompts = [record["prompt"][:CHECK_CHARACTERS] for _, record in records(OWN_FILE)][:CHECK_TEXTS]
    found = compare(recipe, [tokenizer.encode(text) for text in prompts], device)
    verdict = "equal to the small one" if found.equal else "NOT EQUAL to the small one"
    print(
        f"{name}: {verdict} in float32: logits differ by {found.logits:.2e} at most (largest {found.largest:.1f}, "
        f"allowed {TOLERANCE:g} of it), likeliest id the same at {found.same} of {found.positions} positions",
        flush=True,
    )
    return found.equal
