"""The source `kind: dns` of a running Outrigger against Knot DNS.

usage: dns_source.py OUTRIGGER_BINARY WORK_FOLDER

The events are those of source_matrix.py, on SRV records with a TTL of 1 s; then what only the DNS can do.
About 4 minutes.
"""
import os
import subprocess
import sys
import time

import source_matrix as matrix
from source_matrix import call, seconds, until

ZONE = "outrigger.test"

UPDATE = """
import sys, dns.query, dns.update
port, name, lines = int(sys.argv[1]), sys.argv[2], sys.stdin.read().split("\\n")
change = dns.update.Update("outrigger.test.")
change.delete(name, "SRV")
for line in filter(None, lines):
    change.add(name, 1, "SRV", line)
answer = dns.query.tcp(change, "127.0.0.1", port=port, timeout=20)
sys.exit(answer.rcode())
"""


class Dns(matrix.Server):
    name = "dns"
    odd = "odd_1--x.y"
    many = "many"
    # Asked again each 5 s (min_ttl), with 10 % jitter; its tool takes some tenths of a second.
    change_s = 8
    reread_s = 6
    stale_s = 35

    def __init__(self, folder):
        super().__init__(folder)
        self.members = {}

    def registry(self):
        return f"{{kind: dns, servers: ['127.0.0.1:{self.port}']}}"

    def services(self):
        srv = {name: f"{{registry_name: {self.record(name)}.{ZONE}}}" for name in (self.service, self.odd, self.many)}
        more = {
            "big": f"{{registry_name: _http._tcp.big.{ZONE}}}",
            "addresses": f"{{registry_name: 'many.{ZONE}:8080'}}",
            "alias": f"{{registry_name: 'alias.{ZONE}:8080'}}",
            "broken": "{registry_name: 'x.broken.test:8080'}",
            # Of two tiers of two: who finds the first one dead has a third try.
            "failover": f"{{registry_name: {self.record('failover')}.{ZONE}, retry: {{max_attempts: 3}}, "
                     "health_check: {tcp: true, interval: 500ms, timeout: 500ms}}",
        }
        return {**srv, **more}

    def record(self, service):
        return "_http._tcp." + service

    def publish(self, service):
        members = self.members.get(service, {})
        if members:
            records = [f"0 {weight} {address.rsplit(':', 1)[1]} here" for address, weight in members.items()]
            self.script("zone.sh", "set", self.record(service), "1", "SRV", *records)
        else:
            self.script("zone.sh", "unset", self.record(service), "SRV")

    def start(self, fresh):
        super().start(fresh)
        if fresh:
            self.script("zone.sh", "set", "here", "60", "A", "127.0.0.1")

    def register(self, address, service=None):
        service = service or self.service
        self.members.setdefault(service, {})[address] = 10
        self.publish(service)

    def deregister(self, address, service=None):
        service = service or self.service
        self.members[service].pop(address)
        self.publish(service)

    def set_weight(self, address, percent):
        self.members[self.service][address] = percent // 10
        self.publish(self.service)

    def register_many(self, service, addresses):
        ports = [address.rsplit(":", 1)[1] for address in addresses]
        home = os.path.join(matrix.CACHE, "dns", "venv", "bin", "python")
        lines = "\n".join(f"0 10 {port} here" for port in ports)
        subprocess.run([home, "-c", UPDATE, str(self.port), self.record(service)], input=lines, text=True, check=True)
        return [f"127.0.0.1:{port}" for port in ports]


class Run(matrix.Matrix):
    def large_and_odd(self, a):
        super().large_and_odd(a)
        server, proxy, check, report = self.server, self.proxy, self.report.check, self.report
        check(len(proxy.instances("big")) == 60, "60 SRV records, truncated by UDP, come by TCP")
        check(len(proxy.instances("addresses")) == 60, "60 A records are 60 instances")
        check(len(proxy.instances("alias")) == 1, "an alias is followed")
        error = proxy.upstream("broken").get("error")
        check(not proxy.instances("broken") and error, "SERVFAIL at the start: no set, the error is shown", f"{error}")

        name = server.service
        for what, begin, end in (("SERVFAIL", "servfail", "restore"), ("no answers at all", "freeze", "thaw")):
            start = time.monotonic()
            server.script("zone.sh", begin)
            took = until(lambda: proxy.upstream(name)["stale"], server.stale_s)
            report.row(f"{what}: shown as stale", took)
            check(took is not None and proxy.usable(name) == {a}, f"{what}: stale, the set stays", seconds(took))
            server.script("zone.sh", end)
            took = until(lambda: proxy.upstream(name)["stale"] is False, 70)
            count, bad = self.traffic.failures(start)
            report.row(f"{what} is over: not stale", took, count, len(bad))
            check(took is not None and not bad, f"{what} is over", f"{seconds(took)}, {len(bad)} of {count} failed")
        self.tiers()

    def tiers(self):
        """Records of two priorities: the second tier serves while the first one is dead, and only then."""
        server, proxy, check, traffic = self.server, self.proxy, self.report.check, self.traffic
        first, second = {traffic.open(), traffic.open()}, {traffic.open(), traffic.open()}

        def publish(*tiers):
            ports = [(priority, address.rsplit(":", 1)[1]) for priority, tier in tiers for address in sorted(tier)]
            records = [f"{priority} 10 {port} here" for priority, port in ports]
            server.script("zone.sh", "set", server.record("failover"), "1", "SRV", *records)

        def answers(count=20):
            done = [call(proxy.listen, "GET", "/", headers={"x-outrigger-upstream": "failover", "Host": "x"}) for _ in range(count)]
            seen.extend(done)
            return {body.decode() for status, body in done if status == 200}

        seen = []
        publish((10, first), (20, second))
        took = until(lambda: len(proxy.usable("failover")) == 4, server.change_s)
        check(took is not None and answers(40) == first, "SRV: the first tier takes all", seconds(took))
        for address in first:
            traffic.crash(address)
        took = until(lambda: answers() == second, 10)
        self.report.row("the first tier dies: the second takes all", took, len(seen), failed(seen))
        check(took is not None and not failed(seen), "SRV: the second tier stands in, nothing failed", seconds(took))
        seen.clear()
        for address in first:
            host, port = address.rsplit(":", 1)
            traffic.open(host, int(port))
        # Those that were ejected meanwhile wait for their probe.
        took = until(lambda: answers() == first, 90)
        self.report.row("the first tier is back and takes all", took, len(seen), failed(seen))
        check(took is not None and not failed(seen), "SRV: the first tier takes all again", seconds(took))
        publish((20, second))
        took = until(lambda: answers() == second, server.change_s)
        check(took is not None, "SRV: the tier that is left takes all", seconds(took))


def failed(answers):
    return sum(status != 200 for status, _ in answers)


if __name__ == "__main__":
    Run(Dns(sys.argv[2]), sys.argv[1], sys.argv[2]).main()
