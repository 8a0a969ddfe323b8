"""One Lambda process: awslambdaric, with a watch that ends it when its parent ends.

    python -P stationmaster/local/aws/ric_worker.py module.attribute

AWS_LAMBDA_RUNTIME_API has the Runtime API's address. Standard input is the read end of a pipe,
which closes when the parent ends, even by kill -9, and then so does this process.
"""

from __future__ import annotations

import os
import sys
import threading


def _end_with_parent(pipe: int) -> None:
    while os.read(pipe, 1):
        pass
    os._exit(1)


def main() -> None:
    """Watch the parent and serve invocations until it ends."""
    # Handlers that read standard input must not eat the watch.
    pipe = os.dup(0)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    threading.Thread(
        target=_end_with_parent, args=(pipe,), name="parent-watch", daemon=True
    ).start()

    # Imported after the watch has started: the import is slow and a parent may end meanwhile.
    from awslambdaric.__main__ import main as serve

    sys.path.insert(0, os.getcwd())
    serve(["awslambdaric", sys.argv[1]])


if __name__ == "__main__":
    main()
