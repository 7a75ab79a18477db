"""Threads and locks: sessions that are driven, and the agents that drive them.

The lock order. A lock may be taken while one above it is held, never the other way round, and no
boundary (network, process, flush, hook, tool, join) is entered with one held:

    agent      `Driver.guard`: token, thread, inbox; held, `cancel/requested`, `turn/start` and
               `inbox/*` may be appended
    output     `calls._Emitter._lock`, one per call: held over the append of what the call shows
    session    `Session._guard`: the log's state, the events in memory; held, pure code runs and events
               are queued
    store      the queue to the writer
    token      cause, children, wake-ups; wake-ups run after it is released

Four are taken with nothing below them: `Store._guard`, over the list of live sessions;
`Handle._lock`, over what a message's sender still holds, also while the agent's is held;
`Stopping._cond`, over where the turn's threads are; and `Boundary.lock`, over the signals to a body's
processes.

The thread map:

    caller's thread       send, steer, cancel, wait, follow; never a turn, never a tool
    syncagent-<session>   the driver: hooks, model requests, a single call's body; while there is work
    syncagent-call-<tool> one call of several that run side by side; joined by the driver
    syncagent-stopping    one per turn that has called a tool or a hook; sleeps until a stop; joined before
                          the turn ends
    syncagent-deadline    one per time-out; joined when what it limits is over
    syncagent-event-link  one per `threading.Event` that a caller hands in; ends with its message
    syncagent-store       the writer, one per store; says when a session is lost; ends when it closes
"""
