"""Tracing: from a module and an example to its unit groups."""
