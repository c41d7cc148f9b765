//! No number of the agent's loop is critical, around a server that draws exactly what the model of its cores says.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests too")]

mod support;

use ballast_agent_core::*;
use ballast_types::*;
use support::*;

/// A server whose user-facing cores draw what the test says. Its batch cores are fully busy.
struct Server {
    world: World,
    /// How busy the user-facing cores are.
    load: f64,
}

impl Server {
    fn tuned(change: impl Fn(&mut Tuning)) -> Self {
        let mut tuning = Tuning::default();
        change(&mut tuning);
        let mut world = World::tuned(params(), tuning, RecoveredState::default());
        world.input(Input::Vms(vms()));
        let mut server = Self { world, load: 0.5 };
        server.run(10_000);
        server
    }

    /// What these cores draw beyond idle, fully busy, in watts.
    fn busy_w(&self, cores: core::ops::Range<u16>) -> f64 {
        let model = params().model;
        let mhz = cores.map(|n| self.world.caps.get(&n).map_or(1400.0, |mhz| f64::from(*mhz)));
        mhz.map(|mhz| model.dynamic_w() / f64::from(CORES) * model.scale(mhz / 1400.0)).sum()
    }

    fn draw(&self) -> Watts {
        let watts = params().model.idle_w + self.busy_w(6..CORES) + self.load * self.busy_w(1..4);
        Watts::from_f64(watts).unwrap_or_default()
    }

    /// A reading every 200 ms, which shows the draw of 200 ms ago.
    fn run(&mut self, millis: u64) {
        for _ in 0..millis / 200 {
            let watts = self.draw();
            self.world.pass(200);
            let taken_at = ms(self.world.now);
            self.world.input(Input::Power(Reading::Sample { watts, taken_at }));
        }
    }

    /// Runs under a cap of 220 W, which a message renews every second.
    fn capped(&mut self, seconds: u32) {
        for _ in 0..seconds {
            let usage = [("uf", self.load), ("soon", 1.0), ("late", 1.0)].map(|(vm, share)| VmUsage {
                vm: VmId::new(vm).unwrap(),
                utilisation: Utilisation::from_ratio(share).unwrap(),
                throttled: false,
            });
            self.world.input(Input::Usage(usage.to_vec()));
            self.world.tell(Some(220));
            self.run(1000);
        }
    }
}

/// Moves one number.
type Change = fn(&mut Tuning, f64);

#[test]
fn no_number_of_the_loop_is_critical() {
    let changes: [(&str, Change); 4] = [
        ("patience", |t, by| t.patience = t.patience.mul_f64(by)),
        ("longest_hold", |t, by| t.longest_hold = t.longest_hold.mul_f64(by)),
        ("over_run", |t, by| t.over_run = (f64::from(t.over_run) * by).round() as u8),
        ("step_into", |t, by| t.step_into *= by),
    ];

    for (name, change) in changes {
        for by in [2.0 / 3.0, 4.0 / 3.0] {
            let mut server = Server::tuned(|tuning| change(tuning, by));
            server.capped(60);
            let before = server.draw().as_f64();
            assert!((205.0..=220.0).contains(&before), "{name} x {by:.2}: {before}");
            // The user-facing load jumps.
            server.load = 0.9;
            server.capped(2);
            let after = server.draw().as_f64();
            assert!(after <= 220.0, "{name} x {by:.2}: {after}");
            assert_eq!(server.world.limit, None, "{name} x {by:.2}");
        }
    }
}
