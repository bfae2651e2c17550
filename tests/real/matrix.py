"""What every source is put through against its real server: the events of a registry's life under a
load of 200 requests a second, how long until Outrigger's set shows each, and what failed meanwhile.

A registry is an object with: `name`; `settings(service)`, the YAML of its entry; `start(keep)` and `stop(force)` of
the server; `register(port)`, `deregister(port)`, `hosts()` (port -> anything true while the registry itself lists it
as usable). Optional, each left out of the matrix where it is missing: `weight(port, n)`, `disable(port)` and
`enable(port)`, `unhealthy(port)` and `healthy(port)`, `dies(port)` (what a registry learns by itself of a
dead instance), `many(n)` (n instances of the service `many`), `odd()` (registers under an odd name, returned).
Its figures: `LIMIT` seconds for a change, `CRASH` for the end of a dead one, `FORGETS` where a restart
loses all instances until they are registered again.
"""
import asyncio
import json
import os
import signal
import subprocess
import time

from nacos_source import DOWN_S, SERVICE, Report, Traffic, call, free_port, seconds, until

__all__ = ["Matrix", "call", "free_port", "seconds", "until"]


class Proxy:
    """Outrigger with one registry."""

    def __init__(self, binary, folder, registry, odd):
        self.listen, self.admin = free_port(), free_port()
        config = os.path.join(folder, "outrigger.yaml")
        lines = [f"  {SERVICE}: {{}}", "  many: {}"]
        if odd:
            lines.append(f"  odd: {{registry_name: {json.dumps(odd, ensure_ascii=False)}}}")
        services = "\n".join(lines)
        with open(config, "w") as file:
            file.write(f"""version: 1
listen: 127.0.0.1:{self.listen}
admin: {{listen: "127.0.0.1:{self.admin}"}}
telemetry: {{listen: "127.0.0.1:{free_port()}"}}
registries:
  real: {json.dumps(registry)}
services:
{services}
""")
        self.log = open(os.path.join(folder, "outrigger.log"), "w")
        self.process = subprocess.Popen([binary, "run", "-c", config], stdout=self.log, stderr=subprocess.STDOUT)

    def api(self, path):
        status, body = call(self.admin, "GET", f"/api/v1/{path}")
        return json.loads(body) if status == 200 else None

    def upstream(self, name=SERVICE):
        return self.api(f"upstreams/{name}") or {"instances": [], "stale": None, "held": None}

    def instances(self, name=SERVICE):
        return {int(i["instance"].rsplit(":", 1)[1]): i for i in self.upstream(name)["instances"]}

    def usable(self, name=SERVICE):
        return {port for port, i in self.instances(name).items() if i["state"] == "healthy"}

    def registry(self):
        return (self.api("registries") or {"registries": [{}]})["registries"][0]


class Matrix:
    def __init__(self, registry, binary, folder):
        self.registry, self.binary, self.folder = registry, binary, folder
        self.report, self.proxy, self.traffic = Report(), None, Traffic()

    def run(self):
        """All of it; the number of failures."""
        try:
            self.go()
        finally:
            if self.proxy and self.proxy.process.poll() is None:
                self.proxy.process.kill()
            self.registry.stop(force=True)
        self.report.table()
        return self.report.failed

    def failures(self, start):
        done = self.traffic.since(start)
        return len(done), [d for d in done if d[1] != 200]

    def watch(self, what, change, theirs, ours, limit=None, settle=2.0):
        """Changes something and waits until the registry and then our set show it."""
        start, seen = time.monotonic(), {}
        change()
        changed = time.monotonic()

        def both():
            for name, shown in (("theirs", theirs), ("ours", ours)):
                if name not in seen and shown():
                    seen[name] = time.monotonic() - changed
            return "ours" in seen

        until(both, limit or self.registry.LIMIT, every=0.01)
        time.sleep(settle)
        count, bad = self.failures(start)
        took = seen.get("ours")
        shown = "-" if took is None else f"{took:.2f} s"
        theirs = seen.get("theirs")
        self.report.rows.append([what, "-" if theirs is None else f"{theirs:.2f} s", shown, str(count), str(len(bad))])
        self.report.check(took is not None and not bad, what, f"{shown}, {len(bad)} of {count} requests failed")
        if bad:
            print(f"     failures: {sorted({str(b[1:]) for b in bad})[:5]}")

    def share(self, port, long=2):
        start = time.monotonic()
        time.sleep(long)
        done = self.traffic.since(start)
        return sum(d[2] == str(port).encode() for d in done) / max(1, len(done))

    def go(self):
        registry, check, traffic = self.registry, self.report.check, self.traffic
        if not check(registry.start(keep=False), "the server starts"):
            return
        traffic.start()
        a, b, c, d = (traffic.do(traffic.open()) for _ in range(4))
        for port in (a, b, c):
            registry.register(port)
        odd = registry.odd() if hasattr(registry, "odd") else None
        started = time.monotonic()
        proxy = self.proxy = Proxy(self.binary, self.folder, registry.settings(), odd)
        traffic.proxy = proxy.listen
        took = until(lambda: proxy.usable() == {a, b, c}, 20, every=0.01)
        check(took is not None, "the first set is there after the start", seconds(time.monotonic() - started))
        asyncio.run_coroutine_threadsafe(traffic.load(), traffic.loop)
        time.sleep(2)
        count, bad = self.failures(0)
        check(not bad and count > 200, "the load runs", f"{count} requests, {len(bad)} failed")
        if odd:
            check(until(lambda: proxy.usable("odd"), 10) is not None, f"a service named `{odd}`")
        self.changes(a, b, d)
        self.crash(a, b, c)
        if hasattr(registry, "many"):
            self.thousand()
        self.restart(a, b, c)
        self.outage(a, b, c)
        self.emptied(a, b, c)
        traffic.stop = True
        proxy.process.send_signal(signal.SIGTERM)
        try:
            code = proxy.process.wait(30)
        except subprocess.TimeoutExpired:
            code = "none after 30 s"
        check(code == 0, "Outrigger ends with code 0", f"{code}")

    def changes(self, a, b, d):
        registry, check, proxy = self.registry, self.report.check, self.proxy
        hosts = registry.hosts
        for _ in range(2):
            self.watch("register", lambda: registry.register(d), lambda: d in hosts(), lambda: d in proxy.usable())
            share = self.share(d)
            check(share > 0.05, "the new instance takes requests", f"{share:.0%}")
            self.watch("deregister", lambda: registry.deregister(d), lambda: d not in hosts(), lambda: d not in proxy.instances())
            check(self.share(d, 1) == 0, "the one that left takes none")
        if hasattr(registry, "weight"):
            weight = lambda: proxy.instances().get(a, {}).get("weight")
            self.watch("weight 1 to 5", lambda: registry.weight(a, 5), lambda: True, lambda: weight() == 5)
            share = self.share(a, 4)
            check(0.5 < share < 0.85, "its share follows: 5 of 7 is 71 %", f"{share:.0%}")
            self.watch("weight 5 to 1", lambda: registry.weight(a, 1), lambda: True, lambda: weight() == 1)
        for out, back in (("disable", "enable"), ("unhealthy", "healthy")):
            if not hasattr(registry, out):
                continue
            self.watch(out, lambda: getattr(registry, out)(b), lambda: b not in hosts(), lambda: b not in proxy.usable())
            check(self.share(b, 1) == 0, f"{out}: it takes none")
            self.watch(back, lambda: getattr(registry, back)(b), lambda: b in hosts(), lambda: b in proxy.usable())

    def crash(self, a, b, c):
        registry, traffic, proxy = self.registry, self.traffic, self.proxy

        def dies():
            traffic.do(traffic.crash(c))
            if hasattr(registry, "dies"):
                registry.dies(c)

        self.watch("crash: out of rotation", dies, lambda: c not in registry.hosts(), lambda: c not in proxy.usable(), settle=1)

        def again():
            traffic.do(traffic.open(c))
            registry.register(c)

        self.watch("crash: registered again", again, lambda: c in registry.hosts(), lambda: c in proxy.usable(), 60)
        time.sleep(12)  # its return is a ramp

    def thousand(self):
        registry, proxy = self.registry, self.proxy
        self.watch("1,000 instances", lambda: registry.many(1000), lambda: True,
                   lambda: len(proxy.upstream("many")["instances"]) == 1000, 60)

    def restart(self, a, b, c):
        registry, proxy, check = self.registry, self.proxy, self.report.check
        started = time.monotonic()
        registry.stop(force=False)
        check(registry.start(keep=True), "the server is restarted")
        for port in (a, b, c) if getattr(registry, "FORGETS", False) else ():
            registry.register(port)
        self.settled(started, "restart", {a, b, c})

    def settled(self, started, what, ports):
        """The registry answers again, a change comes through, nothing failed."""
        registry, proxy, check, traffic = self.registry, self.proxy, self.report.check, self.traffic
        back = time.monotonic()
        up = until(lambda: proxy.registry().get("up") and not proxy.upstream()["stale"], 90)
        new = traffic.do(traffic.open())
        registry.register(new)
        shown = until(lambda: new in proxy.usable(), 90)
        total = time.monotonic() - back
        count, bad = self.failures(started)
        self.report.rows.append([f"{what}: first change after it", seconds(up), seconds(total), str(count), str(len(bad))])
        check(shown is not None and ports < proxy.usable() and not bad, f"{what}: a change comes through",
              f"{seconds(total)} after the server was back, {len(bad)} of {count} requests failed")
        registry.deregister(new)
        check(until(lambda: new not in proxy.instances(), 60) is not None, f"{what}: and so does the next")

    def outage(self, a, b, c):
        registry, proxy, check = self.registry, self.proxy, self.report.check
        down = time.monotonic()
        registry.stop(force=True)
        took = until(lambda: not proxy.registry().get("up", True), 200)
        check(took is not None, "killed: the registry is shown as not up", seconds(took))
        took = until(lambda: proxy.upstream()["stale"], 240)
        took = None if took is None else time.monotonic() - down
        check(took is not None, "killed: the set is shown as stale", seconds(took))
        self.report.rows.append(["killed: shown as stale", "-", seconds(took), "", ""])
        time.sleep(max(0.0, down + DOWN_S - time.monotonic()))
        check(proxy.usable() == {a, b, c}, f"{time.monotonic() - down:.0f} s later the set is as it was")
        check(registry.start(keep=True), "the server is back")
        for port in (a, b, c) if getattr(registry, "FORGETS", False) else ():
            registry.register(port)
        self.settled(down, f"killed, {DOWN_S:.0f} s away", {a, b, c})

    def emptied(self, a, b, c):
        registry, proxy, check = self.registry, self.proxy, self.report.check
        start = time.monotonic()
        for port in (a, b, c):
            registry.deregister(port)
        held = []

        def empty():
            now = proxy.upstream()
            if now["held"]:
                held.append(now["held"])
            return not now["instances"]

        took = until(empty, 75, every=0.01)
        took = None if took is None else time.monotonic() - start
        bad = [d for d in self.traffic.since(start) if d[1] != 200 and took and d[0] < start + took - 0.1]
        self.report.rows.append(["all deregister: believed", "-", seconds(took), "", f"{len(bad)} until then"])
        check(took is not None and not bad, "an empty set is believed in the end",
              f"{seconds(took)}, {'held at first' if held else 'at once'}")
        self.watch_empty(a)

    def watch_empty(self, a):
        start = time.monotonic()
        self.registry.register(a)
        took = until(lambda: a in self.proxy.usable(), 60)
        self.report.rows.append(["register into the empty set", "-", seconds(took), "", ""])
        self.report.check(took is not None, "register into the empty set", seconds(time.monotonic() - start))
