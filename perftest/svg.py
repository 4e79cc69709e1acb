"""Line plots as SVG files, with nothing but the standard library."""
import math

COLOURS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf"]


def _ticks(low, high, log):
    if log:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        return [10.0 ** e for e in range(first, last + 1)]
    step = 10 ** math.floor(math.log10(max(high, 1e-9)))
    step = next(step * f for f in (0.1, 0.2, 0.5, 1, 2, 5) if high / (step * f) <= 6)
    return [i * step for i in range(int(math.ceil(high / step)) + 1)]


def _label(value):
    for unit, size in (("Mi", 1 << 20), ("Ki", 1 << 10)):
        if value >= size and value % size == 0:
            return f"{value // size:g} {unit}"
    return f"{value:g}"


def line_plot(path, title, x_title, y_title, series, log_y=False):
    """series: {name: [(x, y)...]}; x is drawn in powers of two, each x of the data labelled."""
    width, height, left, right, top, bottom = 720, 440, 80, 20, 50, 60
    xs = sorted({x for points in series.values() for x, _ in points})
    ys = [y for points in series.values() for _, y in points if y > 0]
    if not xs or not ys:
        return False
    ticks = _ticks(min(ys), max(ys), log_y)
    low, high = (ticks[0], ticks[-1]) if log_y else (0, ticks[-1])

    def x_at(x):
        span = math.log2(xs[-1]) - math.log2(xs[0]) or 1
        return left + (math.log2(x) - math.log2(xs[0])) / span * (width - left - right)

    def y_at(y):
        part = (math.log10(y / low) / math.log10(high / low)) if log_y else (y - low) / (high - low)
        return height - bottom - part * (height - top - bottom)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" font-family="sans-serif" '
           f'font-size="12">', '<rect width="100%" height="100%" fill="white"/>',
           f'<text x="{width / 2}" y="24" text-anchor="middle" font-size="15">{title}</text>']
    for tick in ticks:
        out.append(f'<line x1="{left}" x2="{width - right}" y1="{y_at(tick):.1f}" y2="{y_at(tick):.1f}" stroke="#ddd"/>')
        out.append(f'<text x="{left - 6}" y="{y_at(tick) + 4:.1f}" text-anchor="end">{tick:g}</text>')
    for x in xs:
        out.append(f'<text x="{x_at(x):.1f}" y="{height - bottom + 18}" text-anchor="middle">{_label(x)}</text>')
    out.append(f'<text x="{width / 2}" y="{height - 14}" text-anchor="middle">{x_title}</text>')
    out.append(f'<text x="18" y="{height / 2}" text-anchor="middle" transform="rotate(-90 18 {height / 2})">{y_title}</text>')
    for index, (name, points) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        line = " ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in sorted(points) if y > 0)
        out.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        out += [f'<circle cx="{x_at(x):.1f}" cy="{y_at(y):.1f}" r="3" fill="{colour}"/>' for x, y in points if y > 0]
        out.append(f'<rect x="{left + 10}" y="{top + 4 + 18 * index}" width="12" height="12" fill="{colour}"/>')
        out.append(f'<text x="{left + 28}" y="{top + 14 + 18 * index}">{name}</text>')
    out.append("</svg>")
    with open(path, "w", encoding="utf-8") as file:
        file.write("\n".join(out) + "\n")
    return True
