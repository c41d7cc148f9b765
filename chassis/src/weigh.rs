//! What a budget would take, before anybody sets it.

use core::fmt;

use ballast_types::Watts;
use ballast_types::wire::{ChassisStatus, Report, Slot};

/// What it takes to bring the chassis under a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Weighed {
    /// The chassis's draw: the higher of what its supplies read and what its servers report. `None`
    /// without a usable reading of the supplies.
    pub power: Option<Watts>,
    /// Watts above the limit that the budget makes: zero where the draw fits, `None` where the draw is not
    /// known.
    pub needs: Option<Watts>,
    /// Watts that low-priority cores can still shed, by the reports of the servers that answer.
    pub batch_can_shed: Watts,
    /// Whether hardware caps would have to shed the rest. Where nobody can tell they may have to.
    pub hardware_would_act: bool,
    /// Whether they may slow user-facing VMs: a hardware cap slows every core of its server.
    pub user_facing_hit: bool,
}

impl Weighed {
    /// Weighs a budget by what a manager says of its chassis.
    pub fn of(status: &ChassisStatus, budget: Watts) -> Self {
        // A limit below the budget in force is what the supplies can carry.
        let carried = Some(status.limit_w).filter(|limit| *limit < status.budget_w);
        let limit = carried.map_or(budget, |carried| carried.min(budget));
        let power = status.power_w.map(|read| read.max(status.reported_w.unwrap_or_default()));
        let needs = power.map(|power| (power - limit).at_least_zero());

        // A report of a server that has fallen silent says nothing of the present, and an agent that only
        // watches sheds nothing. Nobody sheds more than it draws, whatever it says.
        let answering = status.servers.iter().filter(|server| server.slot == Slot::Managed);
        let reports = answering.filter_map(|server| server.report.as_ref());
        let draw = |report: &Report| report.power_w.unwrap_or_default();
        let sheds = |report: &Report| report.sheddable_w.min(draw(report)).at_least_zero();
        let batch_can_shed = reports.filter(|report| !report.dry_run).map(sheds).sum();

        let hardware_would_act = needs.is_none_or(|needs| needs > batch_can_shed);
        let batch_everywhere = status.servers.iter().all(|server| {
            server.report.as_ref().is_some_and(|report| report.cores == Some(report.low_cores))
        });
        let user_facing_hit = hardware_would_act && !batch_everywhere;

        Self { power, needs, batch_can_shed, hardware_would_act, user_facing_hit }
    }

    /// Whether batch work alone makes room for the budget.
    pub fn fits(&self) -> bool {
        !self.hardware_would_act
    }
}

impl fmt::Display for Weighed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Some(power), Some(needs)) = (self.power, self.needs) else {
            return f.write_str(
                "there is no usable reading of the chassis's draw, so nobody can say what this takes",
            );
        };

        if needs == Watts::ZERO {
            return write!(f, "the chassis draws {power}: nothing has to be shed");
        }
        let can = self.batch_can_shed;
        write!(f, "the chassis draws {power}: {needs} have to be shed, batch can shed {can}")?;

        if !self.hardware_would_act {
            return Ok(());
        }
        write!(f, "; hardware caps would shed the other {}", needs - can)?;

        f.write_str(match self.user_facing_hit {
            true => ", and they slow every core of a server, user-facing VMs too",
            false => "; no server has a user-facing VM",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Chassis, Ledger, Params, Server};
    use ballast_types::wire::AgentState;
    use ballast_types::{BootId, ChassisId, Epoch, Instant, Seq, ServerId};

    const W: fn(i64) -> Watts = Watts::from_whole;

    fn report(server: &ServerId, power: i64, sheddable: i64) -> Report {
        Report {
            epoch_obeyed: Epoch(1),
            seq_obeyed: Seq(1),
            state: AgentState::Uncapped,
            power_w: Some(W(power)),
            sheddable_w: W(sheddable),
            low_cores: 20,
            cores: Some(40),
            ..Report::blank(server.clone(), BootId::new("b").unwrap())
        }
    }

    /// Two servers of a chassis with a budget of 500 W, that draw 400 W together and can shed 30 W each.
    fn status() -> ChassisStatus {
        let name = |i: usize| ServerId::new(&format!("s-{i}")).unwrap();
        let servers = (0..2).map(|i| Server::new(name(i), None)).collect();
        let id = ChassisId::new("c").unwrap();
        let params = Params::defaults(id, W(500), vec![W(1000)], servers);
        let chassis = Chassis::new(params, Ledger::default(), Instant::ZERO);
        let mut status = chassis.status(Instant::ZERO);
        status.power_w = Some(W(400));
        for (i, server) in status.servers.iter_mut().enumerate() {
            server.report = Some(report(&name(i), 190, 30));
        }
        status
    }

    #[test]
    fn what_batch_can_shed_fits_and_more_does_not() {
        let status = status();
        for (budget, needs, hardware) in
            [(500, 0, false), (400, 0, false), (399, 1, false), (340, 60, false), (339, 61, true)]
        {
            let weighed = Weighed::of(&status, W(budget));
            assert_eq!((weighed.power, weighed.needs), (Some(W(400)), Some(W(needs))), "{budget}");
            assert_eq!((weighed.batch_can_shed, weighed.fits()), (W(60), !hardware), "{budget}");
            assert_eq!(
                (weighed.hardware_would_act, weighed.user_facing_hit),
                (hardware, hardware),
                "{budget}"
            );
        }

        assert_eq!(
            Weighed::of(&status, W(300)).to_string(),
            "the chassis draws 400.0 W: 100.0 W have to be shed, batch can shed 60.0 W; hardware caps \
             would shed the other 40.0 W, and they slow every core of a server, user-facing VMs too"
        );
    }

    #[test]
    fn without_a_reading_nobody_can_say_what_it_takes() {
        let mut status = status();
        status.power_w = None;
        status.reported_w = Some(W(100));
        let weighed = Weighed::of(&status, W(450));
        assert_eq!((weighed.power, weighed.needs, weighed.fits()), (None, None, false));
        assert!(weighed.to_string().contains("no usable reading"), "{weighed}");
    }

    #[test]
    fn the_higher_of_supplies_and_reports_counts_and_so_does_what_the_supplies_carry() {
        let mut status = status();
        status.reported_w = Some(W(430));
        assert_eq!(Weighed::of(&status, W(400)).needs, Some(W(30)));
        status.reported_w = Some(W(100));
        assert_eq!(Weighed::of(&status, W(400)).needs, Some(W(0)));
        status.limit_w = W(380);
        assert_eq!(Weighed::of(&status, W(450)).needs, Some(W(20)), "a supply is lost");
        assert_eq!(Weighed::of(&status, W(370)).needs, Some(W(30)));
    }

    #[test]
    fn only_what_a_fresh_report_of_an_acting_agent_says_can_be_shed() {
        let sheds = |change: fn(&mut ChassisStatus)| {
            let mut status = status();
            change(&mut status);
            Weighed::of(&status, W(340)).batch_can_shed
        };

        assert_eq!(sheds(|_| {}), W(60));
        assert_eq!(sheds(|s| s.servers[0].slot = Slot::Silent), W(30));
        assert_eq!(sheds(|s| s.servers[0].report = None), W(30));
        assert_eq!(sheds(|s| s.servers[0].report.as_mut().unwrap().dry_run = true), W(30), "it only watches");

        assert_eq!(
            sheds(|s| s.servers[0].report.as_mut().unwrap().sheddable_w = Watts::MAX),
            W(220),
            "no server sheds more than it draws"
        );

        assert_eq!(sheds(|s| s.servers[0].report.as_mut().unwrap().sheddable_w = W(-5)), W(30));
    }

    #[test]
    fn where_every_core_is_low_priority_nobody_user_facing_is_hit() {
        let mut status = status();
        for server in &mut status.servers {
            server.report.as_mut().unwrap().low_cores = 40;
        }
        let weighed = Weighed::of(&status, W(300));
        assert!(weighed.hardware_would_act && !weighed.user_facing_hit, "{weighed}");
        // How many cores there are is not known.
        status.servers[1].report.as_mut().unwrap().cores = None;
        assert!(Weighed::of(&status, W(300)).user_facing_hit);
    }

    #[test]
    fn the_manager_weighs_by_its_own_status() {
        let id = ChassisId::new("c").unwrap();
        let params = Params::defaults(id, W(500), vec![W(1000)], vec![]);
        let chassis = Chassis::new(params, Ledger::default(), Instant::ZERO);
        let expected = Weighed::of(&chassis.status(Instant::ZERO), W(400));
        assert_eq!(Weighed::of(&chassis.status(Instant::ZERO), W(400)), expected);
        assert_eq!(expected.power, None);
    }
}
