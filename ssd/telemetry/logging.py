"""structlog for every service: JSON lines on standard error, or coloured text on a terminal."""

import logging
import sys

import structlog


def configure(level: str = "info", *, service: str) -> None:
    """Set up logging for this process; every line carries the service's name. Prompt text is never logged."""
    as_text = sys.stderr.isatty()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            lambda _logger, _method, event: {"service": service, **event},
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer() if as_text else structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=False,
    )
