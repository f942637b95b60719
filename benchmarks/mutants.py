"""Check that the quick tests notice wrong code: one small mistake in each of 30 functions drawn at random.

    python benchmarks/mutants.py [SEED] [COUNT]

A mistake is one of: a comparison, a condition or a boolean operator turned around, an arithmetic operator exchanged, a
number raised by one, a call left out. The tests of the room run first, and all quick tests if these pass.
Work happens in a copy of the tree. Takes about a minute per mutant, and eight more where a mutant survives.
"""

import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXCHANGED = {ast.Lt: ">=", ast.LtE: ">", ast.Gt: "<=", ast.GtE: "<", ast.Eq: "!=", ast.NotEq: "==", ast.In: "not in"}
EXCHANGED |= {ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is"}
ARITHMETIC = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*"}
ALWAYS = ("tests/test_cli.py", "tests/golden", "tests/test_architecture.py")
NOT_RUN_HERE = ("dimension/cuda",)  # kernels and their launches need a GPU


def functions() -> list[tuple[Path, ast.FunctionDef]]:
    """All functions of the package that have a mistake to make."""
    found = []
    for file in sorted((ROOT / "src/ldreg").rglob("*.py")):
        if not any(part in file.as_posix() for part in NOT_RUN_HERE):
            tree = ast.parse(file.read_text(encoding="utf-8"))
            nodes = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
            found += [(file, node) for node in nodes if mistakes(node, file.read_text(encoding="utf-8"))]
    return found


def mistakes(function: ast.FunctionDef, source: str) -> list[tuple[ast.AST, str]]:
    """Places in the body of a function, each with the text that replaces it."""
    found: list[tuple[ast.AST, str]] = []
    for statement in function.body:
        said = [node for node in ast.walk(statement) if isinstance(node, ast.JoinedStr | ast.Raise)]
        messages = {id(inner) for node in said for inner in ast.walk(node)}
        for node in ast.walk(statement):
            if id(node) in messages:
                continue

            def text(part: ast.AST) -> str:
                return ast.get_source_segment(source, part) or ""

            if isinstance(node, ast.Compare) and len(node.ops) == 1:
                found.append((node, f"{text(node.left)} {EXCHANGED[type(node.ops[0])]} {text(node.comparators[0])}"))
            elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
                found.append((node, f"({text(node.left)}) {ARITHMETIC[type(node.op)]} ({text(node.right)})"))
            elif isinstance(node, ast.BoolOp):
                word = " or " if isinstance(node.op, ast.And) else " and "
                found.append((node, "(" + word.join(f"({text(value)})" for value in node.values) + ")"))
            elif isinstance(node, ast.If | ast.IfExp):
                found.append((node.test, f"(not ({text(node.test)}))"))
            elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
                found.append((node, f"({node.value} + 1)"))
            elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                found.append((node, "pass"))
    return found


def changed(source: str, node: ast.AST, text: str) -> str:
    """The source with one node replaced."""
    lines = source.encode().splitlines(keepends=True)
    start = sum(map(len, lines[: node.lineno - 1])) + node.col_offset  # type: ignore[attr-defined]
    end = sum(map(len, lines[: node.end_lineno - 1])) + node.end_col_offset  # type: ignore[attr-defined]
    data = source.encode()
    return (data[:start] + text.encode() + data[end:]).decode()


def killed(folder: Path, *tests: str) -> bool:
    """Whether quick tests fail."""
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-q",
        "-n2",
        "-p",
        "no:cacheprovider",
        "-m",
        "not slow and not gpu",
    ]
    environment = {**os.environ, "PYTHONPATH": f"{folder / 'src'}:{folder}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*command, *tests], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1, 2):
        raise SystemExit(f"pytest ended with {done.returncode}: {done.stderr or done.stdout}")
    return done.returncode != 0


def main(seed: int = 0, count: int = 30) -> None:
    draw = random.Random(seed)
    alive = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "ldreg"
        skipped = shutil.ignore_patterns(".venv", ".git", "out", "site", "__pycache__", ".*_cache", ".gpu")
        shutil.copytree(ROOT, folder, ignore=skipped)
        for file, function in draw.sample(functions(), count):
            place, source = file.relative_to(ROOT), file.read_text(encoding="utf-8")
            node, text = draw.choice(mistakes(function, source))
            (folder / place).write_text(changed(source, node, text), encoding="utf-8")
            room = place.parts[2]
            own = f"tests/test_{room}" if room.endswith(".py") else f"tests/{room}"
            first = [str(place)] + [name for name in (own, *ALWAYS) if (folder / name).exists()]
            dead = killed(folder, *first) or killed(folder)
            (folder / place).write_text(source, encoding="utf-8")
            was = (ast.get_source_segment(source, node) or "").replace("\n", " ")
            where = f"{place}:{node.lineno} {function.name}"  # type: ignore[attr-defined]
            print(f"{'killed' if dead else 'ALIVE '}  {where}: {was[:60]} -> {text[:60]}", flush=True)
            alive += [] if dead else [place]
    print(f"{count - len(alive)} of {count} killed")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
