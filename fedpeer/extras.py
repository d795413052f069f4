"""Which extra of the distribution brings what the base install leaves out, in one sentence for who misses it."""

from importlib.util import find_spec

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

_SERVICE = ("sqlalchemy", "alembic", "torch", "sklearn", "prometheus_client", "grpc_reflection")
_STUDY = (*_SERVICE, "scipy", "matplotlib", "torchvision")

#: What a command needs beyond the base install, and the extra that brings all of it.
COMMANDS = {
    "coordinator": ("coordinator", _SERVICE),
    "demo": ("all", _STUDY),
    "arena": ("research", _STUDY),
    "figures": ("research", _STUDY),
}


def unmet(command: str) -> str | None:
    """The sentence about the first module that `command` needs and that is not there; None where it has all."""
    extra, modules = COMMANDS.get(command, ("", ()))
    for module in modules:
        if not _installed(module):
            return _sentence(f"`fedpeer {command}`", module, extra)
    return None


def missing(error: ImportError, command: str | None = None) -> str | None:
    """The same about an import that failed; None where the error is about something else."""
    module = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or module not in EXTRAS:
        return None
    return _sentence(f"`fedpeer {command}`" if command else "this", module, EXTRAS[module])


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _sentence(who: str, module: str, extra: str) -> str:
    return f"{who} needs {module}, which is not installed; install it with: pip install 'fedpeer[{extra}]'"
