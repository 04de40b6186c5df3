"""The command line."""

from neoteny.cli.parser import main

__all__ = ["main"]
