//! `kafka-consumer-groups` in full: listing, describing, resetting in every way, deleting.

use std::fs;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};

use super::tools::{Check, GROUPS, TOPICS, Tools, expect, words};

/// Time between the records before a point in time and those after it.
const PAUSE: Duration = Duration::from_millis(50);

/// Each check makes the topics and groups that it uses.
pub(super) const CHECKS: &[(&str, &str, Check)] = &[
    (GROUPS, "list by state and type", lists),
    (GROUPS, "describe: offsets, state and members, verbose, all groups", describes),
    (GROUPS, "reset: to-earliest, to-latest, to-current, to-offset, shift-by", resets_to_offsets),
    (GROUPS, "reset: to-datetime, by-duration", resets_to_times),
    (GROUPS, "reset: dry run, export, from-file", resets_from_file),
    (GROUPS, "reset: some partitions, all topics, all groups", resets_by_scope),
    (GROUPS, "reset, delete, delete-offsets of a group that is at work are refused", refuses_the_active),
    (GROUPS, "delete", deletes),
    (GROUPS, "delete-offsets", deletes_offsets),
];

/// A topic with these records in its one partition.
fn topic_with_records(tools: &Tools<'_>, topic: &str, records: usize) -> Result<()> {
    tools.output(TOPICS, &format!("--create --topic {topic} --partitions 1"))?;
    tools.await_output(TOPICS, "--list", &[topic])?;
    add_records(tools, topic, records)
}

fn add_records(tools: &Tools<'_>, topic: &str, records: usize) -> Result<()> {
    let lines: String = (0..records).map(|number| format!("{number}\n")).collect();
    tools.call("kafka-console-producer", &format!("--topic {topic}"), &lines)?.success()?;
    Ok(())
}

/// Resets a group, with what the tool needs to do it.
fn reset(tools: &Tools<'_>, group: &str, options: &str) -> Result<String> {
    tools.output(GROUPS, &format!("--reset-offsets --group {group} {options} --execute"))
}

/// The group's offset of a partition as the tool describes it; none where it does not.
fn offset_of(tools: &Tools<'_>, group: &str, topic: &str, partition: &str) -> Result<Option<i64>> {
    let output = tools.output(GROUPS, &format!("--describe --group {group}"))?;
    let mut lines = output.lines().map(words);
    let line = lines.find(|fields| fields.starts_with(&[group, topic, partition]));
    line.map(|fields| fields[3].parse().with_context(|| format!("the offset in:\n{output}"))).transpose()
}

fn expect_offset(tools: &Tools<'_>, group: &str, topic: &str, expected: Option<i64>) -> Result<()> {
    let found = offset_of(tools, group, topic, "0")?;
    ensure!(found == expected, "group {group} is at {found:?} of {topic}, not {expected:?}");
    Ok(())
}

fn lists(tools: &Tools<'_>) -> Result<()> {
    topic_with_records(tools, "cg-list", 1)?;
    reset(tools, "cg-listed", "--topic cg-list --to-earliest")?;
    let has = |options: &str, wanted: &[&str]| -> Result<bool> {
        let output = tools.output(GROUPS, &format!("--list {options}"))?;
        Ok(output.lines().any(|line| words(line) == wanted))
    };
    let plain: &[&str] = &["cg-listed"];
    for (options, wanted) in [
        ("", Some(plain)),
        ("--state", Some(&["cg-listed", "Empty"])),
        ("--type", Some(&["cg-listed", "Classic"])),
        ("--state --type", Some(&["cg-listed", "Classic", "Empty"])),
        ("--state Empty,Stable", Some(&["cg-listed", "Empty"])),
        ("--type classic", Some(&["cg-listed", "Classic"])),
    ] {
        let wanted = wanted.unwrap_or_default();
        ensure!(has(options, wanted)?, "--list {options} does not show {wanted:?}");
    }
    for options in ["--state Stable", "--type consumer"] {
        let output = tools.output(GROUPS, &format!("--list {options}"))?;
        ensure!(!output.contains("cg-listed"), "--list {options} printed:\n{output}");
    }
    tools.refused(GROUPS, "--list --state Asleep", "Invalid state list")
}

fn describes(tools: &Tools<'_>) -> Result<()> {
    topic_with_records(tools, "cg-describe", 3)?;
    reset(tools, "cg-described", "--topic cg-describe --to-offset 1")?;
    let describe = "--describe --group cg-described";
    let offsets = ["cg-described", "cg-describe", "0", "1", "3", "2", "-", "-", "-"];
    let line_of = |options: &str| -> Result<Vec<String>> {
        let output = tools.output(GROUPS, options)?;
        let line = output.lines().find(|line| line.starts_with("cg-described"));
        let line = line.with_context(|| format!("the group in:\n{output}"))?;
        Ok(words(line).into_iter().map(str::to_owned).collect())
    };
    ensure!(line_of(&format!("{describe} --offsets"))? == offsets);
    // With --verbose the leader's epoch comes behind the partition.
    let verbose = line_of(&format!("{describe} --offsets --verbose"))?;
    ensure!(verbose[4..7] == ["1", "3", "2"], "offsets, verbose: {verbose:?}");
    ensure!(line_of("--describe --all-groups")? == offsets);
    let state = line_of(&format!("{describe} --state"))?;
    ensure!(state.ends_with(&["Empty".into(), "0".into()]), "state: {state:?}");
    let state = line_of(&format!("{describe} --state --verbose"))?;
    ensure!(state.contains(&"Empty".to_owned()), "state, verbose: {state:?}");
    let none = "Consumer group 'cg-described' has no active members.";
    let members = tools.call(GROUPS, &format!("{describe} --members"), "")?;
    expect(&(members.out + &members.err), &[none])?;
    let active = tools.active_member("cg-describe", "cg-described")?;
    let member = ["CONSUMER-ID", "#PARTITIONS", "CURRENT-ASSIGNMENT", "cg-describe:0"];
    tools.await_output(GROUPS, &format!("{describe} --members --verbose"), &member)?;
    tools.await_output(GROUPS, &format!("{describe} --state --verbose"), &["range", "Stable"])?;
    tools.await_output(GROUPS, "--list --state Stable", &["cg-described"])?;
    let owner = line_of(&format!("{describe} --offsets --verbose"))?;
    ensure!(owner.last().is_some_and(|client| client != "-"), "the member in: {owner:?}");
    drop(active);
    Ok(())
}

fn resets_to_offsets(tools: &Tools<'_>) -> Result<()> {
    topic_with_records(tools, "cg-reset", 10)?;
    let earliest = "GROUP TOPIC PARTITION NEW-OFFSET cg-reset cg-reset 0 0";
    let printed = reset(tools, "cg-reset", "--topic cg-reset --to-earliest")?;
    ensure!(words(&printed).join(" ").ends_with(earliest), "it printed:\n{printed}");
    for (options, offset) in [
        ("--to-current", 0),
        ("--to-offset 4", 4),
        ("--shift-by 3", 7),
        ("--to-current", 7),
        ("--shift-by -5", 2),
        ("--to-latest", 10),
        // An offset that the partition does not have counts as its nearest end.
        ("--to-offset 11", 10),
        ("--shift-by -11", 0),
    ] {
        reset(tools, "cg-reset", &format!("--topic cg-reset {options}"))?;
        expect_offset(tools, "cg-reset", "cg-reset", Some(offset)).with_context(|| options.to_owned())?;
    }
    let options = "--topic cg-reset-nowhere --to-earliest";
    let missing = tools.call(GROUPS, &format!("--reset-offsets --group cg-reset {options} --execute"), "")?;
    ensure!(!missing.out.contains("cg-reset-nowhere  0"), "a topic that is not there:\n{}", missing.out);
    Ok(())
}

fn resets_to_times(tools: &Tools<'_>) -> Result<()> {
    topic_with_records(tools, "cg-times", 4)?;
    thread::sleep(PAUSE);
    let between = datetime(SystemTime::now());
    thread::sleep(PAUSE);
    add_records(tools, "cg-times", 3)?;
    let future = datetime(SystemTime::now() + Duration::from_secs(3_600));
    for (options, offset) in [
        (format!("--to-datetime {between}"), 4),
        ("--to-datetime 2020-01-01T00:00:00.000".to_owned(), 0),
        (format!("--to-datetime {future}"), 7),
        ("--by-duration PT1H".to_owned(), 0),
        ("--by-duration PT0S".to_owned(), 7),
    ] {
        reset(tools, "cg-times", &format!("--topic cg-times {options}"))?;
        expect_offset(tools, "cg-times", "cg-times", Some(offset)).context(options)?;
    }
    Ok(())
}

/// A time as the tool takes it, in UTC.
fn datetime(time: SystemTime) -> String {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, seconds) = (since.as_secs() / 86_400, since.as_secs() % 86_400);
    let (year, month, day) = date_of(days);
    let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}", since.subsec_millis())
}

/// The date so many days after 1970-01-01.
fn date_of(mut days: u64) -> (u64, u64, u64) {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 1;
    for length in lengths {
        if days < length {
            break;
        }
        days -= length;
        month += 1;
    }
    (year, month, days + 1)
}

fn resets_from_file(tools: &Tools<'_>) -> Result<()> {
    topic_with_records(tools, "cg-file", 5)?;
    reset(tools, "cg-file", "--topic cg-file --to-offset 2")?;
    let plan = "--reset-offsets --group cg-file --topic cg-file --to-latest --dry-run";
    let planned = tools.output(GROUPS, plan)?;
    ensure!(words(&planned).ends_with(&["cg-file", "cg-file", "0", "5"]), "it printed:\n{planned}");
    expect_offset(tools, "cg-file", "cg-file", Some(2))?;
    let exported = tools.output(GROUPS, &format!("{plan} --export"))?;
    ensure!(exported.trim() == "cg-file,0,5", "it exported:\n{exported}");
    let file: PathBuf = tools.file("cg-offsets.csv");
    fs::write(&file, exported.replace(",5", ",3"))?;
    reset(tools, "cg-file", &format!("--from-file {}", file.display()))?;
    expect_offset(tools, "cg-file", "cg-file", Some(3))
}

fn resets_by_scope(tools: &Tools<'_>) -> Result<()> {
    topic_with_records(tools, "cg-scope", 5)?;
    tools.output(TOPICS, "--create --topic cg-scope-many --partitions 3")?;
    tools.await_output(TOPICS, "--list", &["cg-scope-many"])?;
    reset(tools, "cg-scope", "--topic cg-scope --topic cg-scope-many:0,2 --to-earliest")?;
    for (partition, expected) in [("0", Some(0)), ("1", None), ("2", Some(0))] {
        let found = offset_of(tools, "cg-scope", "cg-scope-many", partition)?;
        ensure!(found == expected, "partition {partition}: {found:?}, not {expected:?}");
    }
    reset(tools, "cg-scope", "--all-topics --to-latest")?;
    expect_offset(tools, "cg-scope", "cg-scope", Some(5))?;
    ensure!(
        offset_of(tools, "cg-scope", "cg-scope-many", "1")?.is_none(),
        "a partition without an offset got one"
    );
    reset(tools, "cg-scope-other", "--group cg-scope --topic cg-scope --to-offset 1")?;
    expect_offset(tools, "cg-scope", "cg-scope", Some(1))?;
    expect_offset(tools, "cg-scope-other", "cg-scope", Some(1))
}

fn refuses_the_active(tools: &Tools<'_>) -> Result<()> {
    topic_with_records(tools, "cg-active", 3)?;
    let active = tools.active_member("cg-active", "cg-active")?;
    tools.await_output(GROUPS, "--describe --group cg-active --state", &["Stable"])?;
    let said = |options: &str| -> Result<String> {
        let finished = tools.call(GROUPS, &format!("{options} --group cg-active"), "")?;
        Ok(finished.out + &finished.err)
    };
    expect(&said("--reset-offsets --topic cg-active --to-earliest --execute")?, &["inactive", "Stable"])?;
    expect(&said("--delete")?, &["cg-active", "GroupNotEmptyException"])?;
    expect(&said("--delete-offsets --topic cg-active")?, &["cg-active", "GroupSubscribedToTopicException"])?;
    drop(active);
    Ok(())
}

fn deletes(tools: &Tools<'_>) -> Result<()> {
    topic_with_records(tools, "cg-delete", 1)?;
    for group in ["cg-deleted", "cg-deleted-too", "cg-kept"] {
        reset(tools, group, "--topic cg-delete --to-earliest")?;
    }
    let finished = tools.call(GROUPS, "--delete --group cg-deleted --group cg-no-such", "")?;
    let said = finished.out + &finished.err;
    expect(
        &said,
        &["'cg-no-such' could not be deleted", "GroupIdNotFoundException", "successfully: 'cg-deleted'"],
    )?;
    let said = tools.output(GROUPS, "--delete --group cg-deleted-too")?;
    expect(&said, &["Deletion of requested consumer groups ('cg-deleted-too') was successful."])?;
    let listed = tools.output(GROUPS, "--list")?;
    ensure!(!listed.contains("cg-deleted"), "it is listed yet:\n{listed}");
    expect(&listed, &["cg-kept"])
}

fn deletes_offsets(tools: &Tools<'_>) -> Result<()> {
    topic_with_records(tools, "cg-forget", 1)?;
    tools.output(TOPICS, "--create --topic cg-forget-many --partitions 2")?;
    tools.await_output(TOPICS, "--list", &["cg-forget-many"])?;
    reset(tools, "cg-forget", "--topic cg-forget --topic cg-forget-many --to-earliest")?;
    let delete = "--delete-offsets --group cg-forget";
    let said = tools.output(GROUPS, &format!("{delete} --topic cg-forget-many:1"))?;
    expect(&said, &["Request succeeded for deleting offsets from group cg-forget.", "Successful"])?;
    ensure!(offset_of(tools, "cg-forget", "cg-forget-many", "1")?.is_none(), "the offset is there yet");
    ensure!(offset_of(tools, "cg-forget", "cg-forget-many", "0")? == Some(0), "its neighbour is gone");
    tools.output(GROUPS, &format!("{delete} --topic cg-forget-many --topic cg-forget"))?;
    ensure!(offset_of(tools, "cg-forget", "cg-forget-many", "0")?.is_none(), "the offset is there yet");
    let finished = tools.call(GROUPS, "--delete-offsets --group cg-no-such --topic cg-forget", "")?;
    expect(&(finished.out + &finished.err), &["cg-forget", "GroupIdNotFoundException"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_the_tool_takes_them() {
        let at = |seconds| datetime(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00.000");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00.000");
        assert_eq!(at(1_795_298_399), "2026-11-21T21:59:59.000");
        assert_eq!(at(1_798_761_599), "2026-12-31T23:59:59.000");
    }
}
