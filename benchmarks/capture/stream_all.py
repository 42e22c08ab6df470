"""The script of the variant `stock`: the two lines that a user of mitmdump writes to stream every response."""

from mitmproxy.http import HTTPFlow


def responseheaders(flow: HTTPFlow) -> None:
    assert flow.response is not None
    flow.response.stream = True
