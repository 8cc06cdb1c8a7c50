"""Takes README's pictures of the site: five pages, wide or narrow, light or dark.

    sphinx-build docs docs/_build && python docs/screenshots.py docs/_build

It needs Chromium and Pillow. Look at the pictures before you commit them.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys
import tempfile

from PIL import Image

IMAGES = pathlib.Path(__file__).parent / "images"
WIDE, NARROW = (1200, 900), (500, 900)
PAGES = {
    "landing": ("index", WIDE, "light"),
    "which": ("which", WIDE, "dark"),
    "benchmarks": ("benchmarks", WIDE, "light"),
    "reference": ("reference/index", NARROW, "dark"),
    "notebooks": ("notebooks", NARROW, "light"),
}


def main() -> None:
    """Writes docs/images/site_*.png, of 128 colours."""
    site = pathlib.Path(sys.argv[1]).resolve()
    for name, (page, size, scheme) in PAGES.items():
        with tempfile.TemporaryDirectory() as folder:
            picture = pathlib.Path(folder) / "picture.png"
            options = [
                "--headless=new", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=4000",
                f"--user-data-dir={folder}", f"--window-size={size[0]},{size[1]}", f"--screenshot={picture}",
                f"--blink-settings=preferredColorScheme={int(scheme == 'light')}",
            ]  # fmt: skip
            address = (site / f"{page}.html").as_uri()
            subprocess.run(["chromium", *options, address], check=True, capture_output=True)
            few_colours = Image.open(picture).convert("RGB").quantize(128, dither=Image.Dither.NONE)
            few_colours.save(IMAGES / f"site_{name}.png", optimize=True)


if __name__ == "__main__":
    main()
