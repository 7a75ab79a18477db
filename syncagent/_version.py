"""The version, in a module that knows nothing, so that builds and code read the same word."""

__version__ = "0.1.0"
