"""What moto 5.2.5 works out at every use is kept: a service's operations, definitions, JSONPaths.

For each request it looks at every member of the class that answers, hundreds for EC2 and DynamoDB:
a tenth of the time that the endpoint takes. For each execution of a state machine it parses the
whole definition, which takes longer than all the states of a short one, and builds a parser for
every JSONPath that it evaluates.
"""

from __future__ import annotations

import functools
from typing import Any

from antlr4 import ParserRuleContext
from moto.core import responses
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
    """Keep what was found; after `apply` of all other patches no class changes."""
    responses.method_names_from_class = functools.cache(responses.method_names_from_class)
    AmazonStateLanguageParser.parse = staticmethod(_parse_once)
    json_path.parse = functools.cache(json_path.parse)
    result_path.parse = functools.cache(result_path.parse)
