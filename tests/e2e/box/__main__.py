"""The command of the box; see the package's docstring."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from tests.cluster import build
from tests.cluster.build import BuildError, UnavailableError

from . import host, images, needs


def main() -> int:
    """Runs one command; what the user can mend is one line on stderr and exit code 2."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.box", description="A real node in a box.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check", help="say why this machine cannot be a node, with exit code 1; 0 if it can")
    commands.add_parser("install", help="install what it needs with apt-get")
    commands.add_parser("prepare", help="the same, and build its tools and the base image: minutes, once")
    up = commands.add_parser("up", help="bring it up; one that is up is replaced")
    up.add_argument("--image", action="append", type=Path, default=[], help="an OCI archive to load")
    commands.add_parser("down", help="end it and remove what it made")
    commands.add_parser("logs", help="the last lines of every component")
    image = commands.add_parser("image", help="build a Dockerfile on the base image, print the archive")
    image.add_argument("dockerfile", type=Path)
    image.add_argument("tag", help="localhost/NAME:TAG")
    image.add_argument("--context", type=Path, default=Path())
    image.add_argument("--load", action="store_true", help="load it into the box that is up")
    asked = parser.parse_args()
    started = time.monotonic()
    try:
        if asked.command == "check":
            lack = needs.lacks()
            print(lack or "this machine can be a node")
            return 1 if lack else 0
        if asked.command == "install":
            needs.install()
        elif asked.command == "prepare":
            needs.install()
            for tool in (*host.TOOLS, "helm", "jobset", "kueue"):
                build.folder(tool)
            print(f"{images.base()}: prepared in {time.monotonic() - started:.1f} s")
        elif asked.command == "up":
            box = host.up(asked.image)
            print(f"up in {time.monotonic() - started:.1f} s; export KUBECONFIG={box.kubeconfig}")
        elif asked.command == "down":
            with host.alone(wait=False):
                host.down()
            print(f"down in {time.monotonic() - started:.1f} s")
        elif asked.command == "logs":
            print(host.tails())
        else:
            archive = images.build(asked.dockerfile, asked.context, asked.tag)
            if asked.load:
                host.attach().load(archive)
            print(archive)
    except (UnavailableError, BuildError, ValueError, OSError, RuntimeError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as problem:
        print(f"error: {problem}", file=sys.stderr)
        return problem.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
