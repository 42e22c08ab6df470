"""Does a JSON value have the form that a JSON Schema asks for? The part of the language that requests to engines use.

Looked at: `type`, `properties`, `required`, `additionalProperties`, `items`, `minItems`, `maxItems`, `enum`, `const`,
`minimum`, `maximum`, `minLength`, `maxLength`, `anyOf`, `oneOf` (as anyOf), `allOf`, and `$ref` into the same schema.
Every other key is ignored, so a value may pass here that the whole language refuses. It never refuses a value that the
whole language takes, but for `oneOf`, of which it asks for one at least.
"""

from typing import Any, Final

_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
# A schema that refers to itself for ever is none.
_DEEPEST: Final = 64


def misfit(value: Any, schema: Any) -> str | None:
    """Where and why `value` has not the form, such as `$.items[0].price: not a number`; None where it has.

    Names keys of the schema only, never a value.
    """
    return _misfit(value, schema, "$", schema, 0)


def _misfit(value: Any, schema: Any, at: str, root: Any, depth: int) -> str | None:
    if schema is True or not isinstance(schema, dict) or depth > _DEEPEST:
        return f"{at}: not allowed" if schema is False else None
    if isinstance(schema.get("$ref"), str):
        return _misfit(value, _resolved(schema["$ref"], root), at, root, depth + 1)
    types = schema.get("type")
    given = types if isinstance(types, list) else [types]
    names = [name for name in given if isinstance(name, str)]
    if names and not any(_is_of(value, name) for name in names):
        return f"{at}: not a {' or '.join(names)}"
    if "const" in schema and not _same(value, schema["const"]):
        return f"{at}: not the constant"
    if isinstance(schema.get("enum"), list) and not any(_same(value, item) for item in schema["enum"]):
        return f"{at}: none of the listed values"
    found = _bounds(value, schema, at)
    if found is None and isinstance(value, dict):
        found = _object(value, schema, at, root, depth)
    if found is None and isinstance(value, list) and "items" in schema:
        each = (_misfit(item, schema["items"], f"{at}[{n}]", root, depth + 1) for n, item in enumerate(value))
        found = next((problem for problem in each if problem is not None), None)
    return found if found is not None else _combined(value, schema, at, root, depth)


def _is_of(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return name == "boolean"
    if name == "integer" and isinstance(value, float):
        return bool(value.is_integer())
    return isinstance(value, _TYPES.get(name, (object,)))


def _same(value: Any, other: Any) -> bool:
    """Equal as JSON: true is not 1."""
    return isinstance(value, bool) == isinstance(other, bool) and bool(value == other)


def _bounds(value: Any, schema: dict[str, Any], at: str) -> str | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        measured, low, high, what = value, schema.get("minimum"), schema.get("maximum"), "out of its range"
    elif isinstance(value, str):
        measured, low, high, what = len(value), schema.get("minLength"), schema.get("maxLength"), "of another length"
    elif isinstance(value, list):
        measured, low, high, what = len(value), schema.get("minItems"), schema.get("maxItems"), "of another length"
    else:
        return None
    if isinstance(low, int | float) and measured < low:
        return f"{at}: {what}"
    return f"{at}: {what}" if isinstance(high, int | float) and measured > high else None


def _object(value: dict[str, Any], schema: dict[str, Any], at: str, root: Any, depth: int) -> str | None:
    known = schema.get("properties") if isinstance(schema.get("properties"), dict) else {}
    assert isinstance(known, dict)
    required = schema.get("required")
    for name in required if isinstance(required, list) else ():
        if isinstance(name, str) and name not in value:
            return f"{at}.{name}: missing"
    for name, own in known.items():
        if name in value and (problem := _misfit(value[name], own, f"{at}.{name}", root, depth + 1)) is not None:
            return problem
    others = [name for name in value if name not in known]
    patterns = "patternProperties" in schema  # not looked at, so what they may allow is allowed
    for name in others if "additionalProperties" in schema and not patterns else ():
        if _misfit(value[name], schema["additionalProperties"], "", root, depth + 1) is not None:
            return f"{at}: a key that the schema does not have, or of another form"
    return None


def _combined(value: Any, schema: dict[str, Any], at: str, root: Any, depth: int) -> str | None:
    for part in schema["allOf"] if isinstance(schema.get("allOf"), list) else ():
        if (problem := _misfit(value, part, at, root, depth + 1)) is not None:
            return problem
    for key in ("anyOf", "oneOf"):
        choices = schema.get(key)
        if not isinstance(choices, list) or not choices:
            continue
        if all(_misfit(value, choice, at, root, depth + 1) is not None for choice in choices):
            return f"{at}: none of the forms it may have"
    return None


def _resolved(reference: str, root: Any) -> Any:
    """What a reference into the same schema names; True, which takes anything, where it leads elsewhere."""
    if not reference.startswith("#"):
        return True
    found = root
    for part in reference[1:].split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(found, dict) or name not in found:
            return True
        found = found[name]
    return found
