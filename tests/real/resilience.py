"""What circuit breakers, bulkheads and time limits promise, measured on the built binary and loopback.

    python3 tests/real/resilience.py [--binary target/release/outrigger] PART [OPTIONS]

Parts, each a sub-command with a --help of its own:

    isolation   one upstream, two routes with bulkheads of 90 (articles) and 30 (subscribers): the latency of
                subscribers while articles hang in all their 90 places, against the same without them, in
                alternating rounds of one run. Ends with 1 when the goal is missed.

A new part is a function `NAME(run, args)` with its options, entered in PARTS. It uses `Outrigger` (the
process, its metrics, its events) and `Upstream` (an instance in a process of its own).
"""
import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


# --- the process under test -------------------------------------------------------------------------------------

class Outrigger:
    """`outrigger run` with a configuration; addresses are those of its `listening` events."""

    def __init__(self, binary, services, more=""):
        self.folder = tempfile.TemporaryDirectory()
        path = os.path.join(self.folder.name, "outrigger.yaml")
        with open(path, "w") as file:
            file.write(
                'version: 1\nlisten: "127.0.0.1:0"\nadmin: {listen: "127.0.0.1:0"}\n'
                'telemetry:\n  listen: "127.0.0.1:0"\n  access_log: {mode: none}\n'
                f"{more}services:\n{services}")
        self.process = subprocess.Popen(
            [binary, "run", "-c", path], cwd=self.folder.name, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.events, self.addresses = [], {}
        threading.Thread(target=self._read, daemon=True).start()
        wait_for("the listeners", lambda: {"data", "telemetry"} <= self.addresses.keys())

    def _read(self):
        for line in self.process.stdout:
            event = json.loads(line)
            self.events.append(event)
            if event.get("event") == "listening":
                host, port = event["address"].rsplit(":", 1)
                self.addresses[event["listener"]] = (host, int(port))

    @property
    def data(self):
        return self.addresses["data"]

    def metric(self, family, *labels):
        """The sum of the samples of a family whose labels hold all of `labels`."""
        host, port = self.addresses["telemetry"]
        with urllib.request.urlopen(f"http://{host}:{port}/metrics?family={family}", timeout=10) as answer:
            text = answer.read().decode()
        lines = [l for l in text.splitlines() if l.startswith((family + "{", family + " "))]
        return sum(float(l.rsplit(" ", 1)[1]) for l in lines if all(label in l for label in labels))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.folder.cleanup()


class Upstream:
    """An instance in a process of its own. `serve(path)` says after how many seconds a path is answered;
    None: never, it hangs until its client leaves."""

    def __init__(self, serve):
        listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.address = listener.getsockname()
        self.process = multiprocessing.Process(target=_serve, args=(listener, serve), daemon=True)
        self.process.start()
        listener.close()

    def stop(self):
        self.process.terminate()
        self.process.join()


def _serve(listener, serve):
    import asyncio

    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"

    async def connection(reader, writer):
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                delay = serve(head.split(b" ", 2)[1].decode())
                if delay is None:
                    await reader.read()
                    break
                if delay:
                    await asyncio.sleep(delay)
                writer.write(answer)
                await writer.drain()
        writer.close()

    async def main():
        server = await asyncio.start_server(connection, sock=listener)
        await server.serve_forever()

    asyncio.run(main())


class Client:
    """One keep-alive connection of an app, without anything between the request and the clock."""

    def __init__(self, address):
        self.socket = socket.create_connection(address, timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, path):
        self.socket.sendall(f"GET {path} HTTP/1.1\r\nHost: shop\r\n\r\n".encode())

    def get(self, path):
        """Status, reason word and seconds."""
        begun = time.perf_counter()
        self.send(path)
        data = b""
        while b"\r\n\r\n" not in data:
            data += self._more()
        head, body = data.split(b"\r\n\r\n", 1)
        lines = head.decode().split("\r\n")
        headers = {k.lower(): v.strip() for k, v in (line.split(":", 1) for line in lines[1:])}
        while len(body) < int(headers.get("content-length", 0)):
            body += self._more()
        took = time.perf_counter() - begun
        return int(lines[0].split()[1]), headers.get("x-outrigger-reason"), took

    def _more(self):
        data = self.socket.recv(65536)
        if not data:
            raise ConnectionError("the proxy closed")
        return data

    def close(self):
        self.socket.close()


def wait_for(what, condition, limit=30):
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"never seen: {what}")
        time.sleep(0.01)


def quantile(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))]


# --- isolation --------------------------------------------------------------------------------------------------

ARTICLES, SUBSCRIBERS = 90, 30


def isolation(binary, args):
    service = args.service_ms / 1000
    upstream = Upstream(lambda path: None if path.startswith("/articles") else service)
    host, port = upstream.address
    proxy = Outrigger(
        binary,
        f'  shop:\n    endpoints: ["{host}:{port}"]\n    routes:\n'
        f"      - {{name: articles, match: {{path_prefix: /articles}}, bulkhead: {{max_concurrent_calls: {ARTICLES}}}}}\n"
        f"      - {{name: subscribers, match: {{path_prefix: /subscribers}}, "
        f"bulkhead: {{max_concurrent_calls: {SUBSCRIBERS}}}}}\n")
    taken = lambda: proxy.metric("outrigger_bulkhead_in_use", 'route="articles"')
    results, refused, wrong = {"unloaded": [], "saturated": []}, [], 0
    try:
        for number in range(args.rounds):
            # Whatever else the machine does falls on both alike; the order changes too.
            order = ["unloaded", "saturated"] if number % 2 == 0 else ["saturated", "unloaded"]
            for name in order:
                held = []
                stop = threading.Event()
                thread = None
                if name == "saturated":
                    held = [Client(proxy.data) for _ in range(ARTICLES)]
                    for client in held:
                        client.send("/articles/1")
                    wait_for("all articles' places taken", lambda: taken() == ARTICLES)
                    thread = threading.Thread(target=_knock, args=(proxy.data, args.knocks, stop, refused))
                    thread.start()
                took, bad = _subscribers(proxy.data, args)
                results[name] += took
                wrong += bad
                stop.set()
                if thread:
                    thread.join()
                for client in held:
                    client.close()
                wait_for("all places back", lambda: taken() == 0)
    finally:
        proxy.stop()
        upstream.stop()
    ms = lambda values, part: quantile(values, part) * 1000
    print(f"isolation: {args.rounds} rounds each of {args.seconds} s, {args.clients} subscribers, an instance that "
          f"takes {args.service_ms} ms, {ARTICLES} hung articles and {args.knocks}/s more")
    print(f"{'':12}{'calls':>8}{'p50 ms':>10}{'p90 ms':>10}{'p99 ms':>10}{'max ms':>10}")
    for name, values in results.items():
        print(f"{name:12}{len(values):8}" + "".join(f"{ms(values, part):10.3f}" for part in (0.5, 0.9, 0.99, 1)))
    print(f"{'refused':12}{len(refused):8}" + "".join(f"{ms(refused, part):10.3f}" for part in (0.5, 0.9, 0.99, 1)))
    ratio = ms(results["saturated"], 0.99) / ms(results["unloaded"], 0.99)
    good = ratio <= args.goal and not wrong and refused
    print(f"p99 saturated / unloaded {ratio:.3f} (goal {args.goal}); subscribers not served {wrong}: "
          f"{'ok' if good else 'MISSED'}")
    return 0 if good else 1


def _knock(address, per_second, stop, refused):
    """Further articles: each must be refused at once."""
    client = Client(address)
    while not stop.wait(1 / per_second):
        status, reason, took = client.get("/articles/2")
        if (status, reason) != (503, "overflow"):
            raise SystemExit(f"an article too many got {status} {reason}")
        refused.append(took)
    client.close()


def _subscribers(address, args):
    with multiprocessing.Pool(args.clients) as pool:
        parts = pool.starmap(_subscriber, [(address, args.seconds)] * args.clients)
    return [t for took, _ in parts for t in took], sum(bad for _, bad in parts)


def _subscriber(address, seconds):
    client = Client(address)
    client.get("/subscribers/0")
    took, bad, end = [], 0, time.monotonic() + seconds
    while time.monotonic() < end:
        status, _, time_taken = client.get("/subscribers/1")
        took.append(time_taken)
        bad += status != 200
    client.close()
    return took, bad


def _isolation_options(parser):
    parser.add_argument("--rounds", type=int, default=10, help="of each kind")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a round")
    parser.add_argument("--clients", type=int, default=4, help="subscribers, one request at a time each")
    parser.add_argument("--service-ms", type=float, default=5.0, help="what the instance takes for a subscriber")
    parser.add_argument("--knocks", type=int, default=50, help="refused articles per second")
    parser.add_argument("--goal", type=float, default=1.2, help="p99 saturated / unloaded at most")


# --- parts ------------------------------------------------------------------------------------------------------

PARTS = {"isolation": (isolation, _isolation_options)}


def main():
    multiprocessing.set_start_method("fork")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=os.path.join(ROOT, "target/release/outrigger"))
    parts = parser.add_subparsers(dest="part", required=True)
    for name, (_, options) in PARTS.items():
        options(parts.add_parser(name))
    args = parser.parse_args()
    part, _ = PARTS[args.part]
    sys.exit(part(os.path.abspath(args.binary), args))


if __name__ == "__main__":
    main()
