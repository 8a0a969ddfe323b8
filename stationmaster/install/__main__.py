"""python3 -m stationmaster.install local | everything [--installer uv|pip]

Every Python 3 must be able to read this file, so that it can say which one is needed.
"""

import sys

if not (3, 11) <= tuple(sys.version_info[:2]) <= (3, 13):
    found = ".".join(str(part) for part in sys.version_info[:3])
    sys.exit(
        "error: Python 3.11, 3.12 or 3.13 is needed, but "
        + sys.executable
        + " is "
        + found
        + "; name another one: make PYTHON=python3.12 ..."
    )

from stationmaster.install.set_up import main

sys.exit(main())
