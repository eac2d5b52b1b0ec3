"""Parameters of rotary embedding, apart from its tensors so that a configuration is read without torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rope:
    """Frequencies of the rotation. `kind` is default, linear or llama3; the rest as in Hugging Face's rope
    parameters."""

    theta: float = 10000.0
    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192
