"""What a tool is: a name, a schema, a body, and how its arguments and its result cross the border.

It knows no session, no log and no provider's wire format.
"""

import re
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple, Union, overload

import attrs

from syncagent.boundary.tools.arguments import decode
from syncagent.boundary.tools.text import clean, to_text
from syncagent.cancel import CancellationToken
from syncagent.seconds import check_seconds

if TYPE_CHECKING:
    from syncagent.boundary.process import Processes

__all__ = ["CallContext", "Tool", "ToolOutput", "tool"]

EFFECTS = ("read", "idempotent", "write")

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}\Z")


@attrs.frozen(kw_only=True)
class CallContext:
    """What a running call has at hand; a parameter annotated with this class gets it.

    `token` is the call's own: its body can stop itself with it, never the turn. `emit(text)` shows
    output while the body runs, up to a limit; it returns whether it would show more. `processes`
    starts child processes that the call can't leave behind. `private` names, by absolute paths, what
    no tool may touch: the files of the store that the session is kept in.
    """

    token: CancellationToken
    emit: Callable[[str], bool]
    processes: "Processes"
    private: Tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class ToolOutput:
    """What a call came to: content blocks, and an error's code and message if it failed.

    `content` is a list of blocks such as `{"type": "text", "text": ...}`. `error` is None for a
    success, else a code such as "ABORTED", "TIMEOUT" or "TOOL_FAILED"; the content is kept beside it.
    """

    content: List[Dict[str, Any]]
    error: Optional[str] = None
    message: str = ""

    @classmethod
    def from_text(cls, text: str, *, error: Optional[str] = None, message: str = "") -> "ToolOutput":
        """An output of one text block; what is no Unicode in it becomes U+FFFD."""
        return cls(content=[{"type": "text", "text": clean(text)}], error=error, message=clean(message))

    @property
    def text(self) -> str:
        """The text blocks, joined by line ends."""
        return "\n".join(block["text"] for block in self.content if block.get("type") == "text")


def _no_check(values: Dict[str, Any]) -> Dict[str, Any]:
    return values


@attrs.frozen(kw_only=True, eq=False, repr=False)
class Tool:
    """Something the model may call. `@tool` makes one from a function; this is for everything else.

    `parameters` is a JSON schema of an object. `effect` is "read", "idempotent" or "write": what a
    call may do twice. An `exclusive` call runs alone. `timeout` is in seconds, None for no limit.
    `body(values, context)` does the work and may return anything; `structure(values)` turns decoded
    arguments into those values and raises `ToolError` with code "BAD_ARGUMENTS" if they don't fit.
    `function` is what calling the tool itself calls.

    Raises `ValueError` for a name that providers refuse, an unknown effect or a time-out that is
    not positive.
    """

    name: str
    description: str
    parameters: Dict[str, Any]
    body: Callable[[Dict[str, Any], CallContext], Any]
    effect: str = "write"
    exclusive: bool = False
    timeout: Optional[float] = None
    structure: Callable[[Dict[str, Any]], Dict[str, Any]] = _no_check
    function: Optional[Callable[..., Any]] = None

    def __attrs_post_init__(self) -> None:
        if not _NAME.match(self.name):
            raise ValueError(
                f"a tool's name has 1 to 64 ASCII letters, digits, '_' or '-', not {self.name!r}"
            )
        if self.effect not in EFFECTS:
            raise ValueError(f"the effect of tool {self.name!r} is one of {EFFECTS}, not {self.effect!r}")
        check_seconds(f"the time-out of tool {self.name!r}", self.timeout, positive=True)

    def __repr__(self) -> str:
        return f"<Tool {self.name} effect={self.effect}>"

    def spec(self) -> Dict[str, Any]:
        """What a model request says of the tool: `name`, `description`, `parameters`."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}

    def parse(self, arguments: Optional[str]) -> Dict[str, Any]:
        """The values for `invoke`, from the model's raw text; nothing runs.

        None, "", blanks and null mean no arguments. Raises `ToolError` with code "BAD_ARGUMENTS"
        and a message that names the tool.
        """
        return self.structure(decode(arguments, tool=self.name))

    def invoke(self, values: Dict[str, Any], context: CallContext) -> ToolOutput:
        """Run the body with what `parse` gave. What it raises passes through; what it returns
        becomes text, whatever it is, or stays as it is if it is a `ToolOutput`.
        """
        result = self.body(values, context)
        if isinstance(result, ToolOutput):
            return attrs.evolve(result, content=clean(result.content), message=clean(result.message))
        return ToolOutput.from_text(to_text(result, check=context.token.raise_if_cancelled))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the plain function that the tool was made from. Raises `TypeError` if there is none."""
        if self.function is None:
            raise TypeError(f"tool {self.name!r} was made from no function")
        return self.function(*args, **kwargs)


@overload
def tool(fn: Callable[..., Any]) -> Tool: ...


@overload
def tool(
    *,
    name: Optional[str] = None,
    description: Optional[str] = None,
    effect: str = "write",
    exclusive: bool = False,
    timeout: Optional[float] = None,
    isolate: bool = False,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    fn: Optional[Callable[..., Any]] = None,
    *,
    name: Optional[str] = None,
    description: Optional[str] = None,
    effect: str = "write",
    exclusive: bool = False,
    timeout: Optional[float] = None,
    isolate: bool = False,
) -> Union[Tool, Callable[[Callable[..., Any]], Tool]]:
    """Make a tool of a function: `@tool`, or `@tool(effect="read", timeout=30.0)`.

    The schema comes from the annotations, the description from the docstring's first paragraph and
    the descriptions of the parameters from its parameter lines. A parameter named `token` gets the
    call's `CancellationToken`, one annotated `CallContext` gets the context; the model sees neither.
    With `isolate` each call runs in a process of its own, which a stop kills if need be.

    Raises `TypeError` if the function can't be called by a model, or can't be isolated, with the reason.
    """
    def make(function: Callable[..., Any]) -> Tool:
        from syncagent.boundary.tools.schema import Signature

        if not callable(function):
            raise TypeError(f"a tool is made of a function, not of {function!r:.100}")
        signature = Signature.of(function, name=name)
        body = signature.call
        if isolate:
            from syncagent.boundary.tools.isolate import Isolated

            body = Isolated.of(signature).call
        return Tool(
            name=signature.name,
            description=signature.description if description is None else description,
            parameters=signature.parameters,
            body=body,
            effect=effect,
            exclusive=exclusive,
            timeout=timeout,
            structure=signature.structure,
            function=function,
        )

    return make if fn is None else make(fn)
