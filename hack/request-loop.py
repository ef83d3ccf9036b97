#!/usr/bin/env python3
"""Sends one request after the other, each on a connection of its own, and writes a line for each to standard output:
seconds since the epoch, milliseconds that it took, and `ok` with the answer, or `lost` with the reason. A request is lost
when it is refused, cut off, answered with an error, or not answered within ten seconds. Ends when it is killed.

    hack/request-loop.py URL
"""

import sys
import time
import urllib.request

INTERVAL = 0.02
TIMEOUT = 10


def outcome(url):
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            return "ok " + answer.read().decode().strip()
    except Exception as error:  # whatever it is, this request was lost
        return f"lost {error}".replace("\n", " ")


def main():
    (url,) = sys.argv[1:]
    while True:
        began = time.time()
        result = outcome(url)
        print(f"{began:.3f} {(time.time() - began) * 1000:.0f} {result}", flush=True)
        time.sleep(INTERVAL)


main()
