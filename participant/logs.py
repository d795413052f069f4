"""Structured logs on standard error: for people on a terminal, JSON lines elsewhere."""

import logging
import sys

import structlog

from participant.errors import ConfigurationError


def configure_logs(form: str) -> None:
    """Sets up structlog, and the standard library's logging through it.

    Args:
        form: "text", "json", or "auto": text on a terminal.

    Raises:
        ConfigurationError: another form.
    """
    if form not in ("text", "json", "auto"):
        raise ConfigurationError(f"the log format is {form!r}; expected text, json or auto")
    text = form == "text" or (form == "auto" and sys.stderr.isatty())
    shared: list[structlog.types.Processor] = [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.types.Processor = (
        structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
        if text
        else structlog.processors.JSONRenderer()
    )
    structlog.configure(
        processors=[*shared, structlog.processors.format_exc_info, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(handlers=[handler], level=logging.INFO, force=True)
