"""The version, in one place: pyproject.toml reads it from here, and so does a copy that is run
without being installed.
"""

VERSION = "0.1.0"
