"""Triton kernels for NVIDIA GPUs; each module says what it computes and what may differ from the reference."""
