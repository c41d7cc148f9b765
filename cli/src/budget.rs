//! `ballast budget`: the budget of a chassis, shown, lowered for as long as needed, and reset.

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use ballast_types::Watts;
use ballast_types::wire::{BudgetAnswer, BudgetRequest};
use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};
use reqwest::{Method, StatusCode};

use crate::common::daemons::{Orders, TlsArgs};
use crate::common::terminal::{self, tell};

/// A manager answers once its chassis is under the new budget, after 5 s at the latest.
const TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Subcommand, Debug)]
pub(crate) enum Budget {
    /// Show the budget in force, the configured one, until when, and the draw
    #[command(after_help = "Example: ballast budget show http://127.0.0.1:7100")]
    Show(Chassis),
    /// Lower the budget, after showing what that takes
    #[command(after_help = "Example: ballast budget set 2300 --for 2h\n\
        Example: ballast budget set 2300 --dry-run --json\n\n\
        Exit codes: 0 it is set, or would be; 1 refused, not confirmed, or failed; 2 wrong usage.")]
    Set(SetArgs),
    /// Go back to the configured budget
    #[command(after_help = "Example: ballast budget reset")]
    Reset(Chassis),
}

/// Which chassis, and how it is spoken to.
#[derive(Args, Debug)]
pub(crate) struct Chassis {
    /// The chassis's manager, as unix:/PATH or https://ADDRESS:PORT; http://ADDRESS:PORT only shows
    #[arg(value_name = "URL", env = "BALLAST_URL", default_value = "unix:/run/ballast-chassis/ballast.sock")]
    url: String,
    /// Print the manager's answer as a JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    tls: TlsArgs,
}

#[derive(Args, Debug)]
pub(crate) struct SetArgs {
    /// The new budget, at most the configured one
    #[arg(value_name = "WATTS", value_parser = watts)]
    budget: Watts,
    #[command(flatten)]
    chassis: Chassis,
    /// How long (30m, 2h, 1h30m): then the configured budget comes back; without, until it is reset
    #[arg(long = "for", value_name = "TIME", value_parser = seconds)]
    for_s: Option<u64>,
    /// Only show what it would take
    #[arg(long)]
    dry_run: bool,
    /// Set it even if batch work cannot shed enough: hardware caps may then slow user-facing VMs
    #[arg(long)]
    force: bool,
    /// Do not ask before the budget changes
    #[arg(long)]
    yes: bool,
}

/// Shows, sets or resets; exit code 1 where the manager or the operator refuses.
pub(crate) fn run(budget: &Budget) -> anyhow::Result<ExitCode> {
    match budget {
        Budget::Show(chassis) => {
            let manager = Manager::of(chassis)?;
            let answer = manager.ask(Method::GET, None)?;
            manager.say(&answer, &in_force(&answer))
        }
        Budget::Set(args) => set(args),
        Budget::Reset(chassis) => {
            let manager = Manager::of(chassis)?;
            let answer = manager.ask(Method::DELETE, None)?;
            manager.say(&answer, &in_force(&answer))
        }
    }
}

fn set(args: &SetArgs) -> anyhow::Result<ExitCode> {
    let manager = Manager::of(&args.chassis)?;
    let put = |dry_run| {
        let SetArgs { budget: budget_w, force, for_s, .. } = *args;
        let request = BudgetRequest { budget_w, dry_run, force, for_s };
        manager.ask(Method::PUT, Some(&request))
    };

    if args.dry_run || !args.yes {
        let answer = put(true)?;
        if args.dry_run || !answer.accepted {
            return manager.say(&answer, &takes(&answer));
        }
        tell(&takes(&answer));
        confirm()?;
    }

    let answer = put(false)?;
    let text = if answer.accepted { in_force(&answer) } else { takes(&answer) };
    manager.say(&answer, &text)
}

struct Manager {
    orders: Orders,
    json: bool,
}

impl Manager {
    fn of(chassis: &Chassis) -> anyhow::Result<Self> {
        Ok(Self { orders: Orders::to(&chassis.url, &chassis.tls, TIMEOUT)?, json: chassis.json })
    }

    fn ask(&self, method: Method, request: Option<&BudgetRequest>) -> anyhow::Result<BudgetAnswer> {
        self.orders.send(method, "/v1/budget", request, Some(StatusCode::CONFLICT))
    }

    fn say(&self, answer: &BudgetAnswer, text: &str) -> anyhow::Result<ExitCode> {
        terminal::answer(self.json, answer, || text.to_owned())?;
        Ok(ExitCode::from(u8::from(!answer.accepted)))
    }
}

/// Asks on the terminal.
fn confirm() -> anyhow::Result<()> {
    if !io::stdin().is_terminal() {
        bail!("nothing was changed: there is no terminal to ask on; --yes sets it without asking");
    }
    write!(io::stderr(), "Set it? [y/N] ")?;
    let mut line = String::new();
    io::stdin().read_line(&mut line)?;
    if !matches!(line.trim(), "y" | "Y" | "yes") {
        bail!("not confirmed: nothing was changed");
    }
    Ok(())
}

fn in_force(answer: &BudgetAnswer) -> String {
    let BudgetAnswer { budget_w, configured_w, until_unix_s, power_w, .. } = answer;
    let until = match until_unix_s {
        _ if budget_w == configured_w => "as configured".to_owned(),
        None => format!("until it is reset; {configured_w} are configured"),
        Some(end) => format!("until {}, then {configured_w} as configured", time(*end)),
    };
    let draw = match power_w {
        None => "no reading".to_owned(),
        Some(power) => {
            let share = 100.0 * power.as_f64() / budget_w.as_f64();
            let late = if answer.enforced { "" } else { ", not yet under its limit" };
            format!("{power} ({share:.0} % of the budget{late})")
        }
    };
    format!("budget: {budget_w}, {until}\ndraw: {draw}")
}

/// What the budget that was asked about takes.
fn takes(answer: &BudgetAnswer) -> String {
    let BudgetAnswer { budget_w, requested_w, reason, .. } = answer;
    let yes = |it| if it { "yes" } else { "no" };
    let hint = match answer.accepted {
        true => "",
        false => "\n--force sets it all the same, unless another manager rules",
    };
    format!(
        "from {budget_w} to {requested_w}: {reason}\nhardware caps: {}; user-facing VMs slowed: {}{hint}",
        yes(answer.hardware_would_act),
        yes(answer.user_facing_hit),
    )
}

fn time(unix_s: u64) -> String {
    let stamp = i64::try_from(unix_s).ok().and_then(|s| Timestamp::from_second(s).ok());
    stamp.unwrap_or(Timestamp::MAX).to_string()
}

fn watts(text: &str) -> Result<Watts, String> {
    let watts = text.parse().ok().and_then(Watts::from_f64).filter(|w| *w > Watts::ZERO);
    watts.ok_or_else(|| "a number of watts, above 0".to_owned())
}

fn seconds(text: &str) -> Result<u64, String> {
    let span = text.parse::<SignedDuration>().ok();
    let seconds = span.and_then(|span| u64::try_from(span.as_secs()).ok()).filter(|s| *s > 0);
    seconds.ok_or_else(|| "hours, minutes and seconds, as 30m, 2h or 1h30m".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const W: fn(i64) -> Watts = Watts::from_whole;

    fn answer() -> BudgetAnswer {
        BudgetAnswer {
            budget_w: W(2300),
            configured_w: W(2450),
            until_unix_s: Some(0),
            power_w: Some(W(2185)),
            requested_w: W(2200),
            accepted: true,
            enforced: true,
            needs_w: Some(W(0)),
            batch_can_shed_w: W(0),
            hardware_would_act: false,
            user_facing_hit: false,
            reason: "the chassis draws 2185.0 W: nothing has to be shed".into(),
        }
    }

    #[test]
    fn what_is_in_force_is_said_with_its_end() {
        let draw = "draw: 2185.0 W (95 % of the budget)";
        let text = in_force(&answer());
        let end = "until 1970-01-01T00:00:00Z, then 2450.0 W as configured";
        assert_eq!(text, format!("budget: 2300.0 W, {end}\n{draw}"));
        let text = in_force(&BudgetAnswer { until_unix_s: None, ..answer() });
        let end = "until it is reset; 2450.0 W are configured";
        assert_eq!(text, format!("budget: 2300.0 W, {end}\n{draw}"));
        let configured = BudgetAnswer { budget_w: W(2450), until_unix_s: None, ..answer() };
        let text = in_force(&BudgetAnswer { power_w: None, ..configured });
        assert_eq!(text, "budget: 2450.0 W, as configured\ndraw: no reading");
        let text = in_force(&BudgetAnswer { enforced: false, ..answer() });
        assert!(text.ends_with("(95 % of the budget, not yet under its limit)"), "{text}");
    }

    #[test]
    fn what_it_takes_is_said_and_how_to_set_it_all_the_same() {
        assert_eq!(
            takes(&answer()),
            "from 2300.0 W to 2200.0 W: the chassis draws 2185.0 W: nothing has to be shed\n\
             hardware caps: no; user-facing VMs slowed: no"
        );
        let refused = BudgetAnswer { accepted: false, hardware_would_act: true, ..answer() };
        assert!(takes(&refused).contains("hardware caps: yes"));
        assert!(takes(&refused).contains("--force"));
    }

    #[test]
    fn watts_and_times_are_read_as_people_write_them() {
        for (text, expected) in [("2h", 7200), ("30m", 1800), ("1h30m", 5400), ("90s", 90)] {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        for bad in ["", "0s", "-2h", "2", "two hours", "1d", "99999999999999999999h"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
        assert_eq!(watts("2300.5"), Ok(Watts::from_milli(2_300_500)));
        for bad in ["", "0", "-5", "nan", "inf", "1e300", "2300 W"] {
            assert!(watts(bad).is_err(), "{bad}");
        }
    }
}
