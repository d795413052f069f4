"""How the commands of both ends speak: tables on standard output, logs on standard error.

What is said on standard error never fails the work that it is about: on a full disk, in a pipe whose reader has
gone, or where it is closed, it is lost.

Never imported by the SDK: structlog takes its time.
"""

import logging
import sys
from typing import TYPE_CHECKING, Any

import structlog

from fedpeer.streams import unfailing

if TYPE_CHECKING:
    from rich.console import Console

#: Columns of a table where the output is not a terminal: amounts must not be cut.
FILE_WIDTH = 200

#: What a log may look like; "auto": text on a terminal, JSON lines elsewhere.
LOG_FORMATS = ("text", "json", "auto")


def output(*, highlight: bool = False) -> "Console":
    """Standard output, wide enough for whole tables where it is a file or a pipe."""
    from rich.console import Console

    console = Console(highlight=highlight)
    if not console.is_terminal:
        console.width = FILE_WIDTH
    return console


def counted(number: int, noun: str) -> str:
    """ "1 round", "2 rounds"; for nouns with a plain plural, and those in -y."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun[:-1]}ies" if noun.endswith("y") else f"{number} {noun}s"


def printable(text: str) -> str:
    """Somebody else's text without control characters, which could steer a terminal; line breaks stay."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def shown(text: str) -> str:
    """Somebody else's text on one line: what is not printable, line breaks and marks that turn the direction of text
    included, as a backslash escape."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def configure_logs(
    form: str = "auto", *, level: int = logging.INFO, library_level: int = logging.INFO
) -> None:
    """Sets up structlog, and the standard library's logging through it.

    Bind what a line is about (`structlog.contextvars.bound_contextvars(task=..., round=..., participant=...)`)
    rather than writing it into the sentence. Tracebacks are written without the values of variables: those may be
    keys, or somebody's data.

    A line that cannot be made or written is lost; the work that it is about goes on.

    Args:
        form: one of LOG_FORMATS.
        level: of structlog's loggers.
        library_level: of the standard library's.
    """
    stream = unfailing(sys.stderr)
    terminal = stream.isatty()
    text = form == "text" or (form == "auto" and terminal)
    shared: list[structlog.types.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.types.Processor
    if text:
        renderer = structlog.dev.ConsoleRenderer(
            colors=terminal, exception_formatter=structlog.dev.plain_traceback
        )
    else:
        renderer = structlog.processors.JSONRenderer()
        shared.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*shared, renderer],
        wrapper_class=_unfailing_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=stream),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    logging.basicConfig(handlers=[handler], level=library_level, force=True)


def _unfailing_logger(level: int) -> Any:
    """structlog's filtering logger, whose lines are lost where they cannot be made: of a value without words, say."""
    filtering: Any = structlog.make_filtering_bound_logger(level)

    class UnfailingLogger(filtering):  # type: ignore[misc]  # a base that is made at run time
        def _proxy_to_logger(self, method_name: str, event: str | None = None, **values: Any) -> Any:
            try:
                return super()._proxy_to_logger(method_name, event, **values)
            except Exception:
                return None

    return UnfailingLogger
