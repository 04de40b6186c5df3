"""`python -m neoteny`."""

from neoteny.cli.parser import main

if __name__ == "__main__":
    raise SystemExit(main())
