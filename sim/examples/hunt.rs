//! Hunts for faults that break a promise, over many seeds: `hunt [FIRST [LAST [SERVERS [FAULTS]]]]`.

#![expect(clippy::print_stdout, reason = "a tool prints what it found")]

use std::process::ExitCode;

use ballast_sim::world::Hunt;

fn main() -> ExitCode {
    let numbers: Result<Vec<u64>, _> = std::env::args().skip(1).map(|a| a.parse()).collect();
    let Ok(numbers) = numbers else {
        println!("usage: hunt [FIRST [LAST [SERVERS [FAULTS]]]], whole numbers");
        return ExitCode::FAILURE;
    };
    let number = |n: usize, default| numbers.get(n).copied().unwrap_or(default);
    let (first, last) = (number(0, 0), number(1, 999));
    let (servers, faults) = (number(2, 4).max(1) as usize, number(3, 6) as usize);
    let mut found = 0;
    for seed in first..=last {
        let hunt = Hunt { seed, servers, faults };
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
