"""Three incidents, played for real: a stop, a kill -9, and what a recovery that truncates would lose.

It knows the public face of the package and the scripted model server, which runs on loopback: no key,
no network. What it prints about a log is read from that log.
"""

from syncagent.surface.demo.incidents import Demo

__all__ = ["Demo"]
