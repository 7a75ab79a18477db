"""The `syncagent` command. Each part is loaded when a command needs it, so that `--help` is quick."""

from typing import Optional, Sequence

__all__ = ["main"]


def main(args: Optional[Sequence[str]] = None) -> int:
    """Run the command with these arguments, or with those of the process; return the exit code."""
    try:
        from syncagent.surface.cli.app import invoke

        return invoke(args)
    except KeyboardInterrupt:  # before there was anything to stop, or after
        return 130
