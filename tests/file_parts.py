"""What the tests of the file tools share: the five tools of a folder, and looks at what is in it."""

import os

import pytest

from syncagent import CallContext, CancellationToken, ToolError, file_tools


class Files:
    """The tools of one folder, called as an agent calls them: through their raw arguments' values."""

    def __init__(self, root, *, token=None, private=()):
        self.root = root
        self.tools = {tool.name: tool for tool in file_tools(root)}
        self.token = token or CancellationToken()
        self.context = CallContext(token=self.token, emit=print, processes=None, private=tuple(private))

    def call(self, name, **values):
        return self.tools[name].invoke(values, self.context).text

    def read(self, path, **values):
        return self.call("read_file", path=path, **values)

    def write(self, path, content):
        return self.call("write_file", path=path, content=content)

    def edit(self, path, old, new, **values):
        return self.call("edit_file", path=path, old=old, new=new, **values)

    def list(self, path=".", **values):
        return self.call("list_files", path=path, **values).split("\n")

    def search(self, text, **values):
        return self.call("search_files", text=text, **values).split("\n")


def refused(fn, *args, **values):
    """The text of the `ToolError` that the call raises."""
    with pytest.raises(ToolError) as caught:
        fn(*args, **values)
    return str(caught.value)


def everything(root):
    """Each file below a folder with its bytes, each other thing with None."""
    found = {}
    for folder, folders, names in os.walk(root):
        for name in [*folders, *names]:
            path = os.path.join(folder, name)
            plain = os.path.isfile(path) and not os.path.islink(path)
            found[os.path.relpath(path, root)] = open_bytes(path) if plain else None
    return found


def open_bytes(path):
    with open(path, "rb") as file:
        return file.read()
