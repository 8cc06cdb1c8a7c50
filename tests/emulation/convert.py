"""Converts CUDA sources to C++ for the emulator.

python tests/emulation/convert.py ffi build/emulated
"""

from __future__ import annotations

import pathlib
import re
import sys

LAUNCH = re.compile(r"([\w:]+(?:<[^;{}]*?>)?)\s*<<<(.*?)>>>\(", re.DOTALL)
DYNAMIC = re.compile(r"extern __shared__ (?:__align__\([^)]*\) )?([\w ]+?) (\w+)\[\];")
ALIGNED = re.compile(r"__shared__ alignas\((\w+)\)")
# GCC 12 captures a constant that a generic lambda reads, unless the constant is static.
CONSTANT = re.compile(r"^  (constexpr (?:int kSample|bool kHasPayload) =)", re.MULTILINE)


def without_launches(text: str) -> str:
    """Replaces each launch, `kernel<<<blocks, ...>>>(arguments)`, by a call of `emulator::run`."""
    while launch := LAUNCH.search(text):
        depth, end = 1, launch.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        kernel, shape, arguments = launch[1], launch[2], text[launch.end() : end - 1]
        text = f"{text[: launch.start()]}emulator::run([&] {{ {kernel}({arguments}); }}, {shape}){text[end:]}"
    return text


def converted(text: str) -> str:
    text = DYNAMIC.sub(r"\1* const \2 = static_cast<\1*>(emulator::dynamic_shared());", text)
    text = text.replace("static __global__", "__global__")  # the emulator defines __global__ as static
    text = ALIGNED.sub(r"__shared__ __align__(\1)", text)
    return without_launches(CONSTANT.sub(r"  static \1", text))


def main() -> None:
    """Converts a folder's .cu and .cuh files, and its .h files that conversion changes, if they are not up to date."""
    source, target = map(pathlib.Path, sys.argv[1:])
    for path in sorted(source.rglob("*")):
        if path.suffix not in (".cu", ".cuh", ".h"):
            continue
        given = path.read_text(encoding="utf-8")
        file, text = target / path.relative_to(source), converted(given)
        is_needed = path.suffix != ".h" or text != given
        if is_needed and not (file.exists() and file.read_text(encoding="utf-8") == text):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
