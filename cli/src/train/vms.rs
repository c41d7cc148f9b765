//! The VMs of the past, from CSV: one row each, columns found by their names.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use anyhow::{Context, bail};
use ballast_predict::{VmHistory, vm};
use ballast_sim::trace::TableReader;
use ballast_types::VmClass;

/// The columns; each must be there, in any order. Others are left alone.
pub(super) const COLUMNS: [&str; 10] = [
    "vm_id",
    "subscription",
    "arrival_s",
    "end_s",
    "cores",
    "memory_gb",
    "vm_type",
    "class",
    "avg_cpu",
    "p95_cpu",
];
/// A column that may be missing: with which others of its subscription a VM was deployed.
const DEPLOYMENT: &str = "deployment";

/// Reads VMs; `file` is for messages. A value that is none or impossible, and two VMs with one name at the
/// same time, are refused by line and column.
pub(super) fn read(input: impl Read, file: &str) -> anyhow::Result<Vec<VmHistory>> {
    let mut table = TableReader::csv(input, file)?;
    let columns = COLUMNS.map(|name| table.column(name));
    let columns = columns.into_iter().collect::<Result<Vec<_>, _>>()?;
    let deployment = table.column(DEPLOYMENT).ok();
    let mut vms = Vec::new();

    while table.advance()? {
        let text = |column: usize| table.text(columns[column]).into_owned();
        let of = Cells { table: &table, columns: &columns };
        let vm = VmHistory {
            id: text(0),
            subscription: text(1),
            deployment: deployment.map(|column| table.text(column).into_owned()).unwrap_or_default(),
            arrival_s: of.parsed(2, "whole Unix seconds")?,
            end_s: of.maybe(3, "whole Unix seconds, or blank while it runs,")?,
            cores: of.parsed(4, "1 to 65536")?,
            memory_gb: of.parsed(5, "a number of GB")?,
            vm_type: text(6),
            class: of.class(7)?,
            avg_cpu: of.maybe(8, "a percentage from 0 to 100, or blank,")?,
            p95_cpu: of.maybe(9, "a percentage from 0 to 100, or blank,")?,
        };

        vm.check().with_context(|| format!("{file}, {}", table.place()))?;
        vms.push(vm);
    }

    if vms.is_empty() {
        bail!("{file}: no VM behind the header");
    }
    if let Some((first, second)) = vm::overlap(&vms) {
        bail!(
            "{file}, VM {}: vm_id = {}: VM {} has the same name at the same time",
            second + 1,
            vms[second].id,
            first + 1
        );
    }

    Ok(vms)
}

/// The cells of one row, by the places of [`COLUMNS`].
struct Cells<'a> {
    table: &'a TableReader<'a>,
    columns: &'a [usize],
}

impl Cells<'_> {
    fn parsed<T: std::str::FromStr>(&self, column: usize, allowed: &str) -> anyhow::Result<T> {
        let column = self.columns[column];
        let parsed = self.table.text(column).parse();
        parsed.map_err(|_| self.table.refuse(column, allowed).into())
    }

    fn maybe<T: std::str::FromStr>(&self, column: usize, allowed: &str) -> anyhow::Result<Option<T>> {
        match self.table.cell(self.columns[column]).is_missing() {
            true => Ok(None),
            false => self.parsed(column, allowed).map(Some),
        }
    }

    fn class(&self, column: usize) -> anyhow::Result<Option<VmClass>> {
        let column = self.columns[column];
        match &*self.table.text(column) {
            "user-facing" => Ok(Some(VmClass::UserFacing)),
            "non-user-facing" => Ok(Some(VmClass::NonUserFacing)),
            _ if self.table.cell(column).is_missing() => Ok(None),
            _ => Err(self.table.refuse(column, "user-facing, non-user-facing or blank").into()),
        }
    }
}

/// Writes VMs as [`read`] reads them.
pub(super) fn write(vms: &[VmHistory], output: impl Write) -> anyhow::Result<()> {
    let mut csv = csv::Writer::from_writer(output);
    csv.write_record(COLUMNS.iter().chain(&[DEPLOYMENT]))?;
    let text = |value: Option<f64>| value.map(|v| v.to_string()).unwrap_or_default();

    for vm in vms {
        csv.write_record([
            vm.id.clone(),
            vm.subscription.clone(),
            vm.arrival_s.to_string(),
            vm.end_s.map(|end| end.to_string()).unwrap_or_default(),
            vm.cores.to_string(),
            vm.memory_gb.to_string(),
            vm.vm_type.clone(),
            vm.class.map_or("", VmClass::name).to_owned(),
            text(vm.avg_cpu),
            text(vm.p95_cpu),
            vm.deployment.clone(),
        ])?;
    }

    Ok(csv.flush()?)
}

/// Takes classes from what `ballast label` wrote: columns `id` and `user_facing`. A VM that is not there
/// keeps its class. Where several VMs have had a name, the label is of the one that lived five weekdays, which
/// a labeller needs; where several did, nobody knows whose it is, and none of them gets it. How many got one,
/// and how many labels could not be given. An error names line and column.
pub(super) fn label(vms: &mut [VmHistory], input: impl Read, file: &str) -> anyhow::Result<(usize, usize)> {
    let mut table = TableReader::csv(input, file)?;
    let (id, user_facing) = (table.column("id")?, table.column("user_facing")?);
    let mut labels = BTreeMap::new();

    while table.advance()? {
        let class = match &*table.text(user_facing) {
            "true" => VmClass::UserFacing,
            "false" => VmClass::NonUserFacing,
            _ => return Err(table.refuse(user_facing, "true or false").into()),
        };

        if labels.insert(table.text(id).into_owned(), class).is_some() {
            return Err(table.refuse(id, "a VM that has no label yet").into());
        }
    }

    let mut whose: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (place, vm) in vms.iter().enumerate() {
        whose.entry(&vm.id).or_default().push(place);
    }
    let (mut told, mut doubtful) = (Vec::new(), 0);
    for (id, places) in whose {
        let Some(class) = labels.get(id) else { continue };
        let old_enough = |place: &&usize| places.len() == 1 || vms[**place].aged_s().is_some();
        match places.iter().filter(old_enough).collect::<Vec<_>>()[..] {
            [place] => told.push((*place, *class)),
            _ => doubtful += 1,
        }
    }
    told.iter().for_each(|(place, class)| vms[*place].class = Some(*class));

    Ok((told.len(), doubtful))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "vm_id,subscription,arrival_s,end_s,cores,memory_gb,vm_type,class,avg_cpu,p95_cpu\n";

    fn error(rows: &str) -> String {
        format!("{:#}", read(format!("{HEAD}{rows}").as_bytes(), "vms.csv").unwrap_err())
    }

    #[test]
    fn columns_are_found_by_name_and_blanks_are_unknown() {
        let text = "note,p95_cpu,avg_cpu,class,vm_type,memory_gb,cores,end_s,arrival_s,subscription,vm_id\n\
                    x,80.5,,user-facing,general,8,2,,1000,s1,a\n";
        let vms = read(text.as_bytes(), "vms.csv").unwrap();
        assert_eq!(vms[0].class, Some(VmClass::UserFacing));
        assert_eq!((vms[0].end_s, vms[0].avg_cpu, vms[0].p95_cpu), (None, None, Some(80.5)));
        assert_eq!((vms[0].cores, vms[0].arrival_s, vms[0].id.as_str()), (2, 1000, "a"));
    }

    #[test]
    fn what_is_written_is_read_again() {
        let options = ballast_predict::fleet::Options { vms: 300, ..Default::default() };
        let vms = ballast_predict::fleet::make(&options).vms;
        let mut text = Vec::new();
        write(&vms, &mut text).unwrap();
        assert_eq!(read(&text[..], "vms.csv").unwrap(), vms);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let good = "a,s,0,10,1,1,t,,1,2\n";
        for (rows, parts) in [
            ("a,s,x,10,1,1,t,,1,2\n", &["line 2", "arrival_s = \"x\"", "Unix seconds"][..]),
            ("a,s,0,10,1,NaN,t,,1,2\n", &["line 2", "memory_gb", "above 0"]),
            ("a,s,0,10,1,1,t,,-1,2\n", &["line 2", "avg_cpu = -1", "0 to 100"]),
            ("a,s,0,10,1,1,t,,1,inf\n", &["line 2", "p95_cpu = inf"]),
            ("a,s,0,10,1,1,t,batch,1,2\n", &["line 2", "class", "\"batch\""]),
            ("a,s,0,-10,1,1,t,,1,2\n", &["line 2", "end_s = -10", "not before"]),
            (",s,0,10,1,1,t,,1,2\n", &["line 2", "vm_id"]),
            ("a,s,0\n", &["line 2", "3 cells"]),
            ("", &["no VM"]),
        ] {
            let text = error(rows);
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }

        let text = error(&format!("{good}{good}"));
        assert!(text.contains("VM 2: vm_id = a") && text.contains("VM 1 has"), "{text}");
        let text = format!("{:#}", read(&b"vm_id,cores\n"[..], "vms.csv").unwrap_err());
        assert!(text.contains("no column is called \"subscription\""), "{text}");
    }

    #[test]
    fn labels_overrule_and_their_own_errors_are_named() {
        let mut vms = read(format!("{HEAD}a,s,0,,1,1,t,,1,2\nb,s,0,,1,1,t,,1,2\n").as_bytes(), "v").unwrap();
        let labels = "id,compare8,user_facing\na,0.3,true\nc,0.9,false\n";
        assert_eq!(label(&mut vms, labels.as_bytes(), "l").unwrap(), (1, 0));
        assert_eq!((vms[0].class, vms[1].class), (Some(VmClass::UserFacing), None));
        for (bad, part) in
            [("id,user_facing\na,yes\n", "\"yes\""), ("id,user_facing\na,true\na,true\n", "no label yet")]
        {
            let text = format!("{:#}", label(&mut vms, bad.as_bytes(), "l").unwrap_err());
            assert!(text.contains(part) && text.contains("line "), "{text}");
        }
    }

    #[test]
    fn a_name_that_came_again_inherits_no_label() {
        let labels = "id,user_facing\na,true\n";
        let of = |rows: &str| {
            let mut vms = read(format!("{HEAD}{rows}").as_bytes(), "v").unwrap();
            let given = label(&mut vms, labels.as_bytes(), "l").unwrap();
            (given, vms.iter().map(|vm| vm.class.is_some()).collect::<Vec<_>>())
        };

        // The first lived a minute: it had no week that anybody could have looked at.
        assert_eq!(of("a,s,0,60,1,1,t,,1,2\na,s,60,,1,1,t,,1,2\n"), ((1, 0), vec![false, true]));
        // Both lived long enough, and the label says not which of them it means.
        assert_eq!(of("a,s,0,2000000,1,1,t,,1,2\na,s,2000000,,1,1,t,,1,2\n"), ((0, 1), vec![false, false]));
    }

    #[test]
    fn the_deployment_may_be_told() {
        let vms = read(
            &b"deployment,vm_id,subscription,arrival_s,end_s,cores,memory_gb,vm_type,class,\
            avg_cpu,p95_cpu\nd1,a,s,0,,1,1,t,,1,2\n"[..],
            "v",
        )
        .unwrap();
        assert_eq!(vms[0].deployment, "d1");
    }
}
