"""The runtime that is killed: `python -m syncagent.surface.demo.victim DB SESSION URL`.

It runs two turns; the demo kills it with signal 9 in the second one.
"""

import sys
from typing import List

from syncagent.boundary.models.chat import ChatModel
from syncagent.boundary.tools.bash import bash
from syncagent.runtime.store import Store
from syncagent.surface.interrupt import Agent

__all__ = ["main"]


def main(arguments: List[str]) -> None:
    """Drive the session until somebody kills this process."""
    path, session, url = arguments
    model = ChatModel("scripted", base_url=url, api_key="none")
    with Store(path) as store:
        # One call at a time: so the kill finds one done, one running and one that hasn't begun.
        with Agent(model, store=store, session=session, tools=[bash], max_parallel=1) as agent:
            agent.run("Hello.")
            agent.run("Pay the invoice, mail the three customers, then clean up.")


if __name__ == "__main__":
    main(sys.argv[1:])
