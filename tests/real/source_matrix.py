"""The matrix of events of a source: what every real registry is put through.

A server is described by a subclass of `Server`: how it starts and stops, and how instances register
there. `Matrix(server, binary, folder).main()` starts it, instances, Outrigger and a load of 200
requests a second, changes things, and measures how long it takes until Outrigger's set shows each
change and how many requests fail meanwhile. What a server cannot do is left out (`None`).
Prints PASS and FAIL lines and, at the end, the observed figures as a Markdown table.
"""
import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.parse

import common
from common import CACHE, DOWN_S, HERE, call, free_port, seconds, until

RATE = 200


class Report(common.Report):
    def row(self, event, ours, count="", bad=""):
        self.rows.append([event, ours if isinstance(ours, str) else seconds(ours), str(count), str(bad)])

    def end(self):
        self.table()
        print(f"{self.passed} passed, {self.failed} failed", flush=True)
        sys.exit(1 if self.failed else 0)

    def table(self):
        print("\n| event | our set | requests | failed |\n|---|---|---|---|")
        for row in self.rows:
            print("| " + " | ".join(row) + " |")
        print(flush=True)


class Traffic(threading.Thread):
    """The instances and the load, in an event loop of their own."""

    def __init__(self, service):
        super().__init__(daemon=True)
        self.service = service
        self.proxy = None  # its port, once it runs
        self.loop = asyncio.new_event_loop()
        self.servers, self.writers = {}, {}
        self.done = []  # (when, status or error, address of the instance)
        self.stop = False
        self.start()

    def run(self):
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def do(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(10)

    def open(self, host="127.0.0.1", port=0):
        """An instance; its address is its answer."""
        return self.do(self._open(host, port))

    async def _open(self, host, port):
        async def serve(reader, writer):
            mine.add(writer)
            try:
                while await reader.readuntil(b"\r\n\r\n"):
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
            except (OSError, asyncio.IncompleteReadError):
                pass
            finally:
                mine.discard(writer)
                writer.close()

        mine = set()
        server = await asyncio.start_server(serve, host, port)
        address = "%s:%d" % server.sockets[0].getsockname()[:2]
        body = address.encode()
        self.servers[address], self.writers[address] = server, mine
        return address

    def crash(self, address):
        self.do(self._crash(address))

    async def _crash(self, address):
        self.servers.pop(address).close()
        for writer in list(self.writers.pop(address)):
            writer.transport.abort()

    def load(self):
        asyncio.run_coroutine_threadsafe(self._load(), self.loop)

    async def _load(self):
        queue = asyncio.Queue()
        workers = [asyncio.create_task(self._worker(queue)) for _ in range(32)]
        due = time.monotonic()
        while not self.stop:
            while due <= time.monotonic():
                queue.put_nowait(None)
                due += 1 / RATE
            await asyncio.sleep(0.004)
        for worker in workers:
            worker.cancel()

    async def _worker(self, queue):
        connection = None
        while True:
            await queue.get()
            try:
                if connection is None:
                    connection = await asyncio.open_connection("127.0.0.1", self.proxy)
                status, body = await asyncio.wait_for(self._request(*connection), 10)
                self.done.append((time.monotonic(), status, body.decode()))
            except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.TimeoutError) as error:
                self.done.append((time.monotonic(), repr(error), ""))
                if connection:
                    connection[1].close()
                connection = None

    async def _request(self, reader, writer):
        writer.write(f"GET / HTTP/1.1\r\nhost: {self.service}\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(l.split(":")[1]) for l in head.lower().split("\r\n") if l.startswith("content-length:"))
        return int(head.split()[1]), await reader.readexactly(length)

    def since(self, start):
        return [d for d in list(self.done) if d[0] >= start]

    def failures(self, start):
        done = self.since(start)
        return len(done), [d for d in done if d[1] != 200]

    def shares(self, seconds_long):
        start = time.monotonic()
        time.sleep(seconds_long)
        done = self.since(start)
        return {a: sum(d[2] == a for d in done) / max(1, len(done)) for a in {d[2] for d in done if d[1] == 200}}


class Outrigger:
    """The binary with these registries and services, as YAML flow."""

    def __init__(self, binary, folder, registry, services):
        self.listen, self.admin = free_port(), free_port()
        self.log = os.path.join(folder, "outrigger.log")
        config = os.path.join(folder, "outrigger.yaml")
        with open(config, "w") as file:
            file.write(f"version: 1\nlisten: 127.0.0.1:{self.listen}\n")
            file.write(f"admin: {{listen: '127.0.0.1:{self.admin}'}}\n")
            file.write(f"telemetry: {{listen: '127.0.0.1:{free_port()}'}}\n")
            file.write(f"registries:\n  real: {registry}\nservices:\n")
            for name, keys in services.items():
                file.write(f"  {json.dumps(name)}: {keys}\n")
        out = open(self.log, "w")
        self.process = subprocess.Popen([binary, "run", "-c", config], stdout=out, stderr=subprocess.STDOUT)

    def api(self, path):
        status, body = call(self.admin, "GET", f"/api/v1/{path}")
        return json.loads(body) if status == 200 else None

    def upstream(self, service):
        empty = {"instances": [], "stale": None, "held": None}
        return self.api(f"upstreams/{urllib.parse.quote(service, safe='')}") or empty

    def instances(self, service):
        return {i["instance"]: i for i in self.upstream(service)["instances"]}

    def usable(self, service):
        return {address for address, i in self.instances(service).items() if i["state"] == "healthy"}

    def registry(self):
        return (self.api("registries") or {"registries": [{}]})["registries"][0]

    def memory_mib(self):
        with open(f"/proc/{self.process.pid}/status") as file:
            return next(int(l.split()[1]) for l in file if l.startswith("VmRSS")) / 1024

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(30)
        except subprocess.TimeoutExpired:
            return "none after 30 s"


class Server:
    """One real registry. Times are the longest a change may take to be seen by us."""

    name = "?"
    service = "orders"
    odd = None  # a second name with odd characters
    many = None  # a name for 1,000 instances
    change_s = 15  # a change
    reread_s = 60  # the longest pause between two reads
    forgets = False  # whether a restart empties it
    stale_s = 60  # until the set is stale while the server is down

    def __init__(self, folder):
        self.folder, self.port = folder, free_port()

    def registry(self):
        """`registries.real` of Outrigger."""
        raise NotImplementedError

    def services(self):
        """`services` of Outrigger: name to keys."""
        names = [self.service, self.odd, self.many]
        return {name: "{}" for name in names if name}

    def install(self):
        self.script("install.sh")

    def script(self, name, *arguments, check=True, **env):
        path = os.path.join(HERE, self.name, name)
        env = {**os.environ, f"{self.name.upper()}_PORT": str(self.port), **env}
        run = subprocess.run([path, *arguments], env=env, stdin=subprocess.DEVNULL)
        if check and run.returncode:
            raise RuntimeError(f"{name} ended with {run.returncode}")

    def start(self, fresh):
        self.script("start.sh", WIPE="1" if fresh else "0")

    def stop(self, kill):
        self.script("stop.sh", FORCE="1" if kill else "0")

    # What may be done to `service`; None: this registry has no such thing.
    def register(self, address, service=None):
        raise NotImplementedError

    def deregister(self, address, service=None):
        raise NotImplementedError

    set_weight = None  # (address, 0-100); 100 is the usual one, others have it
    set_enabled = None  # (address, bool)
    set_healthy = None  # (address, bool)
    crash = None  # (address): its process is gone; the registry finds out by itself
    crash_s = 60  # by then at the latest
    register_many = None  # (service, addresses)

    def end(self):
        """Whatever else runs."""


class Matrix:
    def __init__(self, server, binary, folder):
        self.server, self.binary, self.folder = server, binary, folder
        self.report = Report()
        self.proxy = None

    def part(self):
        """The whole matrix once; what it came to is in the report."""
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        before = self.report.failed
        try:
            self.server.install()
            self.go()
        except Exception as error:  # a step that cannot be done ends the run, and is a failure
            self.report.check(False, f"the run ended with {error!r}")
        finally:
            if self.proxy and self.proxy.process.poll() is None:
                self.proxy.process.kill()
            self.server.end()
            self.server.script("stop.sh", check=False, FORCE="1")
        if self.report.failed > before and self.proxy:
            print(f"--- last lines of {self.proxy.log}")
            with open(self.proxy.log) as file:
                sys.stdout.writelines(l for l in file.readlines()[-200:] if '"log":"access"' not in l)

    def main(self):
        self.part()
        self.report.end()

    def watch(self, what, change, shown, limit, settle=2.0):
        """Changes something, waits until our set shows it, counts what failed."""
        start = time.monotonic()
        change()
        asked = time.monotonic()  # of registries whose tools take their time
        took = until(shown, limit)
        time.sleep(settle)
        count, bad = self.traffic.failures(start)
        self.report.row(what, took, count, len(bad))
        note = f"{seconds(took)} after {asked - start:.2f} s, {len(bad)} of {count} requests failed"
        self.report.check(took is not None and not bad, what, note)
        if bad:
            print(f"     failures: {sorted({str(b[1:]) for b in bad})[:5]}")

    def go(self):
        server, check, name = self.server, self.report.check, self.server.service
        server.start(fresh=True)
        traffic = self.traffic = Traffic(name)
        self.all = a, b, c, d = [traffic.open() for _ in range(4)]
        for address in (a, b, c):
            server.register(address)
        start = time.monotonic()
        self.proxy = proxy = Outrigger(self.binary, self.folder, server.registry(), server.services())
        traffic.proxy = proxy.listen
        took = until(lambda: proxy.usable(name) == {a, b, c}, server.change_s + 15)
        self.report.row("Outrigger starts, instances are there", took)
        if not check(took is not None, "the first set", f"{seconds(took)} {proxy.usable(name)}"):
            return
        traffic.load()
        time.sleep(2)
        count, bad = traffic.failures(start)
        check(not bad and count > 200, "the load runs", f"{count} requests, {len(bad)} failed")

        for _ in range(2):
            self.watch("register", lambda: server.register(d), lambda: d in proxy.usable(name), server.change_s)
            share = traffic.shares(2).get(d, 0)
            check(share > 0.1, "the new instance takes requests", f"{share:.0%}")
            self.watch("deregister, the instance serves on", lambda: server.deregister(d),
                       lambda: d not in proxy.instances(name), server.change_s)
            check(d not in traffic.shares(1), "the one that left takes none")
        self.weights(a)
        if server.set_enabled:
            self.watch("disable", lambda: server.set_enabled(b, False), lambda: b not in proxy.usable(name), server.change_s)
            check(b not in traffic.shares(1), "the disabled one takes none")
            self.watch("enable", lambda: server.set_enabled(b, True), lambda: b in proxy.usable(name), server.change_s)
        if server.set_healthy:
            self.watch("health: down", lambda: server.set_healthy(b, False), lambda: b not in proxy.usable(name), server.change_s)
            check(b not in traffic.shares(1), "the one that is down takes none")
            self.watch("health: up", lambda: server.set_healthy(b, True), lambda: b in proxy.usable(name), server.change_s)
        self.crashes(c)
        self.restarts(a, b, c)
        self.outage(a, b, c)
        self.emptied(a, b, c)
        self.large_and_odd(a)
        traffic.stop = True
        time.sleep(0.2)
        check((code := proxy.end()) == 0, "Outrigger ends with code 0", f"{code}")

    def weights(self, a):
        server, name, check = self.server, self.server.service, self.report.check
        if not server.set_weight:
            return
        weight = lambda: self.proxy.instances(name).get(a, {}).get("weight")
        usual = weight()
        self.watch("weight x 5", lambda: server.set_weight(a, 500), lambda: weight() == 5 * usual, server.change_s)
        share = self.traffic.shares(4).get(a, 0)
        check(0.5 < share < 0.85, "its share follows: 5 of 7 is 71 %", f"{share:.0%}")
        self.watch("weight as before", lambda: server.set_weight(a, 100), lambda: weight() == usual, server.change_s)

    def crashes(self, c):
        server, name, proxy, check = self.server, self.server.service, self.proxy, self.report.check
        start = time.monotonic()

        def crash():
            if server.crash:
                server.crash(c)
            self.traffic.crash(c)

        self.watch("crash of an instance: out of rotation", crash, lambda: c not in proxy.usable(name), 10)
        if server.crash:
            took = until(lambda: c not in proxy.instances(name), server.crash_s)
            took = None if took is None else time.monotonic() - start
            count, bad = self.traffic.failures(start)
            self.report.row("... and gone from the set", took, count, len(bad))
            check(took is not None and not bad, "the crashed one is gone", f"{seconds(took)}, {len(bad)} of {count} failed")

        def back():
            host, port = c.rsplit(":", 1)
            self.traffic.open(host, int(port))
            if server.crash:
                server.register(c)

        # An ejected one waits for its probe, and its return is a ramp.
        self.watch("the crashed one is back", back, lambda: c in proxy.usable(name), server.change_s + 45)
        time.sleep(10)

    def restarts(self, a, b, c):
        """A clean restart, as for a new version."""
        server, name, proxy = self.server, self.server.service, self.proxy
        version = lambda: proxy.usable(name) == {a, b, c} and not proxy.registry().get("last_error")

        def restart():
            server.stop(kill=False)
            server.start(fresh=False)
            if server.forgets:
                for address in (a, b, c):
                    server.register(address)

        self.watch("server restart", restart, version, 90, settle=5)

    def outage(self, a, b, c):
        """The server is killed, away for a minute, and comes back."""
        server, name, proxy, check = self.server, self.server.service, self.proxy, self.report.check
        down = time.monotonic()
        server.stop(kill=True)
        took = until(lambda: proxy.registry().get("last_error"), server.reread_s + 20)
        check(took is not None, "killed: the error is shown", f"{seconds(took)}: {proxy.registry().get('last_error')}")
        took = until(lambda: proxy.upstream(name)["stale"], min(server.stale_s, DOWN_S))
        took = None if took is None else time.monotonic() - down
        # Where nothing is asked for minutes the outage may be over before.
        if server.stale_s <= DOWN_S:
            check(took is not None, "killed: the set is shown as stale", seconds(took))
        self.report.row("server killed: shown as stale", took)
        time.sleep(max(0.0, down + DOWN_S - time.monotonic()))
        check(proxy.usable(name) == {a, b, c}, f"{DOWN_S:.0f} s later the set is as it was")
        server.start(fresh=False)
        back = time.monotonic()
        if server.forgets:
            time.sleep(1)
            for address in (a, b, c):
                server.register(address)
        healed = lambda: not proxy.upstream(name)["stale"] and proxy.registry().get("up") and not proxy.upstream(name)["held"]
        # Where clients register anew one by one, a set in between may be smaller.
        took = until(lambda: healed() and proxy.usable(name) == {a, b, c}, 120)
        time.sleep(2)
        count, bad = self.traffic.failures(down)
        self.report.row(f"killed, {back - down:.0f} s away; up again after", took, count, len(bad))
        check(took is not None, "the registry is up again, the set is whole", seconds(took))
        check(not bad, "no request failed over all that", f"{len(bad)} of {count}")

    def emptied(self, a, b, c):
        """All leave: held for `empty_grace`, then believed."""
        server, name, proxy, check = self.server, self.server.service, self.proxy, self.report.check
        start = time.monotonic()
        for address in (a, b, c):
            server.deregister(address)
        held = until(lambda: proxy.upstream(name)["held"], server.change_s)
        check(held is not None and proxy.usable(name), "all leave: held", seconds(held))
        took = until(lambda: not proxy.instances(name), 100)
        emptied = time.monotonic()
        took = None if took is None else emptied - start
        count, bad = self.traffic.failures(start)
        bad = [f for f in bad if f[0] < emptied - 0.5]
        self.report.row("all leave: believed", took, count, len(bad))
        note = f"{seconds(took)}, {len(bad)} of {count} requests failed before"
        check(took is not None and took >= 30 and not bad, "all leave: believed in the end", note)
        status, _ = call(proxy.listen, "GET", "/", headers={"Host": name})
        check(status == 503, "then the answer is 503", f"{status}")
        start = time.monotonic()
        server.register(a)
        took = until(lambda: proxy.usable(name) == {a}, server.change_s)
        check(took is not None, "the first one that comes is taken without a hold", seconds(took))
        self.report.row("register into the empty set", took)

    def large_and_odd(self, a):
        server, proxy, check = self.server, self.proxy, self.report.check
        if server.register_many:
            before = proxy.memory_mib()
            many = {f"127.1.{n // 250}.{n % 250 + 1}:{20000 + n}" for n in range(1000)}
            many = set(server.register_many(server.many, sorted(many)))
            start = time.monotonic()
            took = until(lambda: len(proxy.instances(server.many)) == 1000, server.change_s + 60, every=0.1)
            self.report.row("1,000 instances of one service", took)
            check(set(proxy.instances(server.many)) == many, "1,000 instances",
                  f"{seconds(time.monotonic() - start)}, {proxy.memory_mib() - before:.1f} MiB more")
        if server.odd:
            server.register(a, server.odd)
            took = until(lambda: a in proxy.instances(server.odd), server.change_s)
            self.report.row(f"register under the name `{server.odd}`", took)
            check(took is not None, f"the odd name {server.odd}", seconds(took))
            status, _ = call(proxy.listen, "GET", "/", headers={"x-outrigger-upstream": server.odd, "Host": "x"})
            check(status == 200, "it is called by its name", f"{status}")
