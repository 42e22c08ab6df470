"""The version, once: the build reads it from here, and so does every file that we write."""

__version__ = "0.1.0"
