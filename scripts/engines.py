"""Programs that take turns: each waits for lines and answers every one with a line (`peers.py`, `peers_llm.py`)."""

import subprocess


class Engine:
    """A process that runs one engine on one model. What it says first, when it is ready, is `hello`."""

    def __init__(self, name, command):
        self.name = name
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.hello = self.process.stdout.readline().strip()
        if not self.hello:
            raise SystemExit(f"{name} did not start")

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def median(times):
    return sorted(times)[len(times) // 2]
