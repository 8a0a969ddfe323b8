"""Step Functions: a definition and a JSONPath are parsed once, not at every use.

moto 5.2.5 parses the whole definition for each execution, which takes longer than all the states of
a short one, and builds a parser for every JSONPath that it evaluates.
"""

from __future__ import annotations

import functools
from typing import Any

from antlr4 import ParserRuleContext
from moto.stepfunctions.parser.asl.component.common.path import result_path
from moto.stepfunctions.parser.asl.parse.asl_parser import AmazonStateLanguageParser
from moto.stepfunctions.parser.asl.parse.preprocessor import Preprocessor
from moto.stepfunctions.parser.asl.utils import json_path

_parse = AmazonStateLanguageParser.parse


@functools.cache
def _syntax_tree(definition: str) -> ParserRuleContext:
    return _parse(definition)[1]


def _parse_once(definition: str) -> tuple[Any, ParserRuleContext]:
    """Parse `definition`, and build its components anew: an execution may write on its own.

    Raises:
        ASLParserException: the definition is no Amazon States Language.
    """
    tree = _syntax_tree(definition)
    return Preprocessor().visit(tree), tree


def apply() -> None:
    """Keep what was parsed; parsed trees and paths are only read."""
    AmazonStateLanguageParser.parse = staticmethod(_parse_once)
    json_path.parse = functools.cache(json_path.parse)
    result_path.parse = functools.cache(result_path.parse)
