"""Continual ImageNet."""
