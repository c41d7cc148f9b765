//! The VMs of the past, from CSV: one row each, columns found by their names.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use anyhow::{Context, bail};
use ballast_predict::{Vm, vm};
use ballast_types::VmClass;

use super::text::Table;

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

/// Reads VMs; `file` is for messages.
///
/// # Errors
/// By record (the first behind the header is 1) and column, when a value is none, or impossible, or when two
/// VMs have one name at the same time.
pub(super) fn read(input: impl Read, file: &str) -> anyhow::Result<Vec<Vm>> {
    let mut table = Table::open(input, file)?;
    let columns = table.columns(&COLUMNS)?;
    let mut vms = Vec::new();
    while let Some(record) = table.next()? {
        let cell = |column: usize| record.get(columns[column]).unwrap_or_default();
        let parsed = (|| -> anyhow::Result<Vm> {
            let vm = Vm {
                id: cell(0).to_owned(),
                subscription: cell(1).to_owned(),
                arrival_s: number(&cell, 2, "whole Unix seconds")?,
                end_s: maybe(&cell, 3, "whole Unix seconds, or blank while it runs")?,
                cores: number(&cell, 4, "1 to 65536")?,
                memory_gb: number(&cell, 5, "a number of GB")?,
                vm_type: cell(6).to_owned(),
                class: class(cell(7)).context("class")?,
                avg_cpu: maybe(&cell, 8, "a percentage from 0 to 100, or blank")?,
                p95_cpu: maybe(&cell, 9, "a percentage from 0 to 100, or blank")?,
            };
            vm.check()?;
            Ok(vm)
        })();
        vms.push(parsed.with_context(|| table.place())?);
    }
    if vms.is_empty() {
        bail!("{file}: no VM behind the header");
    }
    if let Some((first, second)) = vm::overlap(&vms) {
        bail!(
            "{file}, record {}: vm_id = {}: record {} has the same name at the same time",
            second + 1,
            vms[second].id,
            first + 1
        );
    }
    Ok(vms)
}

/// Writes VMs as [`read`] reads them.
pub(super) fn write(vms: &[Vm], output: impl Write) -> anyhow::Result<()> {
    let mut csv = csv::Writer::from_writer(output);
    csv.write_record(COLUMNS)?;
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
            vm.class.map_or("", class_name).to_owned(),
            text(vm.avg_cpu),
            text(vm.p95_cpu),
        ])?;
    }
    Ok(csv.flush()?)
}

/// A class as files and answers have it.
pub(crate) fn class_name(class: VmClass) -> &'static str {
    match class {
        VmClass::UserFacing => "user-facing",
        VmClass::NonUserFacing => "non-user-facing",
    }
}

fn number<'a, T: std::str::FromStr>(
    cell: &impl Fn(usize) -> &'a str,
    column: usize,
    allowed: &str,
) -> anyhow::Result<T> {
    let text = cell(column);
    let parsed = text.parse().ok();
    parsed.with_context(|| format!("{} = \"{text}\": {allowed} is allowed", COLUMNS[column]))
}

fn maybe<'a, T: std::str::FromStr>(
    cell: &impl Fn(usize) -> &'a str,
    column: usize,
    allowed: &str,
) -> anyhow::Result<Option<T>> {
    if cell(column).is_empty() { Ok(None) } else { number(cell, column, allowed).map(Some) }
}

fn class(text: &str) -> anyhow::Result<Option<VmClass>> {
    match text {
        "" => Ok(None),
        "user-facing" => Ok(Some(VmClass::UserFacing)),
        "non-user-facing" => Ok(Some(VmClass::NonUserFacing)),
        _ => bail!("\"{text}\": user-facing, non-user-facing or blank is allowed"),
    }
}

/// Takes classes from what `ballast label` wrote: columns `id` and `user_facing`. A VM that is not there keeps
/// its class.
///
/// # Errors
/// By record and column.
pub(super) fn label(vms: &mut [Vm], input: impl Read, file: &str) -> anyhow::Result<usize> {
    let mut table = Table::open(input, file)?;
    let columns = table.columns(&["id", "user_facing"])?;
    let mut labels = BTreeMap::new();
    while let Some(record) = table.next()? {
        let cell = |column: usize| record.get(columns[column]).unwrap_or_default();
        let class = match cell(1) {
            "true" => VmClass::UserFacing,
            "false" => VmClass::NonUserFacing,
            other => {
                bail!("{}: user_facing = \"{other}\": true or false is allowed", table.place())
            }
        };
        if labels.insert(cell(0).to_owned(), class).is_some() {
            bail!("{}: id = {}: it has a label already", table.place(), cell(0));
        }
    }
    let mut told = 0;
    for vm in vms {
        if let Some(class) = labels.get(&vm.id) {
            vm.class = Some(*class);
            told += 1;
        }
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str =
        "vm_id,subscription,arrival_s,end_s,cores,memory_gb,vm_type,class,avg_cpu,p95_cpu\n";

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
    fn what_is_wrong_is_named_with_its_record() {
        let good = "a,s,0,10,1,1,t,,1,2\n";
        for (rows, parts) in [
            ("a,s,x,10,1,1,t,,1,2\n", &["record 1", "arrival_s = \"x\"", "Unix seconds"][..]),
            ("a,s,0,10,1,NaN,t,,1,2\n", &["record 1", "memory_gb", "above 0"]),
            ("a,s,0,10,1,1,t,,-1,2\n", &["record 1", "avg_cpu = -1", "0 to 100"]),
            ("a,s,0,10,1,1,t,,1,NaN\n", &["record 1", "p95_cpu = NaN"]),
            ("a,s,0,10,1,1,t,batch,1,2\n", &["record 1", "class", "\"batch\""]),
            ("a,s,0,-10,1,1,t,,1,2\n", &["record 1", "end_s = -10", "not before"]),
            (",s,0,10,1,1,t,,1,2\n", &["record 1", "vm_id"]),
            ("a,s,0\n", &["record 1", "3 columns"]),
            ("", &["no VM"]),
        ] {
            let text = error(rows);
            assert!(parts.iter().all(|part| text.contains(part)), "{text}");
        }
        let text = error(&format!("{good}{good}"));
        assert!(text.contains("record 2: vm_id = a") && text.contains("record 1 has"), "{text}");
        let text = format!("{:#}", read(&b"vm_id,cores\n"[..], "vms.csv").unwrap_err());
        assert!(text.contains("no column subscription"), "{text}");
    }

    #[test]
    fn labels_overrule_and_their_own_errors_are_named() {
        let mut vms =
            read(format!("{HEAD}a,s,0,,1,1,t,,1,2\nb,s,0,,1,1,t,,1,2\n").as_bytes(), "v").unwrap();
        let labels = "id,compare8,user_facing\na,0.3,true\nc,0.9,false\n";
        assert_eq!(label(&mut vms, labels.as_bytes(), "l").unwrap(), 1);
        assert_eq!((vms[0].class, vms[1].class), (Some(VmClass::UserFacing), None));
        for (bad, part) in [
            ("id,user_facing\na,yes\n", "\"yes\""),
            ("id,user_facing\na,true\na,true\n", "already"),
        ] {
            let text = format!("{:#}", label(&mut vms, bad.as_bytes(), "l").unwrap_err());
            assert!(text.contains(part) && text.contains("record"), "{text}");
        }
    }
}
