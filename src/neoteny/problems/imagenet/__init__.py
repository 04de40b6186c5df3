"""Continual ImageNet, and streams of many classes of images: warm start, sample- and class-incremental."""
