"""`python -m neoteny`."""

from neoteny.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
