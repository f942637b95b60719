"""Recipes: YAML files that say what differs from the defaults, each perhaps built on another."""

import difflib
import re
from collections.abc import Iterable, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

Tree = dict[str, Any]

_BASE = "base"  # the key under which a recipe names the one that it builds on
_FLOAT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")  # as 1e-6, which YAML 1.1 takes for text


def recipe_names() -> list[str]:
    """The names of all recipes that come with the package, such as "digits/simclr_ldreg".

    >>> "imagenet/byol_ldreg" in recipe_names()
    True
    """
    root = Path(str(files("ldreg") / "recipes"))
    # An underscore marks what recipes share, and is no recipe itself.
    paths = (path for path in root.rglob("*.yaml") if not path.name.startswith("_"))
    return sorted(path.relative_to(root).with_suffix("").as_posix() for path in paths)


def load_recipe(name: str) -> Tree:
    """The settings of a recipe by name, or of a YAML file by path, on top of those of its base.

    Raises:
        ValueError: no recipe has this name (the nearest are named), it is not a mapping, or bases form a circle.
        OSError: a file cannot be read.
    """
    return _load(name, ())


def _load(name: str, above: tuple[str, ...]) -> Tree:
    if name in above:
        raise ValueError(f"recipe: expected bases without a circle, got {' -> '.join((*above, name))}")
    path = _path(name)
    tree = read_yaml(path)
    base = tree.pop(_BASE, None)
    if base is None:
        return tree
    if not isinstance(base, str):
        raise ValueError(f"{path}: {_BASE}: expected the name of a recipe, got {base!r}")
    return merged(_load(base, (*above, name)), tree)


def _path(name: str) -> Path:
    if name.endswith((".yaml", ".yml")):
        return Path(name)
    path = Path(str(files("ldreg") / "recipes")) / f"{name}.yaml"
    if name not in recipe_names() and not (path.name.startswith("_") and path.is_file()):
        raise ValueError(f"recipe: expected {nearest(name, recipe_names())}, or a .yaml file, got {name!r}")
    return path


def read_yaml(path: Path) -> Tree:
    """The mapping in a YAML file, of plain data alone: tags that would make Python objects are refused.

    Raises:
        ValueError: it is not YAML, or not a mapping.
        OSError: it cannot be read.
    """
    try:
        tree = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path}: expected YAML, got {' '.join(str(error).split())}") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict) or not all(isinstance(key, str) for key in tree):
        raise ValueError(f"{path}: expected a mapping of names to values, got {type(tree).__name__}")
    return {key: _numbers(value) for key, value in tree.items()}


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return float(value) if isinstance(value, str) and _FLOAT.fullmatch(value) else value


def merged(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> Tree:
    """The settings of both, the upper's where they meet.

    >>> merged({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}})
    {'a': {'b': 1, 'c': 3}}
    """
    tree = dict(lower)
    for key, value in upper.items():
        below = tree.get(key)
        tree[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return tree


def flattened(tree: Mapping[str, Any], prefix: str = "") -> Tree:
    """Values by their dotted keys.

    >>> flattened({"a": {"b": 1}, "c": [2]})
    {'a.b': 1, 'c': [2]}
    """
    flat: Tree = {}
    for key, value in tree.items():
        flat |= flattened(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def nested(flat: Mapping[str, Any]) -> Tree:
    """The tree of values by dotted keys; what `flattened` undoes.

    >>> nested({"a.b": 1, "a.c": 2})
    {'a': {'b': 1, 'c': 2}}
    """
    tree: Tree = {}
    for key, value in flat.items():
        *path, leaf = key.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[leaf] = value
    return tree


def nearest(name: str, names: Iterable[str], *, count: int = 3) -> str:
    """The names most like a wrong one, for an error message.

    >>> nearest("simcrl", ["byol", "simclr", "moco"], count=1)
    "'simclr'"
    """
    known = sorted(names)
    close = difflib.get_close_matches(name, known, n=count, cutoff=0.4)
    if not close:
        close = [entry for entry in known if name.rpartition(".")[2] in entry][:count] or known[:count]
    return " or ".join(repr(entry) for entry in close)
