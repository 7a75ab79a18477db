"""The agent: what programs touch. A model, tools and a session, driven on threads.

It turns calls into work for its `Driver` and knows nothing of how a turn goes.
"""

import contextlib
import threading
from concurrent.futures import CancelledError, Future
from typing import Any, Callable, Collection, Dict, Iterator, List, Optional, Sequence, TypeVar, Union

from syncagent.boundary import process
from syncagent.boundary.models.protocol import Model
from syncagent.boundary.tools.base import Tool, tool
from syncagent.cancel import CancellationToken, Cancelled, Cause
from syncagent.errors import InvalidLog
from syncagent.log import Event, Message
from syncagent.log import events as ev
from syncagent.log.folds import dropped_puts
from syncagent.runtime.driver import Driver
from syncagent.runtime.hooks import Hooks
from syncagent.runtime.inbox import Handle, Input, blocks_of, limit
from syncagent.runtime.result import RepairReport, TurnResult
from syncagent.runtime.store import Store
from syncagent.runtime.turn import Work
from syncagent.seconds import check_seconds

__all__ = ["Agent"]

A = TypeVar("A", bound="Agent")


class Agent:
    """A model, tools and a session, driven on threads.

    `model` is a `Model`: a `ChatModel`, or anything with its method `stream`. `tools` are `Tool`s, or
    functions that become some. `session` is an id, which is opened (and repaired when it is cold) or
    made; None makes a new one. `system` is the system prompt, or `system(*, token) -> str`. `pre_step`,
    `request` and `turn_stopping` are hooks (see `syncagent.runtime.hooks`). `max_steps` ends a turn as
    blocked; `max_parallel` bounds how many calls of a step run side by side. `steal` takes a session
    from an owner that can't be asked whether it lives, on another host say.

    Use it as a context manager: leaving the block waits for quiet and closes; leaving it by an
    exception closes at once. Raises `SessionLive` if another agent drives the session, `StoreError`
    if the store can't be used, `ValueError` or `TypeError` for wrong arguments.
    """

    def __init__(
        self,
        model: Model,
        *,
        store: Store,
        tools: Sequence[Union[Tool, Callable[..., Any]]] = (),
        session: Optional[str] = None,
        system: Union[str, Callable[..., str]] = "",
        pre_step: Optional[Callable[..., Any]] = None,
        request: Optional[Callable[..., Any]] = None,
        turn_stopping: Optional[Callable[..., Any]] = None,
        max_steps: int = 50,
        max_parallel: int = 8,
        steal: bool = False,
    ) -> None:
        if not callable(getattr(model, "stream", None)):
            raise TypeError(f"a model has stream(request, *, token); {type(model).__name__} has not")
        for name, number in (("max_steps", max_steps), ("max_parallel", max_parallel)):
            if not isinstance(number, int) or number < 1:
                raise ValueError(f"{name} is a whole number of at least 1, not {number!r}")
        if not isinstance(store, Store):
            raise TypeError(f"store is a Store, such as Store('runs.db'), not {type(store).__name__}")
        hooks = Hooks(system=system, pre_step=pre_step, request=request, turn_stopping=turn_stopping)
        by_name = _by_name(tools)
        self._session = store.open_or_create(session, steal=steal)
        self._gone = threading.Event()
        with contextlib.ExitStack() as held:
            held.callback(self._gone.set)
            held.callback(self._session.close)
            self._processes = held.enter_context(process.shared())
            self._driver = Driver(
                Work(
                    session=self._session,
                    model=model,
                    tools=by_name,
                    hooks=hooks,
                    processes=self._processes,
                    max_steps=max_steps,
                    max_parallel=max_parallel,
                    points=store.points,
                )
            )
            self._driver.held = held.pop_all()

    def __reduce__(self) -> Any:
        raise TypeError("an Agent can't be copied or pickled: a session has one driver")

    # -- what it is -------------------------------------------------------------------------------

    @property
    def session(self) -> str:
        """The id of its session."""
        return self._session.id

    @property
    def seq(self) -> int:
        """The number of its log's last event: `follow(since=agent.seq)` gives what comes from now on."""
        return self._session.seq

    @property
    def opened(self) -> Optional[RepairReport]:
        """What opening the session repaired; None if there was nothing to repair."""
        return self._session.report

    @property
    def status(self) -> str:
        """What it does now, in words: idle, running, running bash, retrying (1 of 5), cancelling …"""
        return self._driver.status

    # -- input ------------------------------------------------------------------------------------

    def run(
        self, content: Input, *, timeout: Optional[float] = None, token: Optional[CancellationToken] = None
    ) -> TurnResult:
        """Send a message and wait for its turn.

        `timeout` is in seconds and `token` the caller's own (or a `threading.Event`): when one fires,
        the message's turn is cancelled, or the message withdrawn. Raises what `send` raises, the
        store's error if the ending could not be made durable, and what a tool raised that is no error,
        such as KeyboardInterrupt. A tool or hook of the agent can't call it (`RuntimeError`).
        """
        self._driver.check_outside()
        return self._attend(self._send("next_turn", content, timeout=timeout, token=token))

    def send(
        self, content: Input, *, timeout: Optional[float] = None, token: Optional[CancellationToken] = None
    ) -> "Future[TurnResult]":
        """Queue a message for a turn of its own and wake; durable when this returns.

        Raises `AgentClosed`, `TypeError` or `ValueError` for what is no message, and the store's
        error if it could not be made durable: the message is then withdrawn.
        """
        return self._send("next_turn", content, timeout=timeout, token=token).future

    def steer(self, content: Input) -> "Future[TurnResult]":
        """Queue a message for the next step of the running turn, and wake. See `send`."""
        return self._send("next_step", content).future

    def inject(self, content: Input) -> "Future[TurnResult]":
        """Queue a message for the next step that there is, without waking. See `send`."""
        return self._send("next_step", content, wake=False).future

    def _send(
        self,
        target: str,
        content: Union[Input, Message],
        *,
        wake: bool = True,
        timeout: Optional[float] = None,
        token: Optional[CancellationToken] = None,
    ) -> Handle:
        """Accept new content, or a message that is put back as it was."""
        given = content if isinstance(content, Message) else blocks_of(content)
        check_seconds("timeout", timeout)
        if timeout is not None and timeout < 0:
            raise ValueError(f"timeout is seconds, 0 or more, not {timeout!r}")
        with contextlib.ExitStack() as undo:
            limits = None
            if token is not None or timeout is not None:
                limits = CancellationToken.linked(*([] if token is None else [token]))
                undo.callback(limits.close)
            handle = self._put(target, given, wake)
            undo.pop_all()
        try:
            self._accept(handle, wake, limits, timeout)
        except BaseException:
            self._withdraw(handle)
            raise
        finally:
            with self._driver.guard:
                self._driver.sending -= 1
                self._driver.guard.notify_all()
        return handle

    def _put(self, target: str, given: Union[List[Dict[str, Any]], Message], wake: bool) -> Handle:
        driver = self._driver
        with driver.guard:
            driver.check_open_locked()
            message = given if isinstance(given, Message) else driver.inbox.message_locked(given)
            try:
                handle = driver.inbox.put_locked(target, message, wake=wake)
            except InvalidLog as exc:
                raise ValueError(f"this is no message: {exc.text}") from exc
            driver.sending += 1
        handle.future.add_done_callback(lambda future: driver.future_cancelled(handle))
        return handle

    def _accept(
        self, handle: Handle, wake: bool, limits: Optional[CancellationToken], timeout: Optional[float]
    ) -> None:
        driver = self._driver
        if limits is not None:
            limit(handle, limits, timeout, driver.limit_fired)
        try:
            self._session.retry_flush(token=limits)  # checkpoint: accepted message
        except Cancelled as stop:
            # Its own limit ends the wait for the disk, perhaps before the same limit has withdrawn it.
            driver.limit_fired(handle, stop.cause or Cause.USER, stop.token.text)
            return
        with driver.guard:
            if not driver.closed:
                driver.inbox.accept_locked(handle, wake=wake)
                driver.wake_locked()

    def _withdraw(self, handle: Handle) -> None:
        """Take back a message that could not be made durable, or whose sender was interrupted."""
        with self._driver.guard:
            mine = self._driver.inbox.withdraw_locked(handle)
        if mine:
            handle.drop(Cause.DISPOSED)

    def retry_flush(self, *, token: Optional[CancellationToken] = None) -> None:
        """After `StoreFull` or `StoreBusy`: write the events that were kept, once there is room.

        `send` does it too. Raises the store's error again, or `Cancelled` when `token` fires.
        """
        self._session.retry_flush(token=token)

    def dropped(self) -> List[Message]:
        """The messages that were accepted, dropped, and never put back: see `requeue`."""
        return [put.message for put in self._dropped_puts().values()]

    def requeue(self, ids: Collection[str]) -> "List[Future[TurnResult]]":
        """Put dropped messages back, in the given order, and wake. Raises `ValueError` for other ids."""
        lost = self._dropped_puts()
        wrong = [id for id in ids if id not in lost]
        if wrong:
            raise ValueError(f"these messages were not dropped: {', '.join(map(repr, wrong))}")
        puts = [lost[id] for id in dict.fromkeys(ids)]
        return [self._send(put.target, put.message).future for put in puts]

    def _dropped_puts(self) -> "Dict[str, ev.InboxPut]":
        types = ("inbox/put", "inbox/taken", "user/message", "turn/end")
        return dropped_puts(self._session.events(types=types))

    # -- the stop ---------------------------------------------------------------------------------

    def cancel(
        self,
        cause: Union[Cause, str] = Cause.USER,
        keep_inbox: bool = False,
        scope: str = "tree",
        *,
        via: str = "api",
    ) -> bool:
        """Stop the running turn and empty the inbox, or with `keep_inbox` park it.

        Returns whether there was anything to cancel. It logs, wakes and returns: it waits for
        nothing. On an idle agent with nothing pending it does nothing and writes nothing.
        """
        if scope not in ("tree", "turn"):
            raise ValueError(f'scope is "tree" or "turn", not {scope!r}')
        return self._driver.cancel(Cause(cause), keep_inbox=keep_inbox, scope=scope, via=via)

    def kill(self) -> None:
        """Kill at once the processes that a stop would give time to end. Stops nothing else."""
        self._driver.hurry()
        self._processes.kill_now()

    # -- waiting and closing ----------------------------------------------------------------------

    def wait(self, timeout: Optional[float] = None) -> Optional[TurnResult]:
        """Wait until it is idle; return the last turn's result, None if there was none.

        If a turn is stopped meanwhile, that turn's end is the end of the wait, also when another
        follows it. Raises `TimeoutError` if it is not idle after `timeout` seconds.
        """
        idle, last = self._driver.wait(check_seconds("timeout", timeout), through=False)
        if not idle:
            raise TimeoutError(f"the agent is still busy after {timeout} s: {self.status}")
        return last

    def follow(self, since: int = 0, *, token: Optional[CancellationToken] = None) -> Iterator[Event]:
        """Stored and live events alike with a greater `seq`; ends when the agent closes.

        Raises `Cancelled` when `token` is cancelled, the store's error if the store fails.
        """
        return self._session.follow(since=since, token=token)

    def _attend(self, handle: Handle) -> TurnResult:
        """Wait for the message's turn; a message that was dropped gives an aborted result."""
        try:
            return handle.future.result()
        except CancelledError:
            return TurnResult(turn=None, reason="aborted", cause=handle.cause)

    def close(self, timeout: Optional[float] = None) -> bool:
        """Cancel with "disposed", wait for the turn's end and give the session back.

        Queued messages stay parked in the log, their futures are cancelled. Returns True when all
        has ended; False if a tool still runs after `timeout` seconds: call it again then. In a forked
        child it does nothing: the agent is the parent's.
        """
        timeout = check_seconds("timeout", timeout)
        if self._session.forked:
            return True
        self._driver.check_outside()
        self._driver.dispose()
        ended, _ = self._driver.wait(timeout, through=True)
        if not ended:
            return False
        with self._driver.guard:
            held, self._driver.held = self._driver.held, None
        if held is None:  # somebody else closes it, or has
            return self._gone.wait(timeout)
        held.close()
        return True

    def __enter__(self: A) -> A:
        return self

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        try:
            if kind is None and not self._session.forked:
                self._driver.wait(None, through=True)
        finally:
            self.close()


def _by_name(tools: Sequence[Union[Tool, Callable[..., Any]]]) -> Dict[str, Tool]:
    try:
        items = list(tools)
    except TypeError:
        raise TypeError(f"tools is a list of tools, not {type(tools).__name__}") from None
    found: Dict[str, Tool] = {}
    for item in items:
        made = item if isinstance(item, Tool) else tool()(item)
        if made.name in found:
            raise ValueError(f"two tools have the name {made.name!r}: give one of them another with name=")
        found[made.name] = made
    return found
