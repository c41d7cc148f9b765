use ballast_placement::fits::{Capacity, Open};
use ballast_placement::rules::BestFit;
use ballast_placement::{
    ChassisId, Cluster, DeploymentId, Host, HostId, MemoryKb, MilliCores, Ranking, Resources, Scheduler,
    Tier, Ties, VmKey, VmRequest,
};
use proptest::prelude::*;

use super::*;

const HEAD: &str = "vm_id,batch_id,arrival_s,cores,mem_gb,dur_lo_s,dur_hi_s,censored\n";

/// Lines of `vm_id,host` in the order of decisions.
#[derive(Default)]
pub(super) struct Lines(pub(super) Vec<String>);

impl Probe for Lines {
    fn placed(&mut self, _: &Cluster, _: u64, vm: &RequestedVm, host: HostId) {
        self.0.push(format!("{},{host}", vm.request.id));
    }

    fn failed(&mut self, vms: &[&RequestedVm], _: Reason) {
        self.0.extend(vms.iter().map(|vm| format!("{},", vm.request.id)));
    }
}

#[derive(Clone, Copy)]
struct How {
    until_ms: Option<u64>,
    repeat: u32,
    batches: Batches,
}

const USUAL: How = How { until_ms: None, repeat: 1, batches: Batches::Split };

fn arrivals(text: &[u8]) -> Result<Vec<Arrival>, ArrivalsError> {
    Arrivals::new(text, "t.csv")?.collect()
}

fn play_text(text: &str, hosts: u32, how: How) -> Result<(String, Outcome), EngineError> {
    let open = || Arrivals::new(text.as_bytes(), "t.csv");
    let copies = Copies::of(open()?, how.until_ms, how.repeat)?;
    let mut source = Recorded::new(open()?, how.until_ms, copies)?;
    let (mut scheduler, mut lines) = (scheduler(hosts), Lines::default());
    let outcome = replay(&mut source, &mut scheduler, how.batches, &Plan::default(), &mut lines)?;
    Ok((lines.0.join(" "), outcome))
}

fn try_play(rows: &str, hosts: u32, how: How) -> Result<(String, Outcome), EngineError> {
    play_text(&format!("{HEAD}{rows}"), hosts, how)
}

fn play(rows: &str, hosts: u32, how: How) -> (String, Outcome) {
    try_play(rows, hosts, how).unwrap()
}

fn scheduler(hosts: u32) -> Scheduler {
    let capacity = Resources::new(MilliCores::from_cores(4), MemoryKb::from_gb(16.0).unwrap());
    let host = Host::new(ChassisId(0), capacity);
    let cluster = Cluster::new(&vec![host; hosts as usize]);
    let ranking = Ranking::new(vec![Tier::one(BestFit::new(&cluster, Ties::Id))], Ties::Id);
    Scheduler::new(cluster, vec![Box::new(Capacity), Box::new(Open)], ranking)
}

#[test]
fn vms_leave_before_others_come_and_censored_ones_never() {
    let rows = "0,0,100,4,1,0,0,0\n1,0,399,4,1,300,300,0\n2,0,400,4,1,300,900,1\n\
                3,0,90000,4,1,300,300,0\n";
    let (lines, outcome) = play(rows, 1, USUAL);
    // 0 lives 300 s although the file says 0; 2 comes at the instant at which it leaves, and stays.
    assert_eq!(lines, "0,0 1, 2,0 3,");
    assert_eq!((outcome.placed, outcome.failed), (2, 2));
    assert_eq!(outcome.failures.into_iter().collect::<Vec<_>>(), [(Reason::Cores, 2)]);
    assert_eq!((outcome.empty_host_ratio, outcome.packing_density), (0.0, 1.0));
}

#[test]
fn the_window_counts_from_the_first_arrival_and_includes_its_end() {
    let rows = "5,0,1000,1,1,300,300,0\n6,0,1600,1,1,300,300,0\n7,0,1601,1,1,300,300,0\n";
    let options = How { until_ms: Some(600_000), ..USUAL };
    let (lines, outcome) = play(rows, 2, options);
    assert_eq!(lines, "5,0 6,0");
    // One of two hosts is used for half of the time, by one of four cores.
    assert_eq!((outcome.empty_host_ratio, outcome.packing_density), (0.75, 0.25));
}

#[test]
fn copies_come_one_after_the_other_at_every_instant() {
    let rows = "0,0,0,2,1,300,300,0\n9,0,0,1,1,300,300,0\n3,1,300,4,1,300,300,0\n";
    let options = How { repeat: 2, ..USUAL };
    let (lines, _) = play(rows, 2, options);
    assert_eq!(lines, "0,0 9,0 10,1 19,0 3,0 13,1");
}

#[test]
fn a_file_that_is_not_in_the_order_of_time_is_refused_where_the_order_breaks() {
    let rows = "0,0,0,1,1,300,300,0\n1,0,900,1,1,300,300,0\n2,0,0.5,1,1,300,300,0\n";
    assert_eq!(
        try_play(rows, 1, USUAL).unwrap_err().to_string(),
        "t.csv:4: VM 2: arrival_s = 0.5: the VM before it comes at 900: sort the file by arrival_s, for it \
         is read as it is played"
    );

    // What comes after the window is not read.
    let how = How { until_ms: Some(300_000), ..USUAL };
    assert_eq!(play(rows, 1, how).0, "0,0");
}

#[test]
fn an_id_that_runs_already_is_refused_and_one_that_has_ended_may_come_again() {
    let rows = "4,0,0,1,1,300,900,0\n5,0,0,1,1,300,300,0\n5,0,300,1,1,300,300,0\n4,0,300,1,1,300,300,0\n";
    for batches in [Batches::Split, Batches::Atomic] {
        let error = try_play(rows, 1, How { batches, ..USUAL }).unwrap_err();
        assert_eq!(error.to_string(), "t.csv:5: VM 4 is already placed, on host 0");
    }
}

#[test]
fn a_batch_goes_whole_where_that_is_asked_for() {
    let rows = "0,7,0,2,1,300,300,0\n1,8,0,1,1,300,300,0\n2,7,0,3,1,300,300,0\n";
    let options = How { batches: Batches::Atomic, ..USUAL };
    let (lines, outcome) = play(rows, 1, options);
    assert_eq!(lines, "0, 2, 1,0");
    assert_eq!(outcome.failures[&Reason::Cores], 2);
    assert_eq!(play(rows, 1, USUAL).0, "0,0 1,0 2,");
    // Five cores are there, but no four on one host.
    let rows = "0,0,0,3,1,300,300,0\n1,1,0,4,1,300,300,0\n";
    let (_, outcome) = play(rows, 1, USUAL);
    assert_eq!(outcome.failures[&Reason::Cores], 1);
    let rows = "0,0,0,3,1,300,300,0\n1,1,0,2,1,300,300,0\n2,1,0,2,1,300,300,0\n";
    let (_, outcome) = play(rows, 2, options);
    assert_eq!(outcome.failed, 0);
    let rows = "0,0,0,3,1,300,300,0\n1,1,0,3,1,300,300,0\n2,1,0,2,1,300,300,0\n";
    let (_, outcome) = play(rows, 2, USUAL);
    assert_eq!(outcome.failures[&Reason::Fragmentation], 1);
}

#[test]
fn what_is_no_record_is_named() {
    for (rows, text) in [
        ("", "t.csv: no record: a trace has a header and at least one VM"),
        ("0,0,0,1,1,300,300,0\n1,0,0,1,1,300\n", "t.csv:3: 6 fields: the header has 8"),
        ("0,0,0,1,NaN,300,300,0\n", "t.csv:2: VM 0: mem_gb = \"NaN\": a number of GB from 0 to 100000"),
        ("4,0,0,-1,1,300,300,0\n", "t.csv:2: VM 4: cores = \"-1\": a number of cores above 0, at most 65536"),
        ("4,0,0,0,1,300,300,0\n", "t.csv:2: VM 4: cores = \"0\": a number of cores above 0, at most 65536"),
        ("4,0,0,1,1,300,-5,0\n", "t.csv:2: VM 4: dur_hi_s = \"-5\": a number of seconds, 0 or above"),
        ("4,0,1e99,1,1,300,300,0\n", "t.csv:2: VM 4: arrival_s = \"1e99\": a number of seconds, 0 or above"),
        ("x,0,0,1,1,300,300,0\n", "t.csv:2: VM x: vm_id = \"x\": a whole number, 0 or above"),
        (
            "4,0,0,1,1,300,300,\n",
            "t.csv:2: VM 4: censored = \"\": 0, or 1 where the trace ends before the VM",
        ),
        (
            "4,0,0,1,1,300,300,0\n5,0,0,1,1,300,300,0\n4,0,0,1,1,300,300,0\n",
            "t.csv:4: vm_id = 4: it stands in line 2 already",
        ),
    ] {
        assert_eq!(try_play(rows, 1, USUAL).unwrap_err().to_string(), text);
    }

    let error = arrivals(b"vm_id,batch_id\n0,0\n").unwrap_err().to_string();
    assert!(error.starts_with("t.csv:1: no column arrival_s: needed are vm_id, "), "{error}");
}

#[test]
fn a_trace_that_is_cut_short_is_no_trace() {
    let row = |n| format!("{n},{n},{},1,1.75,300,300,0\n", n * 300);
    let whole: String = core::iter::once(HEAD.to_owned()).chain((0..5000).map(row)).collect();
    let packed = zstd::encode_all(whole.as_bytes(), 3).unwrap();
    assert_eq!(arrivals(&packed).unwrap().len(), 5000);

    // Wherever it is cut: in a block, between two, in the checksum.
    let cuts = (1..16).map(|part| packed.len() * part / 16).chain([packed.len() - 1]);

    for cut in cuts {
        let error = arrivals(&packed[..cut]).unwrap_err();
        assert!(matches!(error, ArrivalsError::Io { .. }), "{cut}: {error}");
        assert!(error.to_string().starts_with("t.csv, after line "), "{error}");
    }

    let error = arrivals(&whole.as_bytes()[..whole.len() - 5]).unwrap_err();
    assert!(error.to_string().starts_with("t.csv:5001: "), "{error}");

    // No end of the last line but the whole one passes.
    let last = whole.trim_end().rfind('\n').unwrap();

    for cut in last + 2..whole.len() - 1 {
        let error = arrivals(&whole.as_bytes()[..cut]).unwrap_err();
        assert!(error.to_string().starts_with("t.csv:5001: "), "{cut}: {error}");
    }
}

#[test]
fn a_vm_that_no_host_could_hold_is_named_by_its_record() {
    // It stands behind one of its batch that merely finds no room.
    let rows = "0,0,0,1,1,300,300,0\n1,1,10,4,1,300,300,0\n2,1,10,5,1,300,300,0\n";
    for batches in [Batches::Split, Batches::Atomic] {
        assert_eq!(
            try_play(rows, 1, How { batches, ..USUAL }).unwrap_err().to_string(),
            "t.csv:4: VM 2 asks for 5 cores, 1 GB: the largest host has 4 cores, 16 GB"
        );
    }
    let rows = "18446744073709551615,0,0,1,1,300,300,0\n";
    let error = try_play(rows, 1, How { repeat: 2, ..USUAL }).unwrap_err().to_string();
    assert!(error.starts_with("t.csv: 2 copies: vm_id goes up to 18446744073709551615"), "{error}");
}

/// A source that holds everything: what [`Recorded`] must equal.
struct Whole(std::vec::IntoIter<(u64, Vec<RequestedVm>)>);

impl Whole {
    fn new(vms: &[Arrival], repeat: u64) -> Self {
        let stride = |of: fn(&Arrival) -> u64| vms.iter().map(of).max().unwrap() + 1;
        let (vm_stride, batch_stride) = (stride(|vm| vm.id), stride(|vm| vm.batch));
        let request = |vm: &Arrival, copy| RequestedVm {
            request: VmRequest {
                deployment: Some(DeploymentId(vm.batch + copy * batch_stride)),
                ..VmRequest::new(VmKey(vm.id + copy * vm_stride), vm.resources)
            },
            lifetime_ms: vm.lifetime_ms,
            index: vm.line,
        };
        let groups = vms.chunk_by(|a, b| a.at_ms == b.at_ms).flat_map(|group| {
            (0..repeat).map(move |copy| {
                (group[0].at_ms, group.iter().map(|vm| request(vm, copy)).collect::<Vec<_>>())
            })
        });
        Self(groups.collect::<Vec<_>>().into_iter())
    }
}

impl Source for Whole {
    fn name(&self) -> &str {
        "t.csv"
    }

    fn next_group(&mut self, group: &mut Vec<RequestedVm>) -> Result<Option<u64>, EngineError> {
        let Some((at_ms, vms)) = self.0.next() else { return Ok(None) };
        *group = vms;
        Ok(Some(at_ms))
    }
}

proptest! {
    #[test]
    fn a_file_that_is_read_as_it_is_played_gives_what_the_whole_file_gives(
        mut vms in prop::collection::vec((0..6u64, 0..3u64, 1..5u64, 1..9u64), 1..40),
        ids in any::<u64>(),
        repeat in 1..4u32,
        atomic in any::<bool>(),
    ) {
        vms.sort_by_key(|vm| vm.0);
        // Ids in another order than lines, each once.
        let count = vms.len() as u64;
        let row = |(n, (at, batch, cores, life)): (u64, &(u64, u64, u64, u64))| {
            format!("{},{batch},{},{cores},1,0,{},0\n", n ^ (ids % 64), at * 150, life * 150)
        };
        prop_assert!(count <= 64);
        let rows: String = (0..).zip(&vms).map(row).collect();
        let batches = if atomic { Batches::Atomic } else { Batches::Split };
        let (lines, outcome) = play(&rows, 2, How { repeat, batches, ..USUAL });

        let all = arrivals(format!("{HEAD}{rows}").as_bytes()).unwrap();
        let (mut scheduler, mut whole) = (scheduler(2), Lines::default());
        let mut source = Whole::new(&all, repeat.into());
        let probes: &mut [&mut dyn Probe] = &mut [&mut whole];
        Engine::new(&mut scheduler, &mut (), probes, batches).play(&mut source).unwrap();
        prop_assert_eq!(lines, whole.0.join(" "));
        prop_assert_eq!(outcome.placed + outcome.failed, count * u64::from(repeat));
    }
}

/// A trace that is made while it is read.
struct SyntheticText {
    row: u64,
    ready: Vec<u8>,
    /// How many bytes were read.
    given: std::rc::Rc<std::cell::Cell<u64>>,
}

impl std::io::Read for SyntheticText {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.ready.is_empty() && self.row < 200_000 {
            self.ready = format!("{0},{0},{0},1,1,300,300,0\n", self.row).into_bytes();
            self.row += 1;
        }
        let count = self.ready.len().min(buffer.len());
        buffer[..count].copy_from_slice(&self.ready[..count]);
        self.ready.drain(..count);
        self.given.set(self.given.get() + count as u64);
        Ok(count)
    }
}

#[test]
fn a_trace_is_read_no_further_than_it_is_played() {
    let given = std::rc::Rc::default();
    let text = SyntheticText { row: 0, ready: HEAD.into(), given: std::rc::Rc::clone(&given) };
    let mut source = Recorded::new(Arrivals::new(text, "t.csv").unwrap(), None, Copies::ONE).unwrap();
    let (mut group, mut rows, mut played) = (Vec::new(), 0, 0);
    while source.next_group(&mut group).unwrap().is_some() {
        rows += group.len();
        played += group.iter().map(|vm| vm.request.id.to_string().len() as u64 * 3 + 17).sum::<u64>();
        // A buffer of the reader, the VM that is looked ahead to, and the header.
        assert!(group.len() == 1 && given.get() - played < (1 << 16) + 200, "{} {played}", given.get());
    }
    assert_eq!(rows, 200_000);
}

#[test]
fn a_month_counts_every_request_and_every_hour() {
    let site = Site {
        chassis: 2,
        servers: 3,
        cores: 40,
        model: ballast_types::PowerModel::PAPER,
        load: 1.5,
        days: 2,
    };

    let load = Workload::generate(6, 240, site.load, site.days);
    let setup = Setup { prediction: Arm::None.prediction(), policy: ballast_placement::Policy::BEST_FIT };

    let free = run(&site, &setup, &load, None).unwrap();
    assert_eq!(free.requests as usize, load.deployments.len());
    assert_eq!((free.draws_w.len(), free.capped_hours), (2 * 48, 0));

    // More is asked for than there is.
    assert!(free.failure_rate() > 0.0 && free.failures.contains_key(&Reason::Cores), "{free:?}");

    // With a budget below idle every hour is capped, and nothing else changes.
    let capped = run(&site, &setup, &load, Some(100.0)).unwrap();
    assert_eq!((capped.capped_hours, &capped.draws_w), (2 * 48, &free.draws_w));
    assert!(capped.user_facing_throttled_core_h > 0.0);
    assert!(free.draws_w.iter().all(|w| (3.0 * 112.0..=3.0 * 310.0).contains(w)));
}
