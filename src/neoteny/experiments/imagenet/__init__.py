"""The experiments on Continual ImageNet."""
