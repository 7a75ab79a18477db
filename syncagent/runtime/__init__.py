"""Threads and locks: sessions that are driven, and the agents that drive them.

The lock order. A lock may be taken while one above it is held, never the other way round, and no
boundary (network, process, flush, hook, tool, join) is entered with one held:

    agent      `Driver.guard`: token, thread, inbox; held, `cancel/requested`, `turn/start` and
               `inbox/*` may be appended
    session    `Session._guard`: the log's state, the events in memory; held, pure code runs and events
               are queued
    store      the queue to the writer
    token      cause, children, wake-ups; wake-ups run after it is released

`Store._guard`, over the list of live sessions, is taken alone.

The thread map:

    caller's thread       send, steer, cancel, wait, follow; never a turn, never a tool
    syncagent-<session>   the driver: hooks, model requests, a single call's body; while there is work
    syncagent-call-<tool> one call of several that run side by side; joined by the driver
    syncagent-deadline    one per time-out; joined when what it limits is over
    the store's writer    one per store; ends when the store closes
"""
