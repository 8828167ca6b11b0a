"""
Traffic speeds with gaps
========================

Sensors along a motorway measure how fast the traffic is, every quarter of an hour. Some readings
are lost, and now and then a sensor is silent for a day. What was the speed while nobody looked?

As a script::

    python examples/traffic.py [--out traffic.png]
"""

import argparse

import matplotlib.pyplot as plt
import numpy as np

from scaledsgd import MatrixCompleter

SENSORS, DAYS, PER_DAY, NOISE = 60, 21, 96, 3.0  # km/h
LOST, OUTAGES = 0.25, 45

parser = argparse.ArgumentParser(description="Traffic speeds with gaps.")
parser.add_argument("--out", default="traffic.png", help="the picture")
out = parser.parse_args().out

# %%
# Three weeks on the road
# -----------------------
# Mornings are slow towards the city and evenings out of it, on some days more than on others, and
# not at weekends; here and there, on a day, there is a jam besides.

rng = np.random.default_rng(4)
hour = np.arange(PER_DAY) / 4
place = np.linspace(0, 1, SENSORS)
free = 115 - 15 * np.exp(-(((place - 0.55) / 0.12) ** 2)) + rng.normal(0, 3, SENSORS)


def rush(when, wide, where, spread):
    return np.outer(np.exp(-(((place - where) / spread) ** 2)),
                    np.exp(-(((hour - when) / wide) ** 2)))  # fmt: skip


days = []
for day in range(DAYS):
    work = 0.12 if day % 7 >= 5 else 1.0
    slow = work * rng.uniform(30, 75) * rush(8 + rng.normal(0, 0.25), 1.1, 0.62, 0.22)
    slow += work * rng.uniform(25, 65) * rush(17.3 + rng.normal(0, 0.4), 1.6, 0.35, 0.25)
    slow += rng.uniform(4, 12) * rush(13, 3.5, 0.5, 0.5)
    if rng.random() < 0.4:
        slow += 55 * rush(rng.uniform(9, 20), 0.8, rng.uniform(0.1, 0.9), 0.1)
    days.append(np.maximum(free[:, None] - slow, 12))
truth = np.concatenate(days, axis=1)
measured = truth + rng.normal(0, NOISE, truth.shape)

# %%
# What is left of it
# ------------------

known = rng.random(truth.shape) > LOST
for _ in range(OUTAGES):
    start = rng.integers(0, DAYS * PER_DAY - PER_DAY)
    known[rng.integers(0, SENSORS), start : start + rng.integers(PER_DAY // 2, 2 * PER_DAY)] = False
silent, night = 36, 10 * PER_DAY  # and one that the picture looks at: two days
known[silent, night : night + 2 * PER_DAY] = False
print(
    f"{SENSORS} sensors, {truth.shape[1]:,} times, {1 - known.mean():.0%} of the speeds are missing"
)

# %%
# Fill them
# ---------
# The matrix has a row for each sensor and a column for each time: what the others measure at a time
# says what this one would have. How many patterns there are is found on readings held out.

model = MatrixCompleter("auto", random_state=0).fit(np.where(known, measured, np.nan))
i, j = np.indices(truth.shape).reshape(2, -1)
filled, deviation = (part.reshape(truth.shape) for part in model.predict((i, j), return_std=True))
error = np.sqrt(np.mean((filled - truth)[~known] ** 2))
by_time = np.nanmean(np.where(known, measured, np.nan).reshape(SENSORS, DAYS, PER_DAY), axis=1)
plain = np.sqrt(np.mean((np.tile(by_time, DAYS) - truth)[~known] ** 2))
print(f"off by {error:.1f} km/h where nothing was measured; the usual speed of the sensor at that "
      f"hour is off by {plain:.1f}, and a reading by {NOISE:.1f}")  # fmt: skip

# %%
# A week on the map, and two days of silence
# ------------------------------------------

plt.rcParams.update({"font.size": 12, "savefig.dpi": 120, "axes.titleweight": "bold"})
figure, parts = plt.subplot_mosaic("a;b;c", figsize=(13.5, 10), layout="constrained",
                                   height_ratios=(1, 1, 1.1))  # fmt: skip
week = slice(7 * PER_DAY, 14 * PER_DAY)
shown = plt.get_cmap("RdYlGn").with_extremes(bad="0.25")
names = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"]
for key, title, table in (
    ("a", "Measured (dark: nothing)", np.where(known, measured, np.nan)),
    ("b", "Filled", np.where(known, measured, filled)),
):
    axis = parts[key]
    image = axis.imshow(table[:, week], cmap=shown, vmin=15, vmax=115, aspect="auto",
                        extent=(0, 7, SENSORS, 0), interpolation="nearest")  # fmt: skip
    axis.set(title=title, ylabel="sensor, along the road")
    axis.set_xticks(np.arange(7) + 0.5, names)
    axis.tick_params(axis="x", length=0)
    for border in range(1, 7):
        axis.axvline(border, color="white", lw=1)
figure.colorbar(image, ax=[parts["a"], parts["b"]], label="km/h", shrink=0.8, pad=0.01)

axis, span = parts["c"], slice(night - PER_DAY // 2, night + 2 * PER_DAY + PER_DAY // 2)
t = np.arange(span.start, span.stop) / PER_DAY - 7
low, high = (filled + sign * 1.645 * deviation for sign in (-1, 1))
axis.fill_between(t, low[silent, span], high[silent, span], color="#0b4f8a", alpha=0.18, lw=0,
                  label="should hold 90% of readings")  # fmt: skip
axis.plot(t, measured[silent, span], ".", color="0.55", ms=5, label="readings, had there been any")
axis.plot(t[known[silent, span]], measured[silent, span][known[silent, span]], "o", mfc="none",
          color="#e68a00", ms=6, label="readings that are known")  # fmt: skip
axis.plot(t, filled[silent, span], color="#0b4f8a", lw=2.2, label="filled")
axis.set(ylabel="km/h", xlim=(t[0], t[-1]), ylim=(0, None))
axis.set_title(f"Sensor {silent}, silent for two days")
ticks = np.arange(np.ceil(2 * t[0]), np.ceil(2 * t[-1])) / 2
axis.set_xticks(ticks, [f"{names[int(x)]} {'midnight' if x % 1 == 0 else 'noon'}" for x in ticks])
axis.legend(loc="lower center", ncols=4, frameon=False, fontsize=11)
axis.spines[["top", "right"]].set_visible(False)
figure.savefig(out)
print(f"picture: {out}")
