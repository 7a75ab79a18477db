"""Read a docstring: what it says of the function, and of each parameter.

It knows the three usual styles (Google, numpy, Sphinx) and nothing of schemas.
"""

import inspect
import re
from typing import Dict, List, Tuple

__all__ = ["read_docstring"]

_GOOGLE_HEAD = re.compile(r"(?:Args|Arguments|Parameters|Params|Keyword Args):\s*\Z")
_GOOGLE_ITEM = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NUMPY_ITEM = re.compile(r"\*{0,2}(\w+(?:\s*,\s*\w+)*)\s*(?::.*)?\Z")
_SPHINX_ITEM = re.compile(r":(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?(\w+)\s*:\s*(.*)")
_SPHINX_ANY = re.compile(r":\w[^:]*:")


def read_docstring(text: str) -> Tuple[str, Dict[str, str]]:
    """The first paragraph, and the descriptions of the parameters by name; each in one line."""
    lines = inspect.cleandoc(text).splitlines() if text else []
    found = {**_numpy(lines), **_google(lines), **_sphinx(lines)}
    return _first_paragraph(lines), {name: _join(words) for name, words in found.items() if _join(words)}


def _join(lines: List[str]) -> str:
    return " ".join(" ".join(lines).split())


def _first_paragraph(lines: List[str]) -> str:
    taken: List[str] = []
    for at, line in enumerate(lines):
        under = lines[at + 1].strip() if at + 1 < len(lines) else ""
        if not line.strip() or _GOOGLE_HEAD.match(line) or _SPHINX_ANY.match(line) or _is_rule(under):
            break
        taken.append(line)
    return _join(taken)


def _is_rule(line: str) -> bool:
    return len(line) > 2 and not line.strip("-")


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _google(lines: List[str]) -> Dict[str, List[str]]:
    found: Dict[str, List[str]] = {}
    item_indent = 0
    current: List[str] = []
    inside = False
    for line in lines:
        if _GOOGLE_HEAD.match(line):
            inside, item_indent = True, 0
        elif inside and line.strip():
            if _indent(line) == 0:
                inside = False
                continue
            item_indent = item_indent or _indent(line)
            match = _GOOGLE_ITEM.match(line.strip()) if _indent(line) == item_indent else None
            if match:
                current = found[match.group(1)] = [match.group(2)]
            else:
                current.append(line)
    return found


def _numpy(lines: List[str]) -> Dict[str, List[str]]:
    found: Dict[str, List[str]] = {}
    heads = [at for at, line in enumerate(lines[1:], 1) if _is_rule(line.strip())]
    for at, head in enumerate(heads):
        if lines[head - 1].strip().lower() not in ("parameters", "other parameters"):
            continue
        end = heads[at + 1] - 1 if at + 1 < len(heads) else len(lines)
        current: List[str] = []
        for line in lines[head + 1 : end]:
            match = _NUMPY_ITEM.match(line.strip()) if line.strip() and _indent(line) == 0 else None
            if match:
                current = []
                found.update((name.strip(), current) for name in match.group(1).split(","))
            elif line.strip():
                current.append(line)
    return found


def _sphinx(lines: List[str]) -> Dict[str, List[str]]:
    found: Dict[str, List[str]] = {}
    current: List[str] = []
    for line in lines:
        match = _SPHINX_ITEM.match(line.strip())
        if match:
            current = found[match.group(1)] = [match.group(2)]
        elif not line.strip() or _SPHINX_ANY.match(line.strip()):
            current = []
        else:
            current.append(line)
    return found
