"""What might explain that a published number differs from ours, tried out: `neoteny run` runs a file of this folder."""
