"""Recipes: YAML files of settings that differ from the defaults; a recipe may build on another."""

import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml

from ldreg.io.files import read_text
from ldreg.options import nearest
from ldreg.text import printable

Tree = dict[str, Any]

_RECIPES = Path(str(files("ldreg") / "recipes"))
_BASE = "base"  # the key of the recipe that a recipe builds on
_LARGEST = 1_000_000
_LONGEST = {"int": 100, "float": 100, "str": 1000}  # characters of a value; some longer ones take long to be read
_TEXT, _FLOAT = "tag:yaml.org,2002:str", "tag:yaml.org,2002:float"
_PLAIN = {f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "str", "int", "float", "bool", "null")}


def recipe_names() -> list[str]:
    """The names of all recipes that come with the package, such as "digits/simclr_ldreg".

    >>> "imagenet/byol_ldreg" in recipe_names()
    True
    """
    # An underscore marks what recipes share, and is no recipe itself.
    paths = (path for path in _RECIPES.rglob("*.yaml") if not path.name.startswith("_"))
    return sorted(path.relative_to(_RECIPES).with_suffix("").as_posix() for path in paths)


def load_recipe(name: str) -> Tree:
    """The settings of a recipe by name, or of a YAML file by path, on top of those of its base.

    Raises:
        ValueError: no recipe has this name (the nearest are named), it is not a mapping, or bases form a circle.
        OSError: a file cannot be read.
    """
    return _load(_path(name, Path()), ())


def _load(path: Path, above: tuple[Path, ...]) -> Tree:
    if path.resolve() in above:
        raise ValueError(f"recipe: expected bases without a circle, got {' -> '.join(map(str, (*above, path)))}")
    tree = read_yaml(path)
    base = tree.pop(_BASE, None)
    if base is None:
        return tree
    if not isinstance(base, str):
        raise ValueError(f"{path}: {_BASE}: expected the name of a recipe, got {base!r}")
    return merged(_load(_path(base, path.parent), (*above, path.resolve())), tree)


def _path(name: str, folder: Path) -> Path:
    """The file of a recipe; paths are relative to the folder."""
    if name.endswith((".yaml", ".yml")):
        return folder / name
    path = _RECIPES / f"{name}.yaml"
    if name not in recipe_names() and not (path.name.startswith("_") and path.is_file()):
        expected = f"a name of --list_recipes or a .yaml file, got {name!r}"
        raise ValueError(f"recipe: expected {expected}; nearest: {nearest(name, recipe_names())}")
    return path


class _PlainLoader(yaml.SafeLoader):  # type: ignore[misc]  # yaml comes without types
    """YAML without what settings have no use for: tags, dates, anchors, and keys that are no names or come twice."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()
        if event.anchor is not None:  # aliases of aliases grow without bound
            raise _refused("an anchor or alias", event)
        if getattr(event, "tag", None) is not None:
            raise _refused("a tag", event)
        node = super().compose_node(parent, index)
        if isinstance(node, yaml.Node):
            _check(node)
        return node


# YAML 1.1 takes 1e-6 for text.
_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$")
_PlainLoader.add_implicit_resolver(_FLOAT, _EXPONENT, list("-+.0123456789"))


def _check(node: yaml.Node) -> None:
    if node.tag not in _PLAIN:
        raise _refused("a date or sign without quotes", node)
    if isinstance(node, yaml.ScalarNode):
        kind, length = node.tag.rpartition(":")[2], len(node.value)
        if ":" in node.value and kind in ("int", "float"):  # which YAML 1.1 takes for digits of base 60
            raise _refused("a time without quotes", node)
        if length > _LONGEST.get(kind, length):
            raise _refused(f"a value of {length} characters", node)
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, _ in node.value:
            if key.tag != _TEXT:
                raise _refused("a key that is no name", key)
            if key.value in seen:
                raise _refused(f"the key {key.value!r} twice", key)
            seen.add(key.value)


def _refused(found: str, at: yaml.Event | yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=found, problem_mark=at.start_mark)


def read_yaml(path: Path) -> Tree:
    """The mapping in a YAML file of plain data: mappings, lists, text, numbers, booleans and null.

    Raises:
        ValueError: it is not a file of at most 1 MB, not YAML, not plain, not a mapping, or has a key twice.
        OSError: it cannot be read.
    """
    if path.is_dir():
        raise ValueError(f"{path}: expected a file, got a folder")
    try:
        tree = yaml.load(read_text(path, largest=_LARGEST), Loader=_PlainLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = printable(" ".join(str(error).split()))
        raise ValueError(f"{path}: expected YAML of plain data, got {reason}") from error
    if not isinstance(tree, dict | None):
        raise ValueError(f"{path}: expected a mapping of names to values, got {type(tree).__name__}")
    return tree or {}


def merged(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> Tree:
    """The settings of both; those of the upper win."""
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
