"""Fails if the benchmarks, the documents or the source distribution have outgrown their limits.

Tables that a script writes into a document do not count.

python scripts/check_sizes.py
"""

from __future__ import annotations

import io
import pathlib
import re
import subprocess
import sys
import tarfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS_BYTES = 1_000_000  # benchmarks/results
CODE_LINES = 8_000  # the rest of benchmarks/, except .md files
SOURCE_BYTES = 1_500_000  # the source distribution
WORDS = {
    "docs/performance.md": 1_500,
    "docs/reliability.md": 2_000,
    "docs/architecture.md": 3_000,
    "docs/kernels.md": 4_000,
}


def tracked(folder: str) -> list[pathlib.Path]:
    """Lists the files of a folder that git tracks or would add; ignored files, such as raw runs, are left out."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", folder]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [ROOT / name for name in listed.split("\0") if name]
    return [path for path in paths if path.is_file()]


def source_distribution() -> int:
    """Packs the files that pyproject.toml includes; returns the number of bytes."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["scikit-build"]
    left_out = [ROOT / name.strip("/") for name in settings["sdist"]["exclude"]]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path in tracked("."):
            if not any(path.is_relative_to(folder) for folder in left_out):
                archive.add(path, path.relative_to(ROOT))
    return len(packed.getvalue())


def main() -> int:
    """Compares each size with its limit; returns 1 if a limit is exceeded."""
    results = tracked("benchmarks/results")
    code = [path for path in tracked("benchmarks") if path not in results and path.suffix != ".md"]
    sizes = {
        "benchmarks/results, bytes": (sum(path.stat().st_size for path in results), RESULTS_BYTES),
        "source distribution, bytes": (source_distribution(), SOURCE_BYTES),
        "benchmarks, lines": (sum(path.read_bytes().count(b"\n") for path in code), CODE_LINES),
    }
    for page, limit in WORDS.items():
        text = (ROOT / page).read_text(encoding="utf-8")
        written = re.sub(r"<!-- scripts/\w+\.py writes .*?<!-- end -->", "", text, flags=re.DOTALL)
        sizes[f"{page}, words"] = (len(written.split()), limit)
    for name, (size, limit) in sizes.items():
        print(f"{name}: {size:,} of at most {limit:,}")
    return int(any(size > limit for size, limit in sizes.values()))


if __name__ == "__main__":
    sys.exit(main())
