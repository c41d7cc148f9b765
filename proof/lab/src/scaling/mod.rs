//! How many tasks services would have had, and when too few were ready: Autopilot's horizontal scaling beside what people do and
//! what Kubernetes has.
//!
//! Source: Rzadca et al., "Autopilot: workload autoscaling at Google", EuroSys 2020, Section 3.3.

mod load;
mod scaler;

use std::collections::VecDeque;

use ballast_usage::limits::replay::{Days, JobDay, Score};

use crate::limits::Tried;
pub use load::Service;
use load::TICKS_A_WINDOW;
pub use scaler::ScalerSettings;
use scaler::{Tick, UsedWindow};

/// What every day came to under these settings, all services together. A window is above its limit where in any tick of it more
/// tasks were needed than were ready; its limit is the mean of those that were ready.
pub fn tried(services: &[Service], days: &Days, settings: ScalerSettings) -> Tried {
    let mut scores = vec![Score::default(); days.days().len()];
    for service in services {
        let windows = replay(service, days, settings);
        for (score, day) in scores.iter_mut().zip(days.days()) {
            score.add(&judged(&windows[day.clone()]));
        }
    }
    Tried { family: settings.family(), settings: settings.to_string(), auto: false, days: scores }
}

struct ServedWindow {
    needed: f32,
    ready: f32,
    overloaded: bool,
    changes: u32,
}

fn replay(service: &Service, days: &Days, settings: ScalerSettings) -> Vec<ServedWindow> {
    let look = days.days()[days.judged().start].start * TICKS_A_WINDOW;
    let mut scaler = settings.scaler(look);
    let mut ready = (2.0 * service.needed[0]).ceil().max(1.0) as u32;
    // When they are ready, and how many they are.
    let mut starting: VecDeque<(usize, u32)> = VecDeque::new();

    let mut serve = |window: usize, needed: &[f32]| {
        let (mut ready_sum, mut overloaded, mut changes) = (0, false, 0);
        let (mut used_sum, mut peak) = (0.0, 0.0_f64);
        for (at, needed) in needed.iter().enumerate() {
            let tick = window * TICKS_A_WINDOW + at;
            while let Some((_, tasks)) = starting.pop_front_if(|(when, _)| *when <= tick) {
                ready += tasks;
            }
            ready_sum += ready;
            overloaded |= *needed > ready as f32;

            let all: u32 = ready + starting.iter().map(|(_, tasks)| tasks).sum::<u32>();
            let used = f64::from(*needed).min(f64::from(ready));
            (used_sum, peak) = (used_sum + used, peak.max(used));
            let window = UsedWindow { mean: used_sum / TICKS_A_WINDOW as f64, peak };
            let window = (at + 1 == TICKS_A_WINDOW).then_some(window);
            let wanted = scaler.tasks(Tick { used, ready, starting: all - ready, window });
            changes += u32::from(wanted != all);
            if wanted > all {
                starting.push_back((tick + service.start_ticks, wanted - all));
            }
            // The youngest go first.
            let mut excess = all.saturating_sub(wanted);
            while let Some((_, tasks)) = starting.back_mut().filter(|_| excess > 0) {
                let gone = excess.min(*tasks);
                (excess, *tasks) = (excess - gone, *tasks - gone);
                let _ = starting.pop_back_if(|(_, tasks)| *tasks == 0);
            }
            ready -= excess;
        }
        let mean = |sum: f32| sum / TICKS_A_WINDOW as f32;
        ServedWindow { needed: mean(needed.iter().sum()), ready: mean(ready_sum as f32), overloaded, changes }
    };
    let windows = service.needed.chunks_exact(TICKS_A_WINDOW).enumerate();
    windows.map(|(window, needed)| serve(window, needed)).collect()
}

fn judged(windows: &[ServedWindow]) -> JobDay {
    let used: f64 = windows.iter().map(|window| f64::from(window.needed)).sum();
    JobDay {
        windows: windows.len() as u32,
        overruns: windows.iter().map(|window| u32::from(window.overloaded)).sum(),
        changes: windows.iter().map(|window| window.changes).sum(),
        limits: windows.iter().map(|window| f64::from(window.ready)).sum(),
        used,
        // Tasks may come and go with the load: what stands unused is what the mean leaves.
        p95: (used / windows.len() as f64) as f32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scaling::load::TICK_S;
    use ballast_usage::limits::jobs::JobSet;
    use ballast_usage::limits::tasks::FloorSettings;

    /// A day, of which so many tasks are needed from one hour to another, and few else.
    fn service(few: f32, many: f32, hours: core::ops::Range<usize>, days: usize) -> Service {
        let ticks_an_hour = 3600 / TICK_S;
        let need = |tick: usize| if hours.contains(&(tick / ticks_an_hour % 24)) { many } else { few };
        Service { needed: (0..days * 24 * ticks_an_hour).map(need).collect(), start_ticks: 8 }
    }

    fn days(days: usize) -> Days {
        Days::of(days * ballast_usage::limits::DAY).unwrap()
    }

    #[test]
    fn a_step_is_an_overrun_until_tasks_have_started() {
        let windows = replay(
            &service(10.0, 30.0, 12..24, 9),
            &days(9),
            ScalerSettings::Hpa { target: 0.5, stabilise_s: 300 },
        );
        let noon = 12 * 12;
        assert_eq!(windows[noon - 1].ready, 20.0);
        assert_eq!(windows[noon + 1].ready, 60.0);
        let overloaded: Vec<usize> = (0..2 * noon).filter(|at| windows[*at].overloaded).collect();
        assert_eq!(overloaded, [noon], "two minutes until tasks have started");
        // Before it 20 tasks were full, so that 40 were wanted; then 60.
        assert_eq!(windows[noon].changes, 2);

        // Down it goes five minutes after the load.
        let midnight = 2 * noon;
        assert_eq!((windows[midnight].ready, windows[midnight + 2].ready), (60.0, 20.0));
    }

    #[test]
    fn people_keep_what_the_first_days_needed() {
        let service = service(10.0, 30.0, 9..17, 12);
        let judge = |factor| {
            let tried = tried(std::slice::from_ref(&service), &days(12), ScalerSettings::Fixed { factor });
            tried.days.last().copied().unwrap()
        };
        assert_eq!((judge(1.0).overruns(), judge(1.0).changes_per_job_day()), (0.0, 0.0));
        assert!((judge(1.0).footprint() - 30.0 / (50.0 / 3.0)).abs() < 1e-6, "{:?}", judge(1.0));
        assert_eq!(judge(0.9).overruns(), 8.0 / 24.0);
    }

    #[test]
    fn a_floor_by_the_days_before_is_there_before_the_load() {
        let services = [service(10.0, 30.0, 9..17, 12)];
        let floor = FloorSettings { days: 3, quantile: 0.5, factor: 1.0 };
        let judge = |settings| {
            let days = days(12);
            crate::limits::judged(&days, &tried(&services, &days, settings).days)
        };
        let hpa = judge(ScalerSettings::Hpa { target: 0.8, stabilise_s: 300 });
        let daily = judge(ScalerSettings::Daily { target: 0.8, floor });
        assert!(hpa.overruns() > 0.0 && daily.overruns() == 0.0, "{hpa:?} {daily:?}");
        assert!(daily.footprint() < 1.1 * hpa.footprint(), "{hpa:?} {daily:?}");
    }

    #[test]
    fn synthetic_services_are_the_same_for_the_same_seed() {
        let service = |seed, number| Service::synthetic(seed, number, 2);
        assert_eq!(service(1, 0).needed, service(1, 0).needed);
        assert_ne!(service(1, 0).needed, service(1, 1).needed);
        assert_ne!(service(1, 0).needed, service(2, 0).needed);
        assert!(service(1, 0).needed.iter().all(|needed| *needed > 0.0 && needed.is_finite()));
    }

    #[test]
    fn a_recorded_job_needs_its_tasks_at_its_peak_and_gaps_need_what_was_before() {
        let used = vec![0.1, f32::NAN, 0.4, 0.2, 0.2];
        let job = ballast_usage::limits::jobs::LimitedJob { name: "a".to_owned(), most: 4.0, used };
        let jobs = JobSet::new(ballast_usage::limits::family::Resource::Cpu, vec![job], 0).unwrap();
        let service = &Service::recorded(&jobs, 100.0)[0];
        let ends: Vec<f32> =
            service.needed.chunks(TICKS_A_WINDOW).map(|window| window[TICKS_A_WINDOW - 1]).collect();
        assert_eq!(ends, [25.0, 25.0, 100.0, 50.0, 50.0]);
        assert_eq!(service.needed[2 * TICKS_A_WINDOW + 9], 62.5);
    }
}
