"""How properties are tried everywhere: by their number of examples, and never against the clock."""

from hypothesis import settings

settings.register_profile("fedpeer", deadline=None)
settings.load_profile("fedpeer")
