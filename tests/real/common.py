"""What the scripts beside this one share: free ports, calls, waiting, the report."""
import http.client
import os
import random
import socket
import time

HERE = os.path.dirname(os.path.abspath(__file__))
CACHE = os.environ.get("OUTRIGGER_REAL_HOME") or os.path.expanduser("~/.cache/outrigger-real")
# Seconds that a registry is away.
DOWN_S = float(os.environ.get("DOWN_S", "60"))
# Every limit is this many times as long: for machines that do other things meanwhile.
PATIENCE = float(os.environ.get("OUTRIGGER_REAL_PATIENCE", "1"))


def free_port(*offsets):
    """A port below the range of outgoing connections, with what a server derives from it."""
    while True:
        base = random.randrange(12000, 30000)
        held = []
        try:
            for offset in offsets or (0,):
                held.append(socket.socket())
                held[-1].bind(("127.0.0.1", base + offset))
            return base
        except OSError:
            continue
        finally:
            for s in held:
                s.close()


def call(port, method, path, timeout=5, headers=None, body=None):
    """Status and body; status 0 when nobody answers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        connection.request(method, path, headers=headers or {}, body=body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, b""
    finally:
        connection.close()


def until(condition, limit, every=0.02):
    """Seconds until the condition holds; None when it does not within the limit."""
    start = time.monotonic()
    while time.monotonic() - start < limit * PATIENCE:
        if condition():
            return time.monotonic() - start
        time.sleep(every)
    return None


def seconds(value):
    return "-" if value is None else f"{value:.2f} s" if value < 1 else f"{value:.1f} s"


class Report:
    """Counts and shows what held and what did not."""

    def __init__(self):
        self.failed = self.passed = 0
        self.rows = []

    def check(self, ok, what, note=""):
        self.passed += bool(ok)
        self.failed += not ok
        print(f"{'PASS' if ok else 'FAIL'} {what}{f' ({note})' if note else ''}", flush=True)
        return ok
