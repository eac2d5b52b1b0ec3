"""Triton's interpreter, set up for this process alone."""

import importlib
import os
import sys
from unittest import mock

KERNELS = ("attention", "cases", "dependent", "draw", "linear", "norms", "ops", "tiles", "turning")


def interpret() -> None:
    """Imports the kernels so that they run on the CPU.

    Triton decides this where it and the kernels are imported, so both are forgotten first if something has imported
    them already (transformers does). The environment is as before afterwards: child processes inherit nothing.
    """
    parts = [name for name in sys.modules if name == "triton" or name.startswith("triton.")]
    native = {name: sys.modules[name] for name in parts if name.startswith("triton._C")}
    ours = [name for name in sys.modules if name.startswith(("ssd.kernels", "ssd.layers.attention_triton"))]
    for name in [*parts, *ours]:
        if name not in native:
            del sys.modules[name]
    with mock.patch.dict(os.environ, {"TRITON_INTERPRET": "1"}):
        triton = importlib.import_module("triton")
        if "triton._C" in native:
            triton._C = native["triton._C"]
        # Loaded at the first launch otherwise, when the environment no longer tells it to interpret.
        importlib.import_module("triton.experimental.gluon")
        _let_loops_end_at_tensors()
        _multiply_bfloat16()
        for kernel in KERNELS:
            importlib.import_module(f"ssd.kernels.{kernel}")
        importlib.import_module("ssd.layers.attention_triton")


def _let_loops_end_at_tensors() -> None:
    """A scalar is an array of shape [1] here, which numpy from 2.4 on makes no integer of by itself."""
    interpreter = importlib.import_module("triton.runtime.interpreter")
    patch = interpreter._patch_lang_tensor

    def patched(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patched


def _multiply_bfloat16() -> None:
    """A bfloat16 is kept as its bits, which numpy would multiply as integers."""
    interpreter = importlib.import_module("triton.runtime.interpreter")
    language = importlib.import_module("triton.language")
    multiply = interpreter.InterpreterBuilder.create_dot

    def create_dot(self, a, b, *rest):
        wide = (self.cast_impl(x, language.float32) if x.dtype.scalar == language.bfloat16 else x for x in (a, b))
        return multiply(self, *wide, *rest)

    interpreter.InterpreterBuilder.create_dot = create_dot
