"""Failures of a command as a person should see them: one line and an exit status, never a traceback."""

BAD_INPUT = 2
FAILED = 1
INTERRUPTED = 130


class CliError(Exception):
    """Ends the command with `message` on standard error; status 2 is for what the user can correct in the call."""

    def __init__(self, message: str, status: int = FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
