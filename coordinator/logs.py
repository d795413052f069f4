"""Structured logs on standard error: for people on a terminal, JSON lines elsewhere.

Bind what a line is about (`structlog.contextvars.bound_contextvars(task=..., round=..., participant=...)`)
rather than writing it into the sentence. Tracebacks are written without the values of variables: those may be keys.
"""

import logging
import sys

import structlog


def printable(text: str) -> str:
    """Somebody else's text without control characters, which could steer a terminal; line breaks stay."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def configure_logs(*, verbose: bool = False) -> None:
    """Sets up structlog, and the standard library's logging through it."""
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    terminal = sys.stderr.isatty()
    renderer: structlog.types.Processor = (
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
        if terminal
        else structlog.processors.JSONRenderer()
    )
    if not terminal:
        shared.append(structlog.processors.format_exc_info)
    level = logging.DEBUG if verbose else logging.INFO
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
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
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
