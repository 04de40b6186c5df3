"""From results folders to the pages and figures of `docs/`: `python -m neoteny.publish`, in the repository's root."""
