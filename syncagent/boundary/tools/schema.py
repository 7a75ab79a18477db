"""A function's annotations as the JSON schema of a tool's arguments, and as the check of them.

It knows annotations and docstrings; it knows no model and runs no tool.
"""

import inspect
from typing import Any, Callable, Dict, List, Optional, Tuple, get_args

import attrs

from syncagent.boundary.tools.annotations import Schemas, UnsupportedAnnotation
from syncagent.boundary.tools.arguments import bad_arguments
from syncagent.boundary.tools.base import CallContext
from syncagent.boundary.tools.docstring import read_docstring
from syncagent.cancel import CancellationToken

__all__ = ["Signature"]

_NO_DEFAULT = inspect.Parameter("_", inspect.Parameter.KEYWORD_ONLY)


@attrs.frozen(kw_only=True, eq=False)
class Signature:
    """How a function is called with a model's arguments.

    `hidden` names the parameters that the call fills in: with the token, or with the context.
    `keep_extra` is whether the function takes names that it doesn't list.
    """

    name: str
    description: str
    parameters: Dict[str, Any]
    function: Callable[..., Any]
    signature: inspect.Signature
    types: Dict[str, Any]
    hidden: Dict[str, str]
    keep_extra: bool

    @classmethod
    def of(cls, function: Callable[..., Any], *, name: Optional[str] = None) -> "Signature":
        """Read a function. Raises `TypeError`, with the reason, if a model can't call it."""
        name = getattr(function, "__name__", None) if name is None else name
        if name is None:
            raise TypeError(f"{function!r} has no __name__: give the tool a name")
        signature = _check_callable(function, name)
        description, told = read_docstring(inspect.getdoc(function) or "")
        types, hidden = _split(function, signature, name)
        return cls(
            name=name,
            description=description,
            parameters=_schema(signature, types, told, name),
            function=function,
            signature=signature,
            types=types,
            hidden=hidden,
            keep_extra=_extra_name(signature) is not None,
        )

    def structure(self, values: Dict[str, Any]) -> Dict[str, Any]:
        """Turn decoded arguments into what the annotations say.

        Raises `ToolError` with code "BAD_ARGUMENTS" for the first argument that is missing, unknown
        or of another type.
        """
        from syncagent.boundary.tools.structure import Misfit, structure

        extra = _extra_name(self.signature)
        extra_type = self.types.get(extra, Any) if extra is not None else Any
        for key in values:
            if (key not in self.types or key == extra) and not self.keep_extra:
                raise bad_arguments(self.name, f"there is no argument {key!r}; it takes {self._known()}")
        for key in self.types:
            parameter = self.signature.parameters[key]
            if key not in values and key != extra and parameter.default is parameter.empty:
                raise bad_arguments(self.name, f"argument {key!r} is missing")
        done: Dict[str, Any] = {}
        for key, value in values.items():
            if value is None and self.signature.parameters.get(key, _NO_DEFAULT).default is None:
                done[key] = None  # `when: str = None` takes null, whatever its annotation says
                continue
            try:
                done[key] = structure(value, self.types.get(key, extra_type))
            except Misfit as exc:
                raise bad_arguments(self.name, f"argument {exc.under(key)}") from None
        return done

    def _known(self) -> str:
        return ", ".join(repr(key) for key in self.types) or "none"

    def call(self, values: Dict[str, Any], context: CallContext) -> Any:
        """Call the function with structured values, the token and the context put in."""
        given = dict(values)
        for key, what in self.hidden.items():
            given[key] = context.token if what == "token" else context
        args = []
        for parameter in self.signature.parameters.values():
            if parameter.kind is parameter.POSITIONAL_ONLY:
                args.append(given.pop(parameter.name, parameter.default))
        result = self.function(*args, **given)
        if inspect.isawaitable(result) or inspect.isasyncgen(result):
            # A wrapper of an async function looks like a plain one.
            if inspect.iscoroutine(result):
                result.close()  # or Python warns that nobody has awaited it
            raise TypeError(f"a {type(result).__name__} came back: a tool is a plain function that may block")
        return result


def _check_callable(function: Callable[..., Any], name: str) -> inspect.Signature:
    for is_async in (inspect.iscoroutinefunction, inspect.isasyncgenfunction):
        if is_async(function) or is_async(getattr(type(function), "__call__", None)):
            raise TypeError(f"tool {name!r} is async; a tool is a plain function that may block")
    try:
        signature = inspect.signature(function)
    except ValueError as exc:
        raise TypeError(f"tool {name!r}: its signature can't be read: {exc}") from None
    parameters = list(signature.parameters.values())
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise TypeError(f"tool {name!r} takes *{parameter.name}: a model names each argument")
    first = parameters[0].name if parameters else ""
    if first in ("self", "cls") and "." in getattr(function, "__qualname__", ""):
        raise TypeError(f"tool {name!r} is a method: make a tool of the bound one, tool(obj.{name})")
    return signature


def _extra_name(signature: inspect.Signature) -> Optional[str]:
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            return parameter.name
    return None


def _split(
    function: Callable[..., Any], signature: inspect.Signature, name: str
) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """The annotations of what the model gives, and the parameters that the call fills in."""
    from syncagent.boundary.tools.annotations import resolve

    types: Dict[str, Any] = {}
    hidden: Dict[str, str] = {}
    for key, parameter in signature.parameters.items():
        annotation = resolve(function, parameter.annotation, f"parameter {key!r} of tool {name!r}")
        if annotation is CallContext or CallContext in get_args(annotation):
            hidden[key] = "context"
        elif key == "token":
            if any(it in (annotation, *get_args(annotation)) for it in (str, int, float, bool)):
                raise TypeError(f"tool {name!r}: the parameter 'token' is the call's own; rename the model's")
            hidden[key] = "token"
        elif CancellationToken in (annotation, *get_args(annotation)):
            raise TypeError(f"tool {name!r}: a parameter that gets the token is named token, not {key!r}")
        else:
            types[key] = Any if annotation is parameter.empty else annotation
    return types, hidden


def _schema(
    signature: inspect.Signature, types: Dict[str, Any], told: Dict[str, str], name: str
) -> Dict[str, Any]:
    schemas = Schemas()
    properties: Dict[str, Any] = {}
    required: List[str] = []
    extra: Any = False
    for key, annotation in types.items():
        parameter = signature.parameters[key]
        try:
            schema = schemas.of(annotation)
        except UnsupportedAnnotation as exc:
            raise TypeError(f"parameter {key!r} of tool {name!r}: {exc}") from None
        if parameter.kind is parameter.VAR_KEYWORD:
            extra = schema or True
            continue
        if key in told and "description" not in schema:
            schema = {**schema, "description": told[key]}
        if parameter.default is parameter.empty:
            required.append(key)
        else:
            schema = {**schema, **_default(parameter.default)}
        properties[key] = schema
    result: Dict[str, Any] = {"type": "object", "properties": properties, "required": required}
    result["additionalProperties"] = extra
    if schemas.definitions:
        result["$defs"] = schemas.definitions
    return result


def _default(value: Any) -> Dict[str, Any]:
    """The default, where JSON can say it plainly."""
    if value is None or isinstance(value, (bool, int, str)) and type(value) in (bool, int, str):
        return {"default": value}
    if type(value) is float and value - value == 0:
        return {"default": value}
    return {}
