"""Which extra of the distribution brings what the base install leaves out, in one sentence for who misses it."""

#: Top-level module to the extra that brings it; the smallest one where several do.
EXTRAS = {
    "alembic": "coordinator",
    "flwr": "flower",
    "grpc_reflection": "coordinator",
    "matplotlib": "research",
    "opentelemetry": "tracing",
    "prometheus_client": "coordinator",
    "psycopg": "postgresql",
    "scipy": "research",
    "sklearn": "sklearn",
    "sqlalchemy": "sql",
    "torch": "torch",
    "torchvision": "research",
}

#: The extra that brings all that a command needs, where that is more than one module of it.
COMMANDS = {"coordinator": "coordinator", "demo": "all", "arena": "research", "figures": "research"}


def missing(error: ImportError, command: str | None = None) -> str | None:
    """The sentence about an extra that is not installed; None where the error is about something else.

    Args:
        error: of the import that failed.
        command: the command that was called, where there is one.
    """
    module = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or module not in EXTRAS:
        return None
    extra = COMMANDS.get(command or "", EXTRAS[module])
    who = f"`fedpeer {command}`" if command else "this"
    return f"{who} needs {module}, which is not installed; install it with: pip install 'fedpeer[{extra}]'"
