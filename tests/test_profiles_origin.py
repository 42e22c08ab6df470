"""Where a load comes from, in one line: nobody takes a shaped or a generated one for a recording."""

from typing import Any

import pytest

from profiles.origin import is_shaped, say_origin

STEPS = [{"step": "superpose", "users": 2, "seed": 3, "offsets_ns": [1, 2]}, {"step": "thin", "share": 0.5}]


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (None, ""),
        ({"kind": "capture"}, ""),
        ({"kind": "azure", "notes": ["zone: UTC"]}, "azure; zone: UTC"),
        (
            {"kind": "builtin", "name": "mix-short", "scale": 0.1, "notes": ["generated"]},
            "builtin mix-short 0.1; generated",
        ),
        (
            {"kind": "shape", "of_source": {"kind": "capture"}, "steps": STEPS},
            "shaped from a recording (superpose, users 2, seed 3; thin, share 0.5): what is in flight is an estimate",
        ),
        (
            {"kind": "shape", "of_source": {"kind": "azure"}, "steps": STEPS[1:]},
            "shaped from imported azure (thin, share 0.5): what is in flight is an estimate",
        ),
        (
            {"kind": "shape", "of_source": {"kind": "shape"}, "steps": []},
            "shaped from a shaped load (): what is in flight is an estimate",
        ),
    ],
)
def test_one_line_says_it(source: dict[str, Any] | None, said: str) -> None:
    manifest = {} if source is None else {"source": source}
    assert say_origin(manifest) == said
    assert is_shaped(manifest) == said.startswith("shaped")
