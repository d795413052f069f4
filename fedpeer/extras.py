"""Which extra of the distribution brings what the base install leaves out, in one sentence for those who miss it."""

from importlib.util import find_spec
from pathlib import Path

#: Top-level module to the extra that brings it; the smallest one where several do.
EXTRAS = {
    "aiosmtplib": "notices",
    "authlib": "oidc",
    "alembic": "coordinator",
    "distributed": "dask",
    "flwr": "flower",
    "httpx": "notices",
    "itsdangerous": "console",
    "jinja2": "console",
    "starlette": "console",
    "uvicorn": "console",
    "grpc_reflection": "coordinator",
    "PIL": "images",
    "matplotlib": "research",
    "obstore": "s3",
    "opentelemetry": "tracing",
    "prometheus_client": "coordinator",
    "iso4217": "coordinator",
    "opacus": "privacy",
    "psycopg": "postgresql",
    "pyarrow": "tables",
    "schwifty": "payouts",
    "scipy": "research",
    "sepaxml": "payouts",
    "sklearn": "sklearn",
    "sqlalchemy": "sql",
    "tokenizers": "examples",
    "tomlkit": "coordinator",
    "torch": "torch",
    "torchvision": "research",
}

#: What a coordinator needs of which no participant's model is evaluated; evidence needs torch and sklearn besides.
_MARKET = ("sqlalchemy", "alembic", "prometheus_client", "grpc_reflection")
_SERVICE = (*_MARKET, "torch", "sklearn")
_CONSOLE = (*_MARKET, "starlette", "jinja2", "itsdangerous", "uvicorn")
_STUDY = (*_SERVICE, "scipy", "matplotlib", "torchvision")

#: What a command needs beyond the base install, and the extra that brings all of it.
COMMANDS = {
    "coordinator": ("coordinator", _SERVICE),
    "coordinator payout account": ("payouts", ("schwifty", "sepaxml")),
    "worker": ("dask", ("distributed", *_SERVICE)),
    "calibrate": ("coordinator", (*_SERVICE, "scipy", "tomlkit")),
    "demo": ("all", _STUDY),
    "arena": ("research", _STUDY),
    "figures": ("research", _STUDY),
    "simulate": ("testing", _MARKET),
    "testing": ("testing", _MARKET),
    "console": ("console", _CONSOLE),
    "report": ("console", _CONSOLE),
}


def unmet(command: str) -> str | None:
    """The sentence about the first module that `command` needs and that is not there; None where it has all."""
    extra, modules = COMMANDS.get(command, ("", ()))
    for module in modules:
        if not _installed(module):
            return _sentence(
                "`fedpeer.testing`" if command == "testing" else f"`fedpeer {command}`", module, extra
            )
    return None


def missing(error: ImportError, command: str | None = None) -> str | None:
    """The same about an import that failed; None where the error is about something else."""
    module = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or module not in EXTRAS:
        return None
    return _sentence(f"`fedpeer {command}`" if command else "this", module, EXTRAS[module])


def hidden() -> str | None:
    """The sentence about what stands on Python's path before a package of ours; None where nothing does."""
    home = Path(__file__).resolve().parent.parent
    for package in ("mechanism", "coordinator", "participant"):
        spec = find_spec(package)
        places = [] if spec is None else [*(spec.submodule_search_locations or []), spec.origin or ""]
        if places and not any(
            Path(place).resolve().is_relative_to(home / package) for place in places if place
        ):
            return (
                f"{places[0] or package} hides the package {package!r} that fedpeer is part of, since it stands before "
                "it on Python's path; run this from another folder, take that one out of PYTHONPATH, or rename it"
            )
    return None


def _installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _sentence(who: str, module: str, extra: str) -> str:
    return f"{who} needs {module}, which is not installed; install it with: pip install 'fedpeer[{extra}]'"
