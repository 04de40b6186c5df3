"""`python -m neoteny`."""

import os
import sys

if __name__ == "__main__" and sys.path[:1] == [
    os.getcwd()
]:  # Python looks there first, and what lies there may be somebody else's
    del sys.path[0]

from neoteny.cli.parser import main

if __name__ == "__main__":
    raise SystemExit(main())
