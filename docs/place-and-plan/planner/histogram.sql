-- Counts the draws of a fleet for `ballast plan --histogram`: one row for each hardware generation and draw.
--
-- Any SQL engine runs it over a table or view `telemetry` with the columns
--   t_s         whole seconds
--   chassis     its name
--   generation  of its hardware; '' everywhere if all chassis are alike
--   watts       double precision
-- Each chassis counts once in each period, by its highest draw; at the nearest step of the meter's resolution, halves
-- up. What cannot be a draw is left out: nulls, NaN, infinities, zeros, negative numbers, sentinels above the most. So
-- are readings without a chassis or a time. All of this is what `ballast plan --telemetry` does, to the last bit.
--
-- For a part of the fleet let `telemetry` show only its chassis, and name them in the manifest: chassis.sql.
WITH settings AS (
  SELECT
    60 AS period_s,         -- --period-s
    1000 AS step_mw,        -- --resolution-w, in milliwatts
    7440000 AS most_mw,     -- --most-w, in milliwatts
    1767571200 AS from_s,   -- the part's first second, a multiple of the period
    1770595200 AS until_s   -- the second after its last one, a multiple too
),
units AS (
  SELECT t.generation, t.chassis, MAX(t.watts) AS watts, s.step_mw
  FROM telemetry t CROSS JOIN settings s
  WHERE t.t_s >= s.from_s AND t.t_s < s.until_s
    AND t.chassis <> ''
    AND t.watts * 1E3 >= 0.5E0
    AND t.watts * 1E3 < s.most_mw + 0.5E0
  GROUP BY t.generation, t.chassis, FLOOR(t.t_s / (s.period_s * 1E0)), s.step_mw
),
steps AS (
  -- To the milliwatt first, then to the step: as the planner does it.
  SELECT generation, step_mw, FLOOR((FLOOR(watts * 1E3 + 0.5E0) + FLOOR(step_mw / 2E0)) / (step_mw * 1E0)) AS step
  FROM units
)
SELECT generation, step * step_mw / 1E3 AS watts, COUNT(*) AS count
FROM steps
WHERE step >= 1
GROUP BY generation, step, step_mw
ORDER BY generation, step
