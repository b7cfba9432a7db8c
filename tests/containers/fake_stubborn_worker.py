"""A FAKE for tests: a worker of engine mpi that says it is up and then hangs, with children that will not go."""

import json
import os
import signal
import sys
import time

for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
if os.environ.get("OMPI_COMM_WORLD_RANK") == "0":
    job = json.loads(sys.argv[1])
    key, message = job["candidates"][0]["key"], job["messages"][0]["name"]
    for event in (
        {"event": "ready", "libraries": {}},
        {"event": "begin", "phase": "sampling", "candidate": key, "message": message},
    ):
        sys.stdout.write(f"@lanewise {json.dumps(event)}\n")
        sys.stdout.flush()
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
time.sleep(600)
