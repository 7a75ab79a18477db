"""Docstrings of the three usual styles give a description and one for each parameter."""

import pytest

from syncagent.boundary.tools.docstring import read_docstring

GOOGLE = """Find a file.

    It looks everywhere.

    Args:
        name (str, optional): The name: with
            or without its ending.

            Blank lines are no end.
        depth: How deep.
        *rest: The rest.

    Returns:
        str: the path
    """
NUMPY = """Find a file.

    Parameters
    ----------
    name : str
        The name: with
        or without its ending.
    depth, width : int
        How deep.

    Returns
    -------
    path : str
        not a parameter
    """
SPHINX = """Find a
    file.

    :param str name: The name: with
        or without its ending.
    :param depth: How deep.
    :type depth: int
    :returns: the path
    """


@pytest.mark.parametrize(
    "text, found",
    [
        (
            GOOGLE,
            {
                "name": "The name: with or without its ending. Blank lines are no end.",
                "depth": "How deep.",
                "rest": "The rest.",
            },
        ),
        (
            NUMPY,
            {"name": "The name: with or without its ending.", "depth": "How deep.", "width": "How deep."},
        ),
        (SPHINX, {"name": "The name: with or without its ending.", "depth": "How deep."}),
    ],
)
def test_each_style_is_read(text: str, found: "dict[str, str]") -> None:
    assert read_docstring(text) == ("Find a file.", found)


@pytest.mark.parametrize(
    "text, description",
    [
        ("", ""),
        ("One line.", "One line."),
        ("\n    Over\n    two lines.\n\n    More.", "Over two lines."),
        ("Args:\n    x: only parameters", ""),
        ("Do it.\nArgs:\n    x: no blank line before", "Do it."),
        ("Do it.\n:param x: no blank line before", "Do it."),
        ("Parameters\n----------\nx\n    only parameters", ""),
        ("Note: this is text.", "Note: this is text."),
    ],
)
def test_the_description_is_the_first_paragraph(text: str, description: str) -> None:
    assert read_docstring(text)[0] == description


def test_sections_of_other_names_hold_no_parameters() -> None:
    assert read_docstring("Do it.\n\nRaises:\n    ValueError: never\n\nExample:\n    x: 1")[1] == {}
