"""Counts the kernels whose machine code differs between two built libraries.

    python scripts/changed_kernels.py ../before/jax_mgpu/libjax_mgpu_cuda.so jax_mgpu/libjax_mgpu_cuda.so

Both libraries must be built by the same compiler for the same architecture. The script needs cuobjdump, from the CUDA
toolkit or the Python package nvidia-cuda-cuobjdump, and nvdisasm beside it.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import pathlib
import re
import subprocess
from collections.abc import Iterable

FUNCTION = re.compile(r"\s*Function : (\S+)")
INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(.*?;)")
NAMESPACE = re.compile(r"(?:\w+|\(anonymous namespace\))::")


def code_of(listing: Iterable[str]) -> dict[str, str]:
    """Computes a digest of each function's instructions, from the output of `cuobjdump -sass`."""
    digests: dict[str, hashlib._Hash] = {}
    for line in listing:
        if found := FUNCTION.match(line):
            digest = digests[found[1]] = hashlib.sha256()
        elif digests and (found := INSTRUCTION.match(line)):
            digest.update(found[1].encode() + b"\n")
    return {function: digest.hexdigest() for function, digest in digests.items()}


def code_in(library: pathlib.Path, cuobjdump: str) -> dict[str, str]:
    """Computes a digest of each kernel's instructions in a library; exits if cuobjdump fails."""
    with subprocess.Popen([cuobjdump, "-sass", library], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        codes = code_of(process.stdout)
    if process.returncode or not codes:
        raise SystemExit(f"{cuobjdump} -sass {library}: exit status {process.returncode}, {len(codes)} kernels")
    return codes


def differences(before: dict[str, str], after: dict[str, str]) -> dict[str, list[str]]:
    """Groups the functions into "same", "changed", "gone" and "new"."""
    return {
        "same": [name for name, code in before.items() if after.get(name) == code],
        "changed": [name for name, code in before.items() if name in after and after[name] != code],
        "gone": [name for name in before if name not in after],
        "new": [name for name in after if name not in before],
    }


def templates(functions: list[str]) -> collections.Counter[str]:
    """Counts the functions of each kernel template, by its name without namespaces and arguments."""
    named = subprocess.run(
        ["c++filt"], input="\n".join(functions), capture_output=True, text=True, check=True
    ).stdout.splitlines()
    names = (re.split(r"[<(]", NAMESPACE.sub("", name.removeprefix("void ")))[0] for name in named)
    return collections.Counter(names)


def main() -> None:
    """Prints how many kernels are the same, changed, gone and new; the last three also for each template."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=pathlib.Path, help="the library before the change")
    parser.add_argument("after", type=pathlib.Path, help="the library after the change")
    parser.add_argument("--cuobjdump", default="cuobjdump", help="path of cuobjdump (default: the one on PATH)")
    options = parser.parse_args()
    before, after = (code_in(library, options.cuobjdump) for library in (options.before, options.after))
    for fate, functions in differences(before, after).items():
        print(f"{fate}: {len(functions)}")
        if fate != "same":
            for name, count in templates(functions).most_common():
                print(f"  {name}: {count}")


if __name__ == "__main__":
    main()
