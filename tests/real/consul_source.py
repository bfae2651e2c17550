"""The `kind: consul` source of a running Outrigger against a real agent (see matrix.py).

usage: consul_source.py SERVER_PORT OUTRIGGER_BINARY WORK_FOLDER
"""
import concurrent.futures
import json
import os
import subprocess
import sys
import threading
import time
import urllib.parse

from common import HERE
from matrix import Matrix, call

SERVICE = "orders"
TTL_S = 15


class Consul:
    name, LIMIT, FORGETS = "consul", 5, False

    def __init__(self, port):
        self.port, self.mine, self.lock = port, {}, threading.Lock()
        threading.Thread(target=self.beat, daemon=True).start()

    def settings(self):
        return {"kind": "consul", "address": f"127.0.0.1:{self.port}"}

    def script(self, name, **env):
        env = {**os.environ, "PORT": str(self.port), "MODE": "server", **env}
        return subprocess.run([os.path.join(HERE, "consul", name)], env=env, stdin=subprocess.DEVNULL).returncode == 0

    def start(self, keep):
        return self.script("start.sh", KEEP="1" if keep else "0")

    def stop(self, force):
        return self.script("stop.sh", FORCE="1" if force else "0")

    def put(self, path, body=None):
        import http.client
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request("PUT", path, json.dumps(body) if body is not None else None)
            answer = connection.getresponse()
            answer.read()
            return answer.status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def register(self, port, weight=1):
        body = {"ID": f"{SERVICE}-{port}", "Name": SERVICE, "Address": "127.0.0.1", "Port": port,
                "Weights": {"Passing": weight, "Warning": 1},
                "Check": {"CheckID": f"service:{SERVICE}-{port}", "TTL": f"{TTL_S}s", "Status": "passing"}}
        assert self.put("/v1/agent/service/register", body) == 200
        with self.lock:
            self.mine[port] = "pass"
        self.put(f"/v1/agent/check/pass/service:{SERVICE}-{port}")

    def deregister(self, port):
        with self.lock:
            self.mine.pop(port, None)
        self.put(f"/v1/agent/service/deregister/{SERVICE}-{port}")

    def weight(self, port, n):
        self.register(port, n)

    def disable(self, port):
        self.put(f"/v1/agent/service/maintenance/{SERVICE}-{port}?enable=true&reason=matrix")

    def enable(self, port):
        self.put(f"/v1/agent/service/maintenance/{SERVICE}-{port}?enable=false")

    def unhealthy(self, port):
        with self.lock:
            self.mine[port] = "fail"
        self.put(f"/v1/agent/check/fail/service:{SERVICE}-{port}")

    def healthy(self, port):
        with self.lock:
            self.mine[port] = "pass"
        self.put(f"/v1/agent/check/pass/service:{SERVICE}-{port}")

    def dies(self, port):
        with self.lock:
            self.mine.pop(port, None)

    def odd(self):
        name = "Odd name/ä_1.x"
        assert self.put("/v1/agent/service/register", {"Name": name, "Address": "127.0.0.1", "Port": 1}) == 200
        return name

    def many(self, n):
        def one(i):
            body = {"ID": f"many-{i}", "Name": "many", "Address": "127.0.0.9", "Port": 10000 + i}
            assert self.put("/v1/agent/service/register", body) == 200

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(one, range(n)))

    def hosts(self):
        status, body = call(self.port, "GET", f"/v1/health/service/{urllib.parse.quote(SERVICE)}?passing")
        return {i["Service"]["Port"]: i for i in json.loads(body)} if status == 200 else {}

    def beat(self):
        while True:
            time.sleep(4)
            with self.lock:
                mine = list(self.mine.items())
            for port, state in mine:
                if state == "pass":
                    self.put(f"/v1/agent/check/pass/service:{SERVICE}-{port}")


if __name__ == "__main__":
    server, binary, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    sys.exit(1 if Matrix(Consul(server), binary, folder).run() else 0)
