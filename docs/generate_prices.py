"""Write the packaged price list anew from the installed ``genai-prices`` (``make prices``), one model a line: changes show."""

from __future__ import annotations

import msgspec

from llmbroker.prices import listed, source


def text(prices: listed.PriceList) -> bytes:
    """Return the file that holds this list."""
    vendors = []
    for vendor in prices.vendors:
        head = msgspec.json.encode(msgspec.structs.replace(vendor, models=())).removesuffix(b"}")
        models = b",\n".join(msgspec.json.encode(entry) for entry in vendor.models)
        vendors.append(b'%s,"models":[\n%s]}' % (head, models))
    return b'{"source":%s,"vendors":[\n%s]}\n' % (msgspec.json.encode(prices.source), b",\n".join(vendors))


if __name__ == "__main__":
    made = source.read()
    listed.FILE.write_bytes(text(made))
    print(f"{made.source}: {sum(len(vendor.models) for vendor in made.vendors)} models of {len(made.vendors)} vendors")
