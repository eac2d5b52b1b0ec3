"""What goes wrong between a model's name and a loaded model."""


class ModelError(ValueError):
    """A model cannot be found, read or used. The message names the file or key and says what to do."""
