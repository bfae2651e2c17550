"""The source `kind: zookeeper` of a running Outrigger against ZooKeeper.

usage: zookeeper_source.py OUTRIGGER_BINARY WORK_FOLDER

The events are those of source_matrix.py, with nodes as Dubbo writes them, each in a session of its own: one
service at interface level, one at application level. About 6 minutes.
"""
import json
import os
import subprocess
import sys
import time
import urllib.parse

import source_matrix as matrix
from source_matrix import until

# One process is one Dubbo application: it holds one session and its ephemeral nodes, and does what
# it is told by lines. Killed, it is gone as a crashed JVM is.
PEER = """
import json, logging, sys
from kazoo.client import KazooClient
logging.disable(logging.CRITICAL)
again = {"max_tries": -1, "delay": 0.1, "max_delay": 1}
client = KazooClient(sys.argv[1], timeout=6, connection_retry=again)
client.start(20)
for line in sys.stdin:
    verb, path, data = json.loads(line)
    if verb == "create":
        client.create(path, data.encode(), ephemeral=True, makepath=True)
    elif verb == "many":
        for batch in range(0, len(path), 100):
            made = [client.create_async(p, b"", ephemeral=True, makepath=True) for p in path[batch:batch + 100]]
            [m.get(30) for m in made]
    elif verb == "set":
        client.set(path, data.encode())
    elif verb == "delete":
        client.delete(path)
    print("ok", flush=True)
client.stop()
"""


class Peer:
    def __init__(self, port):
        home = os.path.join(matrix.CACHE, "zookeeper", "venv", "bin", "python")
        command = [home, "-c", PEER, f"127.0.0.1:{port}"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def do(self, verb, path, data=""):
        self.process.stdin.write(json.dumps([verb, path, data]) + "\n")
        self.process.stdin.flush()
        if self.process.stdout.readline() != "ok\n":
            raise RuntimeError(f"{verb} {path} failed")

    def kill(self):
        self.process.kill()
        self.process.wait()


class Zookeeper(matrix.Server):
    name = "zookeeper"
    odd = "com.acme.Odd$Inner_1"
    many = "com.acme.Many"
    change_s = 5
    reread_s = 60
    # Asked again at once when the connection is lost, but old only after three periods of a minute.
    stale_s = 200
    # The session of 6 s, rounded up to a tick, and a little.
    crash_s = 15

    def __init__(self, folder, application):
        super().__init__(folder)
        self.application = application
        self.service = "orders" if application else "com.acme.OrderService"
        self.peers, self.started = {}, int(time.time() * 1000) - 3600_000

    def registry(self):
        return f"{{kind: zookeeper, servers: ['127.0.0.1:{self.port}'], session_timeout: 10s}}"

    def node(self, service, address, weight=100):
        if self.application and service == self.service:
            return f"/services/{service}/{address}"
        url = f"rest://{address}/{service}?interface={service}&side=provider&timestamp={self.started}&weight={weight}"
        return f"/dubbo/{urllib.parse.quote_plus(service)}/providers/{urllib.parse.quote_plus(url)}"

    def instance(self, address, weight=100):
        host, port = address.rsplit(":", 1)
        metadata = {
            "dubbo.endpoints": json.dumps([{"port": int(port), "protocol": "rest"}]),
            "dubbo.metadata.revision": "1",
            "timestamp": str(self.started),
            "weight": str(weight),
        }
        payload = {"@class": "org.apache.dubbo.registry.zookeeper.ZookeeperInstance", "id": address, "name": self.service, "metadata": metadata}
        return json.dumps({"name": self.service, "id": address, "address": host, "port": int(port), "payload": payload})

    def register(self, address, service=None):
        peer = self.peers.setdefault(address, None) or Peer(self.port)
        self.peers[address] = peer
        peer.do("create", self.node(service or self.service, address), self.instance(address))

    def deregister(self, address, service=None):
        self.peers[address].do("delete", self.node(service or self.service, address))

    def crash(self, address):
        self.peers.pop(address).kill()

    def set_weight(self, address, percent):
        peer = self.peers[address]
        if self.application:
            peer.do("set", self.node(self.service, address), self.instance(address, percent))
            return
        # Dubbo has no way to change a URL; an operator's override does.
        self.override(address, f"weight={percent}", percent != 100)

    def set_enabled(self, address, enabled):
        self.override(address, "disabled=true", not enabled)

    def override(self, address, what, on):
        url = f"override://{address}/{self.service}?category=configurators&dynamic=false&{what}"
        path = f"/dubbo/{self.service}/configurators/{urllib.parse.quote_plus(url)}"
        # Either it is there now, or the one that is (whatever its value) goes.
        if on:
            self.last_override = path
            self.peers[address].do("create", path)
        else:
            self.peers[address].do("delete", self.last_override)

    def register_many(self, service, addresses):
        paths = [self.node(service, address) for address in addresses]
        self.peers["many"] = Peer(self.port)
        self.peers["many"].do("many", paths)
        return addresses

    def end(self):
        for peer in self.peers.values():
            peer.kill()


class Stock(matrix.Matrix):
    """A stock Dubbo provider, registered at both levels, one port for `dubbo` and `tri`."""

    interface, application = "outrigger.real.DemoService", "demo-provider"

    def dubbo(self, name, **env):
        env = {
            **os.environ, "DUBBO_PORT": str(self.dubbo_port), "REGISTRY": f"zookeeper://127.0.0.1:{self.server.port}",
            "EXT_PROTOCOL": "tri", "SHUTDOWN_WAIT_MS": "3000", **env,
        }
        run = subprocess.run([os.path.join(matrix.HERE, "dubbo-java", name)], env=env, stdin=subprocess.DEVNULL)
        return run.returncode == 0

    def go(self):
        server, check, report = self.server, self.report.check, self.report
        self.dubbo_port = matrix.free_port()
        address = f"127.0.0.1:{self.dubbo_port}"
        self.dubbo("install.sh")
        server.start(fresh=True)
        services = {self.interface: "{}", self.application: "{}"}
        self.proxy = proxy = matrix.Outrigger(self.binary, self.folder, server.registry(), services)
        until(lambda: proxy.registry().get("up"), 10)
        shown = lambda: all(address in proxy.usable(name) for name in services)
        gone = lambda: not any(address in proxy.instances(name) for name in services)
        if not check(self.dubbo("start.sh"), "the provider starts"):
            return
        took = until(shown, 10)
        report.row("a stock provider registers (shown after its READY)", took)
        check(took is not None, "both levels show the provider", matrix.seconds(took))
        headers = {"Host": self.interface, "content-type": "application/json"}
        status, body = matrix.call(proxy.listen, "POST", f"/{self.interface}/echo", headers=headers, body='["hello"]')
        check(status == 200 and b"hello" in body, "it is called by Triple through the proxy", f"{status} {body[:60]}")
        self.dubbo("stop.sh", NOWAIT="1")
        # It was the only one: an empty answer is held first.
        held = until(lambda: all(proxy.upstream(name)["held"] for name in services), 20)
        report.row("the provider ends (TERM): held", held)
        check(held is not None, "TERM: its leaving is seen at both levels, and held", matrix.seconds(held))
        took = until(gone, 60)
        report.row("... and believed", took)
        check(took is not None, "its leaving is believed", matrix.seconds(took))

    def part(self):
        try:
            super().part()
        finally:
            self.dubbo("stop.sh", FORCE="1")


def main():
    binary, folder = sys.argv[1], sys.argv[2]
    report = matrix.Report()
    for application in (False, True):
        title = "application level" if application else "interface level"
        print(f"== {title}", flush=True)
        report.rows.append([f"**{title}**", "", "", ""])
        server = Zookeeper(folder, application)
        if application:
            server.set_enabled = None  # an instance of an application has no configurators
        run = matrix.Matrix(server, binary, folder)
        run.report = report
        run.part()
    print("== a stock Dubbo provider", flush=True)
    report.rows.append(["**a stock Dubbo provider**", "", "", ""])
    run = Stock(Zookeeper(folder, False), binary, folder)
    run.report = report
    run.part()
    report.end()


if __name__ == "__main__":
    main()
