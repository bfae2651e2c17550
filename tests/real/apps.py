"""Stock Spring services as they are, found and called through `localhost:15001`.

usage: apps.py OUTRIGGER_BINARY WORK_FOLDER

Three set-ups, each with two instances of a Spring service that registers itself:
  embedded  Spring Cloud Alibaba against the registry inside Outrigger (v1 HTTP and gRPC on port + 1000)
  nacos     Spring Cloud Alibaba against a Nacos server, Outrigger with `kind: nacos`
  eureka    a Spring Cloud Eureka client against a Spring Cloud server, Outrigger with `kind: eureka`
Each is called by Host and by path, one instance is killed and started again, the other is stopped as
an operator would, and no call may fail but those on the way to a killed instance before it is known.
"""
import json
import os
import signal
import subprocess
import sys

from common import CACHE, HERE, Report, call, free_port, seconds, until

BINARY, FOLDER = sys.argv[1], sys.argv[2]
LISTEN = 15001
SERVICE = "orders"


class App:
    """A Spring service in a process of its own."""

    def __init__(self, setup, registry):
        self.setup, self.registry, self.port, self.process = setup, registry, free_port(), None

    def start(self):
        env = {**os.environ, "PORT": str(self.port), "SERVICE": SERVICE}
        if self.setup == "eureka":
            jar = os.path.join(CACHE, "eureka-clients", "spring", "app.jar")
            env |= {"APP_PORT": str(self.port), "APP_NAME": SERVICE, "RENEW_SECS": "2", "LEASE_SECS": "6"}
            env |= {"EUREKA_URL": f"http://127.0.0.1:{self.registry}/eureka/", "REPLICATION_SECS": "2"}
        else:
            jar = os.path.join(CACHE, "nacos-clients", "spring", "peer.jar")
            env |= {"NACOS_SERVER": f"127.0.0.1:{self.registry}"}
        scratch = os.path.join(FOLDER, f"{self.setup}-{self.port}")
        os.makedirs(scratch, exist_ok=True)
        flags = ["-Xmx192m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Duser.home={scratch}"]
        log = open(os.path.join(scratch, "log"), "a")
        self.process = subprocess.Popen(
            ["java", *flags, f"-Djava.io.tmpdir={scratch}", "-jar", jar],
            env=env, cwd=scratch, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
        )

    def up(self):
        return call(self.port, "GET", "/hello")[0] == 200

    def end(self, how):
        if self.process:
            self.process.send_signal(how)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
            self.process = None


class Setup:
    def __init__(self, name, report):
        self.name, self.report = name, report
        self.registry = self.registry_port()
        self.admin = free_port()
        self.proxy, self.server = None, None
        self.apps = [App(name, self.registry) for _ in range(2)]

    @staticmethod
    def registry_port():
        # Nacos clients derive their gRPC port from it; both have to be free.
        while True:
            port = free_port()
            if 2000 < port < 60000 and call(port + 1000, "GET", "/", 0.2)[0] == 0:
                return port

    def script(self, name):
        env = {**os.environ, "NACOS_PORT": str(self.registry), "EUREKA_PORT": str(self.registry)}
        env |= {"EUREKA_EVICTION_MS": "2000", "EUREKA_CACHE_UPDATE_MS": "1000", "EUREKA_READ_ONLY_CACHE": "false"}
        env |= {"EUREKA_SELF_PRESERVATION": "false"}
        subprocess.run([os.path.join(HERE, self.name, name)], env=env, stdin=subprocess.DEVNULL, check=name == "start.sh")

    def start(self):
        kinds = {
            "embedded": f"{{kind: embedded, listen: '127.0.0.1:{self.registry}'}}",
            "nacos": f"{{kind: nacos, servers: ['127.0.0.1:{self.registry}']}}",
            "eureka": f"{{kind: eureka, servers: ['http://127.0.0.1:{self.registry}/eureka']}}",
        }
        if self.name != "embedded":
            self.server = True
            self.script("start.sh")
        config = os.path.join(FOLDER, f"{self.name}.yaml")
        with open(config, "w") as file:
            file.write(f"""version: 1
listen: localhost:{LISTEN}
admin: {{listen: "127.0.0.1:{self.admin}"}}
telemetry: {{listen: "127.0.0.1:{free_port()}"}}
registries:
  real: {kinds[self.name]}
""")
        log = open(os.path.join(FOLDER, f"{self.name}.log"), "w")
        self.proxy = subprocess.Popen([BINARY, "run", "-c", config], stdout=log, stderr=subprocess.STDOUT)
        return until(lambda: call(self.admin, "GET", "/api/v1/status")[0] == 200, 20) is not None

    def usable(self):
        status, body = call(self.admin, "GET", f"/api/v1/upstreams/{SERVICE}")
        if status != 200:
            return set()
        return {
            int(i["instance"].rsplit(":", 1)[1])
            for i in json.loads(body)["instances"]
            if i["state"] == "healthy"
        }

    def calls(self, n=40):
        """Which instances answered, and what failed."""
        seen, failed = set(), []
        for i in range(n):
            path, headers = ("/hello", {"host": SERVICE}) if i % 2 else (f"/{SERVICE}/hello", None)
            status, body = call(LISTEN, "GET", path, 10, headers)
            if status == 200:
                seen.update(app.port for app in self.apps if str(app.port).encode() in body)
            else:
                failed.append((status, body[:120]))
        return seen, failed

    def run(self):
        check, name = self.report.check, self.name
        first, second = self.apps
        check(self.start(), f"{name}: Outrigger listens on localhost:{LISTEN}")
        for app in self.apps:
            app.start()
        for app in self.apps:
            check(until(app.up, 90) is not None, f"{name}: the Spring service at {app.port} is up")
        # The first request of a name subscribes to it; until it is listed the answer says so.
        took = until(lambda: not self.calls(2)[1], 60)
        check(took is not None, f"{name}: its first call through localhost:{LISTEN}", seconds(took))
        both = {first.port, second.port}
        took = until(lambda: self.usable() == both, 60)
        check(took is not None, f"{name}: both instances are in our set", seconds(took))
        seen, failed = self.calls()
        check(seen == both and not failed, f"{name}: 40 calls by Host and by path reach both", f"{failed[:2]}")
        second.end(signal.SIGKILL)
        seen, failed = self.calls(100)
        check(seen == {first.port} and not failed, f"{name}: one is killed: 100 calls go on", f"{failed[:2]}")
        took = until(lambda: self.usable() == {first.port}, 90)
        check(took is not None, f"{name}: the killed one is out of our set", seconds(took))
        second.start()
        took = until(lambda: self.usable() == both, 120)
        check(took is not None, f"{name}: started again it is back", seconds(took))
        end = subprocess.Popen(["kill", "-TERM", str(first.process.pid)])
        seen, failed = self.calls(200)
        end.wait()
        first.end(signal.SIGTERM)
        more = self.calls(20)
        check(not failed and not more[1], f"{name}: one is stopped: 220 calls go on", f"{(failed + more[1])[:2]}")
        check(until(lambda: self.usable() == {second.port}, 90) is not None, f"{name}: the stopped one is out")

    def end(self):
        for app in self.apps:
            app.end(signal.SIGTERM)
        if self.proxy:
            self.proxy.send_signal(signal.SIGINT)
            try:
                self.report.check(self.proxy.wait(30) == 0, f"{self.name}: Outrigger ends with code 0")
            except subprocess.TimeoutExpired:
                self.proxy.kill()
                self.report.check(False, f"{self.name}: Outrigger ends within 30 s")
        if self.server:
            self.script("stop.sh")


def main():
    report = Report()
    for name in ("embedded", "nacos", "eureka"):
        setup = Setup(name, report)
        try:
            setup.run()
        finally:
            setup.end()
    print(f"{report.passed} passed, {report.failed} failed")
    sys.exit(1 if report.failed else 0)


main()
