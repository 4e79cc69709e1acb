"""The page of `shadowib report` in a real browser, light and dark: nothing is fetched, folded, cut off or drawn over.

report_test.py COMMAND [unittest options]: SKIPPED without chromium.
"""
import datetime
import json
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

COMMAND = pathlib.Path(sys.argv[1]).resolve()
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

# Run inside of the page: texts that leave their plot or stand on each other, plots that are empty, and the page's width.
LOOK = """<script>addEventListener('load', () => {
  const found = [];
  if (document.documentElement.scrollWidth > innerWidth) found.push('the page is wider than the window');
  for (const svg of document.querySelectorAll('svg')) {
    const frame = svg.getBoundingClientRect(), name = svg.getAttribute('aria-label');
    if (frame.width < 300 || frame.height < 30) found.push(name + ' has no room');
    const boxes = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
    for (const [text, b] of boxes)
      if (b.left < frame.left - 1 || b.right > frame.right + 1 || b.top < frame.top - 1 || b.bottom > frame.bottom + 1)
        found.push(name + ': "' + text + '" is cut off');
    boxes.forEach(([one, a], i) => boxes.slice(i + 1).forEach(([two, b]) => {
      if (a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom) found.push(name + ': "' + one + '" is on "' + two + '"');
    }));
    const marks = svg.querySelectorAll('circle, rect, .comb, .line');
    if (marks.length === 0) found.push(name + ' shows nothing');
    for (const mark of marks) {
      const b = mark.getBoundingClientRect();
      if (b.left < frame.left || b.right > frame.right + 1 || b.top < frame.top || b.bottom > frame.bottom) found.push(name + ': a mark lies outside');
    }
  }
  document.title = JSON.stringify({found, plots: document.querySelectorAll('svg').length, fetched: performance.getEntriesByType('resource').length,
                                   dark: matchMedia('(prefers-color-scheme: dark)').matches});
});</script>"""


def picture(data):
    """Width, height and rows of a PNG of 8 bits a channel."""
    at, chunks = 8, b""
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at:at + 8])
        body = data[at + 8:at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
        elif kind == b"IDAT":
            chunks += body
        at += 12 + length
    assert depth == 8 and colour in (2, 6)
    size = 3 if colour == 2 else 4
    raw, rows, before = zlib.decompress(chunks), [], bytes(width * size)
    for y in range(height):
        kind, line = raw[y * (width * size + 1)], bytearray(raw[y * (width * size + 1) + 1:(y + 1) * (width * size + 1)])
        for i in range(len(line)):
            left, up, corner = line[i - size] if i >= size else 0, before[i], before[i - size] if i >= size else 0
            if kind == 1:
                line[i] = line[i] + left & 255
            elif kind == 2:
                line[i] = line[i] + up & 255
            elif kind == 3:
                line[i] = line[i] + (left + up) // 2 & 255
            elif kind == 4:
                guess = left + up - corner
                nearest = min((left, up, corner), key=lambda value: abs(guess - value))
                line[i] = line[i] + nearest & 255
        rows.append(bytes(line))
        before = line
    return width, height, [[tuple(row[i:i + 3]) for i in range(0, len(row), size)] for row in rows]


class Report(unittest.TestCase):
    def setUp(self):
        self.top = pathlib.Path(tempfile.mkdtemp(prefix="shadowib-report-"))
        self.addCleanup(shutil.rmtree, self.top, ignore_errors=True)

    def history(self, checkpoints, seconds):
        random.seed(7)
        path = self.top / "history" / "a-rather-long-job-name"
        path.mkdir(parents=True)
        now = datetime.datetime(2026, 2, 27, 21, 30)
        with open(path / "host.1.jsonl", "w") as out:
            def event(name, **members):
                print(json.dumps({"time": now.strftime("%Y-%m-%dT%H:%M:%S.000Z"), "event": name, "host": "h", "pid": 1, **members}), file=out)
            event("started", command="./app", backend="auto")
            for i in range(1, checkpoints + 1):
                now += datetime.timedelta(seconds=seconds * random.uniform(.8, 1.2))
                phases = {name + "_ms": random.expovariate(.1) for name in ("stop", "settle", "quiesce", "inspect", "save", "commit")}
                event("checkpoint", set=f"a-rather-long-job-name.{i:04d}", members=8, bytes=10**9 + 10**5 * i, stopped_ms=sum(phases.values()),
                      took_ms=sum(phases.values()), **phases)
                if i % 50 == 3:
                    event("checkpoint_failed", code=4, error="member 3: descriptor 19 (pipe)")
                    event("failure", member=2, process=77, how="killed by signal 11 (SIGSEGV)", lost_s=12.5)
                    event("ended", exit_code=20)
                    event("restart", set=f"a-rather-long-job-name.{i:04d}", members=8, generation=1, backend="auto", ready_ms=700)
        done = subprocess.run([COMMAND, "report", "--dir", self.top, "--output", self.top / "report.html"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return pathlib.Path(done.stdout.strip())

    def browse(self, page, *words):
        profile = self.top / "profile"
        return subprocess.run([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
                               f"--user-data-dir={profile}", "--host-resolver-rules=MAP * ~NOTFOUND", *words, page.as_uri()],
                              capture_output=True, timeout=110)

    def look(self, page, *words):
        probed = page.with_name("probed.html")
        probed.write_text(page.read_text().replace("</head>", LOOK + "</head>"))
        dom = self.browse(probed, *words, "--dump-dom").stdout.decode()
        title = re.search(r"<title>(\{.*?\})</title>", dom)
        self.assertIsNotNone(title, dom[:500])
        return json.loads(title[1].replace("&amp;", "&"))

    def test_any_history_is_a_page_that_can_be_read(self):
        if BROWSER is None:
            print("\nSKIPPED: report_test: chromium is not installed", flush=True)
            return
        for checkpoints, seconds, plots in ((0, 1, 1), (1, 5, 4), (3, 2, 5), (60, 600, 5), (2500, 3600, 5)):
            with self.subTest(checkpoints=checkpoints):
                shutil.rmtree(self.top / "history", ignore_errors=True)
                page = self.history(checkpoints, seconds)
                for width in (1280, 700):
                    seen = self.look(page, f"--window-size={width},2400")
                    self.assertEqual((seen["found"], seen["plots"], seen["fetched"]), ([], plots, 0), f"{width} wide")

    def test_it_is_drawn_in_light_and_in_dark(self):
        if BROWSER is None:
            print("\nSKIPPED: report_test: chromium is not installed", flush=True)
            return
        page, shades = self.history(60, 600), {}
        for name, words, series in (("light", (), (0x24, 0x63, 0xb8)), ("dark", ("--force-dark-mode",), (0x6e, 0xa8, 0xf0))):
            shot = self.top / f"{name}.png"
            self.browse(page, *words, f"--screenshot={shot}", "--window-size=800,900")
            width, height, rows = picture(shot.read_bytes())
            self.assertEqual((width, height), (800, 900))
            shades[name] = sum(rows[2][2])
            drawn = sum(pixel == series for row in rows for pixel in row)
            self.assertGreater(drawn, 300, f"{name}: the checkpoints' colour")
        self.assertGreater(shades["light"], 600)
        self.assertLess(shades["dark"], 150)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]], verbosity=2)
