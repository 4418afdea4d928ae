# Copyright 2026 The AO-GPT package authors.
# SPDX-License-Identifier: Apache-2.0
"""
Command that takes two pictures of the demo, side by side: while it fills in a text, and when the text is complete.

    python demo/screenshot.py [MODEL] --output_dir DIR

The command needs gradio, playwright and an installed Chromium.
"""

import argparse
import io
import shutil
import sys
from pathlib import Path

from app import CSS, MODEL, THEME, build, load
from PIL import Image
from playwright.sync_api import sync_playwright

BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
TEXT = "LATIN _ LETTER _ WITH _ AND _ BELOW"
WIDTH, HEIGHT = 860, 880


def take_pictures(url: str, browser_path: str) -> list[bytes]:
    """Return pictures of the page after two steps and at the end."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(url)
        page.locator("#text textarea").fill(TEXT)
        page.get_by_label("Seed").fill("0")
        page.locator("#start").click()
        page.locator('.token[data-step="1"]').wait_for()
        pictures = [page.screenshot()]
        page.locator(".summary").wait_for()
        pictures.append(page.screenshot())
        browser.close()
    return pictures


def main(argv: list[str]) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description="Take pictures of the demo.")
    parser.add_argument("model", nargs="?", default=MODEL, help="folder or Hub name")
    parser.add_argument("--output_dir", type=Path, required=True, help="folder for demo.png")
    arguments = parser.parse_args(argv)
    browser_path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser_path is None:
        sys.exit(f"error: There is no browser in PATH. Install one of {', '.join(BROWSERS)}.")
    page = build(*load(arguments.model)).queue()
    _, url, _ = page.launch(css=CSS, theme=THEME, prevent_thread_lock=True, quiet=True)
    pictures = take_pictures(url, browser_path)
    page.close()
    both = Image.new("RGB", (2 * WIDTH, HEIGHT))
    for number, picture in enumerate(pictures):
        both.paste(Image.open(io.BytesIO(picture)), (number * WIDTH, 0))
    arguments.output_dir.mkdir(parents=True, exist_ok=True)
    both.save(arguments.output_dir / "demo.png")


if __name__ == "__main__":
    main(sys.argv[1:])
