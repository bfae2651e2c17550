"""The `kind: kubernetes` source of a running Outrigger against a real API server (see matrix.py).

usage: kubernetes_source.py SERVER_PORT OUTRIGGER_BINARY WORK_FOLDER

Slices are written into etcd, past the validation that refuses loopback addresses; the API server lists
them and tells watches of them like any other. `disable` is an endpoint that terminates, `unhealthy` one
that is not ready.
"""
import base64
import http.client
import json
import os
import ssl
import subprocess
import sys
import time
import uuid

from common import CACHE, HERE
from matrix import Matrix

NAMESPACE = SERVICE = "orders"


class Kubernetes:
    name, LIMIT = "kubernetes", 5

    def __init__(self, port):
        self.port, self.run = port, os.path.join(CACHE, "kubernetes", f"run-{port}")

    def settings(self):
        return {"kind": "kubernetes", "api": f"https://127.0.0.1:{self.port}", "namespaces": [NAMESPACE],
                "ca_file": f"{self.run}/tls/ca.crt", "token_file": f"{self.run}/serviceaccount/token"}

    def script(self, name, **env):
        env = {**os.environ, "PORT": str(self.port), **env}
        return subprocess.run([os.path.join(HERE, "kubernetes", name)], env=env, stdin=subprocess.DEVNULL).returncode == 0

    def start(self, keep):
        return self.script("start.sh", KEEP="1" if keep else "0")

    def stop(self, force):
        return self.script("stop.sh", FORCE="1" if force else "0")

    def etcd(self, path, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port + 1, timeout=10)
        try:
            connection.request("POST", f"/v3/kv/{path}", json.dumps(body))
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
        finally:
            connection.close()

    def key(self, name):
        return base64.b64encode(f"/registry/endpointslices/{NAMESPACE}/{name}".encode()).decode()

    def put(self, name, service, port, addresses, **conditions):
        slice = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                 "metadata": {"name": name, "namespace": NAMESPACE, "uid": str(uuid.uuid4()), "generation": 1,
                              "creationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                              "labels": {"kubernetes.io/service-name": service}},
                 "endpoints": [{"addresses": [a], "conditions": {"ready": True, **conditions}} for a in addresses],
                 "ports": [{"name": "http", "protocol": "TCP", "port": port}]}
        value = base64.b64encode(json.dumps(slice).encode()).decode()
        self.etcd("put", {"key": self.key(name), "value": value})

    def register(self, port, **conditions):
        self.put(f"{SERVICE}-{port}", SERVICE, port, ["127.0.0.1"], **conditions)

    def deregister(self, port):
        self.etcd("deleterange", {"key": self.key(f"{SERVICE}-{port}")})

    def disable(self, port):
        self.register(port, ready=False, serving=True, terminating=True)

    def unhealthy(self, port):
        self.register(port, ready=False, serving=False)

    enable = healthy = register

    def odd(self):
        self.put("odd-1", "odd", 1, ["127.0.0.1"])
        return f"ODD.{NAMESPACE}.svc.cluster.local"

    def many(self, n):
        for part in range(0, n, 100):
            addresses = [f"127.0.{1 + part // 100}.{1 + i}" for i in range(min(100, n - part))]
            self.put(f"many-{part}", "many", 7, addresses)

    def hosts(self):
        context = ssl.create_default_context(cafile=f"{self.run}/tls/ca.crt")
        connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=5, context=context)
        try:
            with open(f"{self.run}/tokens/admin") as token:
                headers = {"authorization": f"Bearer {token.read().strip()}"}
            selector = f"labelSelector=kubernetes.io%2Fservice-name%3D{SERVICE}"
            connection.request("GET", f"/apis/discovery.k8s.io/v1/namespaces/{NAMESPACE}/endpointslices?{selector}", headers=headers)
            answer = connection.getresponse()
            body = answer.read()
            slices = json.loads(body)["items"] if answer.status == 200 else []
            return {s["ports"][0]["port"]: s for s in slices if s["endpoints"][0]["conditions"]["ready"]}
        except (OSError, http.client.HTTPException):
            return {}
        finally:
            connection.close()


if __name__ == "__main__":
    server, binary, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
    sys.exit(1 if Matrix(Kubernetes(server), binary, folder).run() else 0)
