"""``python -m eval COMMAND ...``: finds the command's module and hands over.

Command ``foo-bar`` is module ``eval.foo_bar`` (``eval.import_`` where the name is a Python keyword). The
first line of its docstring is its help; it has ``add_arguments(parser)`` and ``main(args) -> int``. Only the
module of the command that runs is imported, so that none pays for another's dependencies.
"""

import argparse
import ast
import importlib
import importlib.util
import keyword
import sys
from collections.abc import Sequence
from pathlib import Path

COMMANDS = (
    "tiny-model",
    "generate",
    "replay",
    "demo",
    "pd-demo",
    "import",
    "simulate",
    "report",
    "predictor",
    "bench",
    "paper",
)


def module_name(command: str) -> str:
    """The dotted name of the module that implements ``command``."""
    name = command.replace("-", "_")
    return f"eval.{name}_" if keyword.iskeyword(name) else f"eval.{name}"


def summaries() -> dict[str, str]:
    """Each command that this checkout has, with the first line of its module's docstring."""
    found = {}
    for command in COMMANDS:
        spec = importlib.util.find_spec(module_name(command))
        if spec is None or spec.origin is None:
            continue
        docstring = ast.get_docstring(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) or ""
        found[command] = docstring.partition("\n")[0]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. Bad usage exits with code 2, as argparse does."""
    argv = list(sys.argv[1:] if argv is None else argv)
    available = summaries()
    width = max(map(len, available), default=0)
    parser = argparse.ArgumentParser(
        prog="python -m eval",
        description="Evaluation tools of sglang-agentcache.",
        epilog="commands:\n" + "\n".join(f"  {name:<{width}}  {text}" for name, text in available.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=list(available), metavar="COMMAND", help="one of those below")
    chosen = parser.parse_args(argv[:1]).command

    module = importlib.import_module(module_name(chosen))
    command_parser = argparse.ArgumentParser(
        prog=f"python -m eval {chosen}",
        description=module.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    module.add_arguments(command_parser)
    return int(module.main(command_parser.parse_args(argv[1:])))


if __name__ == "__main__":
    sys.exit(main())
