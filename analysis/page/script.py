"""The scripts of the interactive page: Vega and Vega-Lite once for all charts, and what draws them.

Vega makes functions of the expressions of a chart, so the policy of the page names 'unsafe-eval' beside the hashes of
the two scripts. Nothing else may run, and nothing may be loaded.
"""

import base64
import functools
import gzip
import hashlib
import json
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_DRAW: Final = Path(__file__).parent / "templates" / "report.js"
_EXPORTS: Final = "window.vegaEmbed = vegaEmbed;"  # which carries Vega and Vega-Lite
_MAKE: Final = (
    "import sys, vl_convert; "
    "sys.stdout.buffer.write(vl_convert.javascript_bundle(sys.argv[1], vl_version=sys.argv[2]).encode())"
)
_VEGA_LITE: Final = "6.1"  # as `profiles.charts.style` draws with
POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"


@dataclass(frozen=True, slots=True)
class Bundle:
    """Vega, Vega-Lite and what draws with them: the script, and the same packed for a data block."""

    script: str
    packed: str


@functools.cache
def begin_bundle() -> Future[Bundle]:
    """Start to make the bundle, about a second, beside whatever else is done. The second call gives the first's."""
    with_one = ThreadPoolExecutor(max_workers=1, thread_name_prefix="vega-bundle")
    try:
        return with_one.submit(_bundle)
    finally:
        with_one.shutdown(wait=False)


def _bundle() -> Bundle:
    script = in_script(_vega())
    return Bundle(script, packed(script))


def _vega() -> str:
    """Made in a process of its own: vl-convert keeps this one's interpreter to itself while it bundles."""
    command = [sys.executable, "-I", "-c", _MAKE, _EXPORTS, _VEGA_LITE]
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, check=False)
    if done.returncode == 0 and done.stdout:
        return done.stdout.decode("utf-8")
    import vl_convert

    text: str = vl_convert.javascript_bundle(_EXPORTS, vl_version=_VEGA_LITE)
    return text


def packed(text: str) -> str:
    """Text as gzip in base64, for a data block: the scripts are less than half as long then."""
    return base64.b64encode(gzip.compress(text.encode("utf-8"), 9, mtime=0)).decode("ascii")


def drawing() -> str:
    """The script that puts a live chart in the place of each picture."""
    return in_script(_DRAW.read_text(encoding="utf-8"))


def in_script(code: str) -> str:
    """Code that an HTML parser reads to its end: nothing in it closes the element or opens a comment."""
    return code.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def data_json(value: Any) -> str:
    """Dense strict JSON."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def policy(*scripts: str) -> str:
    """The content security policy of a page with these scripts; without any it allows none."""
    if not scripts:
        return POLICY
    hashes = " ".join(f"'sha256-{_sha256(script)}'" for script in scripts)
    return f"{POLICY}; script-src {hashes} 'unsafe-eval'"


def _sha256(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode("utf-8")).digest()).decode("ascii")
