"""Write an operator of your own: its spec, float64 form, example, tests and docs, in a package that installs.

What is written passes as it is: pytest, and rlk check. Replace the formula by yours.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import jinja2

from rlk.cli.text import made_folder
from rlk.errors import Code, LaunchError
from rlk.resources import templates
from rlk.runtime.binding.checks import python_name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of `rlk new-op`."""
    parser.add_argument("name", metavar="NAME", help="of the operator, a name of Python in lower case")
    parser.add_argument(
        "--namespace",
        default="my",
        metavar="NS",
        help="of rlk.ops.NS.NAME (default: my)",
    )
    parser.add_argument("--package", help="the Python package; default: NS_ops")
    parser.add_argument(
        "-o", "--out", type=Path, metavar="DIR", help="of the project; default: PACKAGE with -"
    )


def run(arguments: argparse.Namespace) -> int:
    """Write what is not there yet; a file that is there is left as it is, but for the operator's own."""
    name, namespace = (
        python_name("rlk new-op", "NAME", arguments.name),
        python_name("rlk new-op", "--namespace", arguments.namespace),
    )
    package = python_name("rlk new-op", "--package", arguments.package or f"{namespace}_ops")
    if namespace == "rlk" or package in ("rlk", "torch"):
        taken = "rlk" if namespace == "rlk" else package
        raise LaunchError(Code.NAME_TAKEN, name=taken, by="it is another package's")
    # no name of a package: a folder that has it would hide the package from Python started beside it
    out = made_folder(arguments.out or Path(package.replace("_", "-")), "rlk new-op", "--out")
    spec, test = out / package / f"{name}.py", out / "tests" / f"test_{name}.py"
    for path in (spec, test):
        if path.exists():
            raise LaunchError(Code.NAME_TAKEN, name=name, by=f"{path} is there already")
    words = {"name": name, "namespace": namespace, "package": package}
    for path, template in ((spec, "spec.py"), (test, "test.py")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_rendered(template, words), encoding="utf-8")
    imports = out / package / "__init__.py"
    line = f"from {package}.{name} import {name} as {name}\n"
    text = imports.read_text(encoding="utf-8") if imports.exists() else f'"""Operators of {namespace}."""\n\n'
    imports.write_text(text + line, encoding="utf-8")
    written = [spec, test, imports]
    for file in ("pyproject.toml", "README.md", "kernels.toml"):
        if not (out / file).exists():
            (out / file).write_text(_rendered(file, words), encoding="utf-8")
            written.append(out / file)
    matrix = out / "kernels.toml"
    text = matrix.read_text(encoding="utf-8")
    call = f'op = "{namespace}.{name}"'
    if call not in text:  # an operator beside others
        table = _rendered("kernels.toml", words).partition("[[call]]")
        matrix.write_text(f"{text.rstrip()}\n\n{''.join(table[1:])}", encoding="utf-8")
        written.append(matrix)
    for path in written:
        print(f"wrote  {path}")
    print(f"\nnext:  pip install -e {out} && pytest {out}/tests && rlk check {namespace}.{name}")
    return 0


def _rendered(template: str, words: dict[str, str]) -> str:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(templates() / "new_op"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return environment.get_template(f"{template}.j2").render(**words)
