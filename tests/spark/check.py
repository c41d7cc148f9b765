"""Plans from what Spark counted with the shipped query, and from the telemetry itself: both must say the same."""

import csv
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = os.path.abspath(sys.argv[1])
QUERIES = Path("docs/place-and-plan/planner")
BEGIN_S = 1_767_571_200
WEEK_S = 7 * 24 * 3600
CHASSIS = [f"c{number:02}" for number in range(16)]
# What meters and collectors write instead of a draw; and draws at the edges of rounding and of the highest draw.
DIRT = [None, math.nan, math.inf, -math.inf, 0.0, -1.0, 65535.0, 1e300, 7440.0005, 7440.00049, 0.4999, 0.0004]
EDGES = [2000.5, 2000.4995, 2000.49949, 2000.05, 2000.15, 1.005, 0.5, 0.05, 0.06, 2.5, 7.5, 7440.0, 4.35, 1015.025]


def telemetry():
    """Two weeks of readings, in no order: gaps, doubles, nonsense."""
    draw = random.Random(7)
    rows = []
    for number, chassis in enumerate(CHASSIS):
        generation = "gen8" if number % 3 else "gen7"
        base = draw.uniform(1500, 2100)
        for minute in range(2 * WEEK_S // 60):
            kind = draw.random()
            if kind < 0.01:
                continue
            busy = 1 + 0.2 * math.sin(minute / 1440 * 2 * math.pi)
            watts = round(base * busy + draw.gauss(0, 60), draw.choice([0, 1, 3, 9]))
            for _ in range(2 if kind < 0.03 else 1):
                value = watts
                if kind > 0.98:
                    value = draw.choice(DIRT)
                elif kind > 0.97:
                    value = draw.choice(EDGES)
                rows.append((BEGIN_S + minute * 60 + draw.randrange(60), chassis, generation, value))
                watts += draw.gauss(0, 20)
    draw.shuffle(rows)
    return rows


def query(name, settings):
    """A shipped query, with other settings."""
    text = (QUERIES / name).read_text()
    for key, value in settings.items():
        text, found = re.subn(rf"\b-?\d+ AS {key}\b", f"{value} AS {key}", text)
        assert found == 1 or name == "chassis.sql", f"{name}: {key}"
    return text


def plan(*args):
    done = subprocess.run([PROGRAM, "plan", "--json", "--buffer", "0", *args], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    for one in answer["generations"]:
        # A histogram does not know what came after what, nor what was rejected.
        for key in ["longest_event_s", "rejected_readings", "rejected"]:
            one.pop(key)
    answer.pop("rejected_readings")
    return answer


def write(path, header, rows):
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def count(spark, folder, resolution_w, most_w):
    """Counts three parts with the shipped queries; gives their manifest."""
    half = len(CHASSIS) // 2
    parts = [
        (CHASSIS[:half], BEGIN_S, BEGIN_S + WEEK_S),
        (CHASSIS[half:], BEGIN_S, BEGIN_S + WEEK_S),
        (CHASSIS, BEGIN_S + WEEK_S, BEGIN_S + 2 * WEEK_S),
    ]
    text = f"period_s = 60\nresolution_w = {resolution_w}\nmost_w = {most_w}\n"
    for number, (chassis, from_s, until_s) in enumerate(parts):
        names = ", ".join(f"'{name}'" for name in chassis)
        spark.sql(f"SELECT * FROM everything WHERE chassis IN ({names})").createOrReplaceTempView("telemetry")
        settings = {
            "period_s": 60,
            "step_mw": round(resolution_w * 1000),
            "most_mw": round(most_w * 1000),
            "from_s": from_s,
            "until_s": until_s,
        }
        counted = spark.sql(query("histogram.sql", settings))
        write(folder / f"part-{number}.csv", counted.columns, counted.collect())
        listed = spark.sql(query("chassis.sql", settings))
        write(folder / f"chassis-{number}.csv", listed.columns, listed.collect())
        text += (
            f'\n[[part]]\nhistogram = "part-{number}.csv"\nchassis = "chassis-{number}.csv"\n'
            f"from_s = {from_s}\nuntil_s = {until_s}\n"
        )
    manifest = folder / "parts.toml"
    manifest.write_text(text)
    return manifest


def main():
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        rows = telemetry()
        texts = {math.inf: "inf", -math.inf: "-inf"}
        write(
            folder / "telemetry.csv",
            ["t_s", "chassis", "generation", "watts"],
            [(t, c, g, "" if w is None else texts.get(w, repr(w)).replace("nan", "NaN")) for t, c, g, w in rows],
        )
        everything = (
            spark.read.option("header", True)
            .option("positiveInf", "inf")
            .option("negativeInf", "-inf")
            .schema("t_s BIGINT, chassis STRING, generation STRING, watts DOUBLE")
            .csv(str(folder / "telemetry.csv"))
        )
        everything.repartition(3).write.parquet(str(folder / "telemetry"))
        spark.read.parquet(str(folder / "telemetry")).createOrReplaceTempView("everything")
        files = sorted(str(file) for file in (folder / "telemetry").glob("*.parquet"))
        print(f"Spark {spark.version}: {len(rows)} readings of {len(CHASSIS)} chassis, {len(files)} Parquet files")
        for resolution_w, most_w in [(1, 2500), (0.1, 2500), (5, 7440), (0.001, 2500), (7, 2500)]:
            manifest = count(spark, folder, resolution_w, most_w)
            for policy in ["no-impact", "minimal-impact", "full-server"]:
                how = ["--policy", policy, "--resolution-w", str(resolution_w), "--most-w", str(most_w)]
                by_parts = plan("--histogram", str(manifest), *how)
                for name, telemetry_files in [("Parquet", files), ("CSV", [str(folder / "telemetry.csv")])]:
                    by_telemetry = plan("--telemetry", *telemetry_files, *how)
                    same = json.dumps(by_parts) == json.dumps(by_telemetry)
                    assert same, f"{resolution_w} W, {policy}, {name}:\n{by_parts}\n{by_telemetry}"
            budgets = [one["budget_w"] for one in by_parts["generations"]]
            print(f"{resolution_w} W, up to {most_w} W: the same from {by_parts['readings']} readings, budgets {budgets}")
        # The same week twice.
        text = manifest.read_text()
        manifest.write_text(text.replace(str(BEGIN_S + WEEK_S) + "\nuntil", str(BEGIN_S + WEEK_S - 60) + "\nuntil"))
        done = subprocess.run(
            [PROGRAM, "plan", "--histogram", manifest, "--resolution-w", "7", "--most-w", "2500"],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 1 and "both count chassis c00" in done.stderr, done.stderr
        print(f"overlapping parts: {done.stderr.strip()}")
    spark.stop()
    print("bit for bit the same")


main()
