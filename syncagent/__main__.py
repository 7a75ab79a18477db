"""`python -m syncagent`: the same as the `syncagent` command. It knows only the command line."""

import sys

from syncagent.surface.cli import main

if __name__ == "__main__":
    sys.exit(main())
