"""The log: its vocabulary, its grammar, what closes it and what follows from it.

Pure and public, so that a log can be tested without a database. Read `grammar` first.
"""

from syncagent.log.closers import closers
from syncagent.log.events import Event, Message
from syncagent.log.folds import (
    ConsumedWork,
    consumed_work,
    derive_messages,
    dropped,
    last_user_message,
    pending_inbox,
    usage,
)
from syncagent.log.grammar import advance, check
from syncagent.log.state import LogState, Phase

__all__ = [
    "ConsumedWork",
    "Event",
    "LogState",
    "Message",
    "Phase",
    "advance",
    "check",
    "closers",
    "consumed_work",
    "derive_messages",
    "dropped",
    "last_user_message",
    "pending_inbox",
    "usage",
]
