"""A page in headless Chromium: what it logged, how wide it was laid out, how its text stands out, and after clicks."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PHONE, DESKTOP = 360, 1200

PROBE = """
const layers = element => {  // the grounds below an element's text, the nearest first
  const found = [];
  if (element.closest("svg")) {
    const box = element.getBoundingClientRect();
    for (const below of document.elementsFromPoint(box.x + box.width / 2, box.y + box.height / 2))
      if (["rect", "circle"].includes(below.tagName)) {
        const style = getComputedStyle(below);
        found.push([style.fill, +style.fillOpacity]);
      }
  }
  for (let at = element; at; at = at.parentElement) found.push([getComputedStyle(at).backgroundColor, 1]);
  return found;
};
const rgba = text => { const n = text.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n.slice(0, 3), 1] : n; };
const over = (top, ground) => ground.map((value, i) => value + (top[i] - value) * top[3]);
const light = c => { const [r, g, b] = c.map(v => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const texts = [];
const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
while (walker.nextNode()) {
  const element = walker.currentNode.parentElement, words = walker.currentNode.textContent.trim();
  if (!words || ["SCRIPT", "STYLE"].includes(element.tagName) || element.tagName === "title") continue;
  const style = getComputedStyle(element);
  let ground = [255, 255, 255];
  for (const [color, opacity] of layers(element).reverse()) {
    const top = rgba(color); top[3] *= opacity; ground = over(top, ground);
  }
  const ink = over(rgba(element.closest("svg") ? style.fill : style.color), ground);
  const [a, b] = [light(ink), light(ground)];
  texts.push([words, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)]);
}
const columns = [...document.querySelectorAll("table.sorts")].map(table => [...table.tBodies[0].rows].map(
  row => [...row.cells].map(cell => cell.textContent)));
const boxes = [...document.querySelectorAll("svg text")].map(text => { const b = text.getBoundingClientRect();
  return [text.textContent, b.left, b.right]; });
parent.postMessage(JSON.stringify({width: document.documentElement.scrollWidth, window: innerWidth, texts, columns,
  boxes, dark: matchMedia("(prefers-color-scheme: dark)").matches}), "*");
"""


FRAME = """<!doctype html><link rel="icon" href="data:,"><body><script>
addEventListener("message", event => {
  const answer = document.createElement("pre");
  answer.id = "answer";
  answer.textContent = event.data;
  document.body.append(answer);
});
</script><iframe src="page.html" width="WIDTH" height="9000" style="border:0"></iframe></body>"""
"""A window of Chromium's is never as narrow as a phone, a frame in it is."""


@dataclass(frozen=True)
class Seen:
    """log: console lines. width, window: pixels laid out, and there are. texts: (words, contrast). columns: each sorted
    table's rows of cells. boxes: (words, left, right) of the text in charts. dark: whether the page saw a dark room."""

    log: Sequence[str]
    width: int
    window: int
    texts: Sequence[tuple[str, float]]
    columns: Sequence[Sequence[Sequence[str]]]
    boxes: Sequence[tuple[str, float, float]]
    dark: bool


def look(page: str, folder: Path, *, width: int = DESKTOP, dark: bool = False, script: str = "") -> Seen:
    """Opens the HTML text `page` in a window `width` wide; `script` runs first, in the page."""
    assert CHROMIUM is not None
    probe = f"<script>{script}</script><script>{PROBE}</script></body>"
    (folder / "page.html").write_text(page.replace("</body>", probe), encoding="utf-8")
    frame = folder / "frame.html"
    frame.write_text(FRAME.replace("WIDTH", str(width)), encoding="utf-8")
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--v=0",
         f"--user-data-dir={folder}/profile", "--window-size=1300,9100", "--virtual-time-budget=2000",
         f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--dump-dom", frame.as_uri()],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    found = re.search(r'<pre id="answer">(.*?)</pre>', done.stdout, re.DOTALL)
    log = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert found is not None, log or done.stdout[-2000:]
    answer: dict[str, Any] = json.loads(html.unescape(found.group(1)))
    return Seen(log, **answer)
