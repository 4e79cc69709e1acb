"""Comparisons by pairs of measurements: one of ours and one of the peer's, right after each other, again and again.

Noise that lasts touches both of a pair, so the ratios scatter less than the figures. The median of the ratios counts. Nothing is
said where they scatter all the same, or where the peer's own figure is far from its usual one: then the machine was measured."""
import json
import os
import statistics

LEAST, MOST = 5, 15  # pairs
SPREAD = 0.10  # distance of the quartiles of the ratios, as a part of their median
STRANGE = 3.0  # times its usual: nothing is compared with such a figure of a peer


def quartiles(values):
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def spread(values):
    low, high = quartiles(values)
    return (high - low) / statistics.median(values)


def ratios(ours, theirs):
    return [a / b for a, b in zip(ours, theirs)]


def settled(ours, theirs):
    return len(ours) >= LEAST and spread(ratios(ours, theirs)) <= SPREAD


def judge(ours, theirs, usual=None):
    """ours and theirs: microseconds, pair by pair. usual: the peer's on this machine, if it is known. Verdict `ok`, or `noisy` or
    `strange` with a reason; the figures are there in any case."""
    all_ratios = ratios(ours, theirs)
    low, high = quartiles(all_ratios)
    result = {"ratio": statistics.median(all_ratios), "low": low, "high": high, "pairs": len(all_ratios),
              "ours_us": statistics.median(ours), "theirs_us": statistics.median(theirs), "verdict": "ok", "reason": ""}
    usual = min(theirs) if usual is None else min(usual, min(theirs))
    if result["theirs_us"] >= STRANGE * usual:
        result.update(verdict="strange", reason=f"the peer took {result['theirs_us']:.2f} us, {usual:.2f} us is its usual here: "
                                                f"the machine was measured, not the two")
    elif not settled(ours, theirs):
        result.update(verdict="noisy", reason=f"the ratios of {len(all_ratios)} pairs scatter by {spread(all_ratios):.0%}, "
                                              f"{SPREAD:.0%} is the most: the machine is too noisy to judge")
    return result


def say(result):
    text = f"{result['ratio']:.2f}x (quartiles {result['low']:.2f} to {result['high']:.2f}, {result['pairs']} pairs)"
    return text if result["verdict"] == "ok" else f"not judged: {result['reason']}"


class Usual:
    """The best median of each peer so far, machine by machine, in a file."""

    def __init__(self, path):
        self.path, self.machine, self.known = path, machine(), {}
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                self.known = json.load(file)

    def of(self, peer, size):
        return self.known.get(self.machine, {}).get(f"{peer}, {size}")

    def note(self, peer, size, result):
        if result["verdict"] != "ok":
            return
        mine, before = self.known.setdefault(self.machine, {}), self.of(peer, size)
        mine[f"{peer}, {size}"] = result["theirs_us"] if before is None else min(before, result["theirs_us"])

    def save(self):
        with open(self.path, "w", encoding="utf-8") as file:
            json.dump(self.known, file, indent=1)


def machine():
    model = ""
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            model = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), "")
    return f"{os.uname().nodename}, {os.cpu_count()} x {model}"
