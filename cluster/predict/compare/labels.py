"""An independent reference for the labellers, in numpy. For development only; nothing in the build needs it.

python3 labels.py make > ../src/label/tests/golden.csv   made series with their scores, for the golden test
python3 labels.py check WEEKS.csv LABELS.csv             `ballast label --first-day own` against this, row by row

Steps as in the paper (III-B): de-trend by the mean of the 24 hours before, normalise, median template,
mean deviation without the largest fifth, ratios. Missing values are NaN and take part in nothing.
"""

import csv
import sys

import numpy as np

DAY, SLOTS = 48, 240


def prepared(x, first_day, warm_up=None):
    y = np.full(SLOTS, np.nan)
    for i in range(SLOTS):
        if i >= DAY:
            window = x[i - DAY : i]
        elif first_day == "drop":
            continue
        elif first_day == "warm-up" and warm_up is not None:
            window = np.concatenate([warm_up, x])[i : i + DAY]
        else:
            window = x[:DAY]
        if not np.all(np.isnan(window)):
            y[i] = x[i] / max(np.nanmean(window), 0.1)
    return y / np.nanstd(y)


def deviation(y, period):
    template = np.array([np.nanmedian(y[k::period]) for k in range(period)])
    d = np.abs(y - template[np.arange(SLOTS) % period])
    d = np.sort(d[~np.isnan(d)])
    return d[: len(d) - int(len(d) * 0.2)].mean()


def acf(y):
    c = np.where(np.isnan(y), 0.0, y - np.nanmean(y))
    r = lambda k: (c[:-k] * c[k:]).sum() / (c * c).sum()
    return (1 - r(48)) / (1 - r(16))


def fft(y):
    begin = DAY if np.isnan(y[:DAY]).all() else 0
    c = np.where(np.isnan(y), 0.0, y - np.nanmean(y))[begin:]
    p = np.abs(np.fft.rfft(c)) ** 2
    return p[len(c) // 16] / p[len(c) // 48]


def scores(x, first_day, warm_up=None):
    y = prepared(x, first_day, warm_up)
    d48, d24, d16 = (deviation(y, p) for p in (48, 24, 16))
    return d48 / d16, d48 / d24, acf(y), fft(y)


def make():
    rng = np.random.default_rng(5)
    t = np.arange(SLOTS)
    kinds = [
        lambda: 30 + 8 * rng.standard_normal(SLOTS),
        lambda: 30 + 15 * np.sin(2 * np.pi * t / 48) + 5 * rng.standard_normal(SLOTS),
        lambda: 3 + np.exp(rng.standard_normal(SLOTS)) * (1 + (t % 48 > 20)),
        lambda: 20 + 10 * (t % 12 < 3) + 2 * rng.standard_normal(SLOTS),
        lambda: 30 + np.cumsum(rng.standard_normal(SLOTS)),
        lambda: np.where(t % 48 < 4, 60, 0.05) + 0.02 * rng.random(SLOTS),
    ]
    out = csv.writer(sys.stdout, lineterminator="\n")
    out.writerow(["first_day", "compare8", "compare12", "acf", "fft"] + [f"v{i}" for i in range(SLOTS + DAY)])
    for n in range(18):
        x = np.round(np.clip(kinds[n % 6](), 0, 100), 2)
        warm_up = np.round(np.clip(x[:DAY] + rng.standard_normal(DAY), 0, 100), 2)
        if n % 3 == 2:  # gaps, one of them long
            x[rng.integers(0, SLOTS, 20)] = np.nan
            x[100:112] = np.nan
        first_day = ["own", "drop", "warm-up"][n // 6]
        row = [repr(float(v)) for v in scores(x, first_day, warm_up)]
        values = np.concatenate([warm_up, x])
        out.writerow([first_day] + row + ["" if np.isnan(v) else f"{v:g}" for v in values])


def check(weeks, labels):
    worst = rows = 0
    with open(weeks) as a, open(labels) as b:
        for week, label in zip(csv.DictReader(a), csv.DictReader(b), strict=True):
            assert week["id"] == label["id"], (week["id"], label["id"])
            x = np.array([float(week[f"u{i}"] or "nan") for i in range(SLOTS)])
            c8, c12, _, _ = scores(x, "own")
            worst = max(worst, abs(c8 - float(label["compare8"])), abs(c12 - float(label["compare12"])))
            rows += 1
    print(f"{rows} rows, largest difference {worst:.1e}")
    sys.exit(worst > 1e-9)


if __name__ == "__main__":
    make() if sys.argv[1] == "make" else check(*sys.argv[2:])
