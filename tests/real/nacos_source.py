"""The `kind: nacos` source of a running Outrigger against a real server of the Nacos family.

usage: nacos_source.py nacos|rnacos SERVER_PORT OUTRIGGER_BINARY WORK_FOLDER [http|grpc|auto]

The last word is the `protocol` of the source, http by default.

It starts the server on SERVER_PORT (start.sh beside this file), three instances, Outrigger and a load
of 200 requests a second, changes things in the registry as stock v1 clients do, and measures how long
it takes until Outrigger's set shows each change and how many requests fail meanwhile.
Prints PASS and FAIL lines and, at the end, the observed figures as a Markdown table. About 7 minutes.
"""
import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.parse

import common
from common import CACHE, DOWN_S, HERE, PATIENCE, call, free_port, seconds, until

SERVICE = "orders"
RATE = 200
BEAT_S = 5
# A poll comes 9 to 11 s after the last (cacheMillis 10000 +- 10 %); the server's list lags by up to
# 0.7 s, and the machine may be busy. By gRPC a change is pushed 0.5 s after it was made.
PROTOCOL = sys.argv[5] if len(sys.argv) > 5 else "http"
POLL_S = 15 if PROTOCOL == "http" else 6


class Report(common.Report):
    def table(self):
        print("\n| event | the registry's own list | our set | requests | failed |\n|---|---|---|---|---|")
        for row in self.rows:
            print("| " + " | ".join(row) + " |")
        print(flush=True)


class Traffic(threading.Thread):
    """The instances and the load, in an event loop of their own."""

    def __init__(self):
        super().__init__(daemon=True)
        self.proxy = None  # its port, once it runs
        self.loop = asyncio.new_event_loop()
        self.servers, self.writers = {}, {}
        self.done = []  # (when, status or error, port of the instance)
        self.stop = False

    def run(self):
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def do(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(10)

    async def open(self, port=0):
        async def serve(reader, writer):
            mine.add(writer)
            try:
                while await reader.readuntil(b"\r\n\r\n"):
                    body = str(port).encode()
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
            except (OSError, asyncio.IncompleteReadError):
                pass
            finally:
                mine.discard(writer)
                writer.close()

        mine = set()
        server = await asyncio.start_server(serve, "127.0.0.1", port)
        port = server.sockets[0].getsockname()[1]
        self.servers[port], self.writers[port] = server, mine
        return port

    async def crash(self, port):
        self.servers.pop(port).close()
        for writer in list(self.writers.pop(port)):
            writer.transport.abort()

    async def load(self):
        queue = asyncio.Queue()
        workers = [asyncio.create_task(self.worker(queue)) for _ in range(32)]
        due = time.monotonic()
        while not self.stop:
            while due <= time.monotonic():
                queue.put_nowait(None)
                due += 1 / RATE
            await asyncio.sleep(0.004)
        for worker in workers:
            worker.cancel()

    async def worker(self, queue):
        connection = None
        while True:
            await queue.get()
            try:
                if connection is None:
                    connection = await asyncio.open_connection("127.0.0.1", self.proxy)
                status, body = await asyncio.wait_for(self.request(*connection), 10)
                self.done.append((time.monotonic(), status, body))
            except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.TimeoutError) as error:
                self.done.append((time.monotonic(), repr(error), b""))
                if connection:
                    connection[1].close()
                connection = None

    async def request(self, reader, writer):
        writer.write(f"GET / HTTP/1.1\r\nhost: {SERVICE}\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(l.split(":")[1]) for l in head.lower().split("\r\n") if l.startswith("content-length:"))
        return int(head.split()[1]), await reader.readexactly(length)

    def since(self, start):
        return [d for d in list(self.done) if d[0] >= start]


class Client(threading.Thread):
    """Registers and beats as a v1 client does: light beats each 5 s, registering anew on 20404."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server = server
        self.mine = {}  # port -> when its next beat is due
        self.paused = set()
        self.silent = False

    def ask(self, method, path, **query):
        query = {"serviceName": f"DEFAULT_GROUP@@{SERVICE}", **query}
        return call(self.server, method, f"/nacos/v1/ns/{path}?{urllib.parse.urlencode(query)}")

    def at(self, port, method, path="instance", **more):
        return self.ask(method, path, ip="127.0.0.1", port=port, **more)

    def register(self, port):
        self.mine[port] = time.monotonic()
        return self.at(port, "POST")

    def deregister(self, port):
        self.mine.pop(port, None)
        return self.at(port, "DELETE")

    def listed(self):
        status, body = self.ask("GET", "instance/list", healthyOnly="false")
        return {h["port"]: h for h in json.loads(body)["hosts"]} if status == 200 else None

    def run(self):
        while True:
            time.sleep(0.2)
            for port, due in list(self.mine.items()):
                if self.silent or port in self.paused or due > time.monotonic():
                    continue
                status, body = self.at(port, "PUT", "instance/beat", clusterName="DEFAULT")
                if port not in self.mine:
                    self.at(port, "DELETE")
                    continue
                self.mine[port] = time.monotonic() + BEAT_S
                if status == 200 and json.loads(body).get("code") == 20404:
                    self.at(port, "POST")


class Outrigger:
    def __init__(self, binary, folder, server):
        self.listen, self.admin = free_port(), free_port()
        self.log = os.path.join(folder, "outrigger.log")
        config = os.path.join(folder, "outrigger.yaml")
        with open(config, "w") as file:
            file.write(f"""version: 1
listen: 127.0.0.1:{self.listen}
admin: {{listen: "127.0.0.1:{self.admin}"}}
telemetry: {{listen: "127.0.0.1:{free_port()}"}}
registries:
  nacos: {{kind: nacos, servers: ["127.0.0.1:{server}"], protocol: {PROTOCOL}}}
services:
  {SERVICE}: {{}}
""")
        self.process = subprocess.Popen([binary, "run", "-c", config], stdout=open(self.log, "w"), stderr=subprocess.STDOUT)

    def api(self, path):
        status, body = call(self.admin, "GET", f"/api/v1/{path}")
        return json.loads(body) if status == 200 else None

    def upstream(self):
        return self.api(f"upstreams/{SERVICE}") or {"instances": [], "selectable": 0, "stale": None, "held": None}

    def instances(self):
        return {int(i["instance"].rsplit(":", 1)[1]): i for i in self.upstream()["instances"]}

    def usable(self):
        return {port for port, i in self.instances().items() if i["state"] == "healthy"}

    def events(self, kind):
        return [e for e in (self.api("events?limit=1000") or {"events": []})["events"] if kind in json.dumps(e)]


class Run:
    def __init__(self, kind, server, binary, folder):
        self.kind, self.server, self.binary, self.folder = kind, server, binary, folder
        self.report = Report()
        self.proxy = None

    def silent_s(self):
        """Limit for what r-nacos does not push: the source asks again every minute."""
        return POLL_S if self.kind == "nacos" or PROTOCOL == "http" else 75

    def script(self, name, **env):
        prefix = "NACOS" if self.kind == "nacos" else "RNACOS"
        env = {**os.environ, f"{prefix}_PORT": str(self.server), **env}
        return subprocess.run([os.path.join(HERE, self.kind, name)], env=env, stdin=subprocess.DEVNULL)

    def stop_all(self):
        if self.proxy and self.proxy.process.poll() is None:
            self.proxy.process.kill()
        self.script("stop.sh", FORCE="1")
        shutil.rmtree(os.path.join(CACHE, self.kind, f"run-{self.server}"), ignore_errors=True)

    def failures(self, start):
        done = self.traffic.since(start)
        return len(done), [d for d in done if d[1] != 200]

    def watch(self, what, change, theirs, ours, limit, settle=2.0, may_fail=0):
        """Changes something, waits until the registry and then our set show it, counts what failed."""
        time.sleep(random.uniform(0, 5))  # at any point between two polls
        start = time.monotonic()
        change()
        seen = {}

        def both():
            for name, shown in (("theirs", theirs), ("ours", ours)):
                if name not in seen and shown():
                    seen[name] = time.monotonic() - start
            return "ours" in seen

        until(both, limit)
        time.sleep(settle)
        count, bad = self.failures(start)
        self.report.rows.append([what, seconds(seen.get("theirs")), seconds(seen.get("ours")), str(count), str(len(bad))])
        note = f"{seconds(seen.get('ours'))}, {len(bad)} of {count} requests failed"
        self.report.check("ours" in seen and len(bad) <= may_fail, what, note)
        if len(bad) > may_fail:
            print(f"     failures: {sorted({str(b[1:]) for b in bad})[:5]}")
        return start

    def shares(self, seconds_long):
        start = time.monotonic()
        time.sleep(seconds_long)
        done = self.traffic.since(start)
        return {int(p): sum(d[2] == p for d in done) / max(1, len(done)) for p in {d[2] for d in done if d[1] == 200}}

    def go(self):
        check = self.report.check
        if not check(self.script("start.sh", WIPE="1").returncode == 0, "the server starts"):
            return
        client = self.client = Client(self.server)
        client.start()
        traffic = self.traffic = Traffic()
        traffic.start()
        a, b, c, d = (traffic.do(traffic.open()) for _ in range(4))
        for port in (a, b, c):
            client.register(port)
        check(until(lambda: len(client.listed() or {}) == 3, 10) is not None, "three instances register")
        start = time.monotonic()
        self.proxy = proxy = Outrigger(self.binary, self.folder, self.server)
        traffic.proxy = proxy.listen
        until(lambda: proxy.usable() == {a, b, c}, 15, every=0.01)
        took = time.monotonic() - start
        self.report.rows.append(["Outrigger starts", "-", seconds(took), "", ""])
        check(took < 5 * PATIENCE, "the first set is there right after the start", seconds(took))
        asyncio.run_coroutine_threadsafe(traffic.load(), traffic.loop)
        time.sleep(3)
        count, bad = self.failures(0)
        check(not bad and count > 400, "the load runs", f"{count} requests, {len(bad)} failed")

        hosts = lambda: client.listed() or {}
        for _ in range(3):
            self.watch("register", lambda: client.register(d), lambda: d in hosts(), lambda: d in proxy.usable(), POLL_S)
            share = self.shares(2).get(d, 0)
            check(share > 0.1, "the new instance takes requests", f"{share:.0%}")
            self.watch("deregister", lambda: client.deregister(d), lambda: d not in hosts(), lambda: d not in proxy.instances(), POLL_S)
            check(d not in self.shares(1), "the one that left takes none")

        weight = lambda port: proxy.instances().get(port, {}).get("weight")
        self.watch("weight 1 to 5", lambda: client.at(a, "PUT", weight=5),
                   lambda: hosts().get(a, {}).get("weight") == 5, lambda: weight(a) == 5, POLL_S)
        share = self.shares(5).get(a, 0)
        check(0.5 < share < 0.85, "its share follows: 5 of 7 is 71 %", f"{share:.0%}")
        self.watch("weight 5 to 0", lambda: client.at(a, "PUT", weight=0),
                   lambda: hosts().get(a, {}).get("weight") == 0, lambda: a not in proxy.usable(), POLL_S)
        check(a not in self.shares(1), "weight 0 takes none")
        # r-nacos takes a weight of 1 for one that is not given.
        usual = 1 if self.kind == "nacos" else 2
        self.watch(f"weight 0 to {usual}", lambda: client.at(a, "PUT", weight=usual),
                   lambda: hosts().get(a, {}).get("weight") == usual, lambda: a in proxy.usable(), POLL_S)

        self.watch("disable", lambda: client.at(b, "PUT", enabled="false"),
                   lambda: b not in hosts(), lambda: b not in proxy.usable(), POLL_S)
        check(b not in self.shares(1), "the disabled one takes none")
        self.watch("enable", lambda: client.at(b, "PUT", enabled="true"),
                   lambda: b in hosts(), lambda: b in proxy.usable(), POLL_S)

        # The instance lives, its beats stop: flagged, not yet removed. Then they go on.
        self.watch("beats stop: unhealthy", lambda: client.paused.add(c),
                   lambda: not hosts().get(c, {"healthy": False})["healthy"], lambda: c not in proxy.usable(), 27 + POLL_S)
        self.watch("beats again: healthy", lambda: client.paused.discard(c),
                   lambda: hosts().get(c, {}).get("healthy"), lambda: c in proxy.usable(), self.silent_s())

        # The instance dies: its port is closed and its beats stop.
        def crash():
            client.mine.pop(c)
            traffic.do(traffic.crash(c))

        died = self.watch("crash: out of rotation", crash, lambda: not hosts().get(c, {"healthy": False})["healthy"],
                          lambda: c not in proxy.usable(), 27 + POLL_S, settle=1)
        gone = until(lambda: c not in proxy.instances(), 60)
        gone = None if gone is None else time.monotonic() - died
        count, bad = self.failures(died)
        self.report.rows.append(["crash: removed from the set", "-", seconds(gone), str(count), str(len(bad))])
        check(gone is not None and not bad, "crash: removed from the set", f"{seconds(gone)}, {len(bad)} of {count} requests failed")

        def again():
            traffic.do(traffic.open(c))
            client.register(c)

        self.watch("the crashed one is back", again, lambda: c in hosts(), lambda: c in proxy.usable(), self.silent_s())
        # Its return is a ramp.
        time.sleep(12)

        self.outage(a, b, c)
        self.emptied(a, b, c)
        for port in (a, b, c):
            client.mine.pop(port, None)
        traffic.stop = True
        time.sleep(0.2)
        proxy.process.send_signal(signal.SIGTERM)
        try:
            code = proxy.process.wait(30)
        except subprocess.TimeoutExpired:
            code = "none after 30 s"
        check(code == 0, "Outrigger ends with code 0", f"{code}")

    def outage(self, a, b, c):
        """The server is killed, away for a minute, and comes back without what clients had told it."""
        check, proxy, client, rows = self.report.check, self.proxy, self.client, self.report.rows
        registry = lambda: (proxy.api("registries") or {"registries": [{}]})["registries"][0]
        down = time.monotonic()
        self.script("stop.sh", FORCE="1")
        took = until(lambda: registry().get("last_error"), 25)
        check(took is not None, "killed: the error is shown", seconds(took))
        took = until(lambda: proxy.upstream()["stale"], 45)
        took = None if took is None else time.monotonic() - down
        check(took is not None, "killed: the set is shown as stale", seconds(took))
        rows.append(["server killed: shown as stale", "-", seconds(took), "", ""])
        check(not registry().get("up", True), "killed: the registry is shown as not up")
        time.sleep(max(0.0, down + DOWN_S - time.monotonic()))
        check(proxy.usable() == {a, b, c}, f"{DOWN_S:.0f} s later the set is as it was")

        # Clients stay silent, so that the empty list of the new server is what Outrigger reads first.
        client.silent = True
        ignored = len(proxy.events("registry_empty_ignored"))
        check(self.script("start.sh", KEEP_DATA="1").returncode == 0, "the server is back")
        back = time.monotonic()
        check(not client.listed(), "its list is empty")
        took = until(lambda: proxy.upstream()["stale"] is False, 70)
        check(took is not None, "no longer stale", f"{seconds(took)} after the server answered")
        rows.append(["server back: not stale", "-", seconds(took), "", ""])
        took = until(lambda: proxy.upstream()["held"], 15)
        check(took is not None, "the empty answer is held", str(proxy.upstream()["held"]))
        check(len(proxy.events("registry_empty_ignored")) > ignored, "event registry_empty_ignored")
        check(proxy.usable() == {a, b, c}, "the set is as it was")
        client.silent = False
        resumed = time.monotonic()
        until(lambda: len(client.listed() or {}) == 3, 15)
        listed = time.monotonic() - resumed
        took = until(lambda: proxy.upstream()["held"] is None, 25)
        took = None if took is None else time.monotonic() - resumed
        check(took is not None and proxy.usable() == {a, b, c}, "clients are back: nothing is held", seconds(took))
        count, bad = self.failures(down)
        rows.append([f"killed, {back - down:.0f} s away, clients back", seconds(listed), seconds(took), str(count), str(len(bad))])
        check(not bad, "no request failed over all that", f"{len(bad)} of {count}")

    def emptied(self, a, b, c):
        """All leave: held for `empty_grace`, then believed."""
        check, proxy, client = self.report.check, self.proxy, self.client
        start = time.monotonic()
        for port in (a, b, c):
            client.deregister(port)
        held = until(lambda: proxy.upstream()["held"], POLL_S)
        check(held is not None and proxy.usable() == {a, b, c}, "all deregister: held", seconds(held))
        took = until(lambda: not proxy.instances(), 60)
        took = None if took is None else time.monotonic() - start
        emptied = time.monotonic()
        count, bad = self.failures(start)
        bad = [f for f in bad if f[0] < emptied - 0.5]
        self.report.rows.append(["all deregister: believed", "-", seconds(took), str(count), str(len(bad))])
        check(took is not None and took >= 30 and not bad, "all deregister: believed in the end",
              f"{seconds(took)}, {len(bad)} of {count} requests failed before")
        status, _ = call(proxy.listen, "GET", "/", headers={"Host": SERVICE})
        check(status == 503, "then the answer is 503", f"{status}")
        start = time.monotonic()
        client.register(a)
        took = until(lambda: proxy.usable() == {a}, POLL_S)
        check(took is not None, "the first one that comes is taken without a hold", seconds(took))
        self.report.rows.append(["register into the empty set", "-", seconds(took), "", ""])


def main():
    kind, server, binary, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    run = Run(kind, server, binary, folder)
    try:
        run.go()
    except Exception as error:  # a step that cannot be done ends the run, and is a failure
        run.report.check(False, f"the run ended with {error!r}")
    finally:
        run.stop_all()
    run.report.table()
    if run.report.failed and run.proxy:
        print(f"--- last lines of {run.proxy.log}")
        with open(run.proxy.log) as file:
            sys.stdout.writelines(file.readlines()[-25:])
    print(f"{run.report.passed} passed, {run.report.failed} failed", flush=True)
    sys.exit(1 if run.report.failed else 0)


if __name__ == "__main__":
    main()
