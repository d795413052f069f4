"""How properties are tried everywhere: by their number of examples, and never against the clock."""

from hypothesis import settings

from fedpeer.pytest_plugin import fedpeer_market  # noqa: F401 - the fixture, also where the package is not installed

settings.register_profile("fedpeer", deadline=None)
settings.load_profile("fedpeer")
