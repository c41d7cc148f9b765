//! Hunts for faults that break a promise, over many seeds:
//! `hunt [FIRST [LAST [SERVERS [FAULTS]]]] [predictive] [critical-first] [cpu-max]`.

#![expect(clippy::print_stdout, reason = "a tool prints what it found")]

use std::process::ExitCode;

use ballast_agent_core::{Actuator, Policy};
use ballast_sim::world::Hunt;
use ballast_types::wire::SharePolicy;

fn main() -> ExitCode {
    let mut args: Vec<_> = std::env::args().skip(1).collect();
    let mut said = |word: &str| {
        let before = args.len();
        args.retain(|arg| arg != word);
        args.len() < before
    };
    let floating = said(Actuator::CpuMax.name());
    let actuator = if floating { Actuator::CpuMax } else { Actuator::Pstate };
    let critical = said("critical-first");
    let shares = if critical { SharePolicy::CriticalFirst } else { SharePolicy::Even };
    let predictive = said(Policy::Predictive.name());
    let policy = if predictive { Policy::Predictive } else { Policy::Stepwise };
    let numbers: Result<Vec<u64>, _> = args.iter().map(|a| a.parse()).collect();
    let Ok(numbers) = numbers else {
        println!(
            "usage: hunt [FIRST [LAST [SERVERS [FAULTS]]]] [predictive] [critical-first] [cpu-max]"
        );
        return ExitCode::FAILURE;
    };
    let number = |n: usize, default| numbers.get(n).copied().unwrap_or(default);
    let (first, last) = (number(0, 0), number(1, 999));
    let (servers, faults) = (number(2, 4).max(1) as usize, number(3, 6) as usize);
    let mut found = 0;
    for seed in first..=last {
        let hunt = Hunt { seed, servers, faults, policy, actuator, shares };
        if let Err(violation) = hunt.run() {
            found += 1;
            println!("{violation}");
            for window in hunt.plan().windows {
                let (from, to) = (window.from.as_secs_f64(), window.to.as_secs_f64());
                println!("    {from:8.3} to {to:8.3} s: {:?}", window.fault);
            }
        }
    }
    println!("{found} broken promises in {} runs", last.saturating_sub(first) + 1);
    if found == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
