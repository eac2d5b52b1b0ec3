"""What an error of a library or the system says, on one line: torch's carry stacks of C++ frames behind it."""


def reason_of(error: BaseException) -> str:
    """The first line of what an error says, or its name where it says nothing."""
    if isinstance(error, OSError) and error.strerror:
        # Without the address that was tried, which says more of this program than of the setting.
        reason = error.strerror.partition(" (while")[0].lower()
        return f"{error.filename}: {reason}" if error.filename else reason
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
