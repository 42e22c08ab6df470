"""httpx without its command line, which would bring rich, pygments and a Markdown parser: 10 MB and 0.1 s of each run.

httpx asks for the module and goes on without it, as it does where that extra is not installed. Imported by the commands
before anything else imports httpx.
"""

import sys

sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]  # None is how Python notes that there is none

import httpx  # noqa: E402, F401  it has to come after the line above
