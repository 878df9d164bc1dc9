//! The summary as a page of Markdown: ratios first, then goals, medians and plots.

use std::fmt::{Result, Write};

use serde_json::Value;

use crate::stats::Spread;
use crate::summary::{Cell, Row, Summary};

/// The whole page.
pub(crate) fn page(summary: &Summary) -> String {
    let mut text = String::new();
    let written = write_page(&mut text, summary);
    written.expect("a string takes all that is written to it");
    text
}

fn write_page(text: &mut String, summary: &Summary) -> Result {
    write_head(text, &summary.about)?;
    for (run, error) in &summary.failed {
        writeln!(text, "\n**{run} failed**: {}", error.replace('\n', " "))?;
    }
    for (run, cpus) in &summary.disturbed {
        writeln!(text, "\n**{run} was disturbed**: others used {cpus:.2} CPUs.")?;
    }
    summary.cells.iter().try_for_each(|cell| write_cell(text, cell))
}

fn write_head(text: &mut String, about: &Value) -> Result {
    let machine = &about["machine"];
    let word = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    writeln!(text, "# Benchmark, {}\n", word(&about["date"]))?;
    writeln!(
        text,
        "Machine: {}, {} CPUs, {}, Linux {}. Commit {}.",
        word(&machine["cpu"]),
        machine["cpus"],
        word(&machine["memory"]),
        word(&machine["kernel"]),
        word(&about["commit"]),
    )?;
    if let Some(kafka) = about["kafka"].as_object() {
        writeln!(text, "Kafka {}, {}, heap 1 GiB, G1.", word(&kafka["version"]), word(&kafka["java"]))?;
    }
    writeln!(
        text,
        "{} interleaved rounds, warm-up {} s, window {} s. Ratios are of medians, [in brackets] the range over the \
         rounds.",
        about["rounds"], about["warmup_s"], about["window_s"]
    )?;
    if about["memory_filled"] == true {
        writeln!(text, "\nFiles filled the memory before each run (--fill-memory).")?;
    }
    if about["measured_on_a_busy_machine"] == true {
        writeln!(text, "\nMeasured with --force: whether the machine was busy was not looked at.")?;
    }
    Ok(())
}

fn write_cell(text: &mut String, cell: &Cell) -> Result {
    writeln!(text, "\n## {}, {}\n", cell.workload, cell.durability)?;
    write_ratios(text, cell)?;
    write_goals(text, cell)?;
    write_values(text, cell)?;
    if !cell.plots.is_empty() {
        writeln!(text)?;
    }
    cell.plots.iter().try_for_each(|plot| writeln!(text, "![{plot}](plots/{plot}.svg)"))
}

fn write_ratios(text: &mut String, cell: &Cell) -> Result {
    let rows: Vec<&Row> = cell.rows.iter().filter(|row| !row.ratios.is_empty()).collect();
    let mut pairs: Vec<(&str, &str)> = Vec::new();
    for ratio in rows.iter().flat_map(|row| &row.ratios) {
        let pair = (ratio.system.as_str(), ratio.peer.as_str());
        if !pairs.contains(&pair) {
            pairs.push(pair);
        }
    }
    if pairs.is_empty() {
        return Ok(());
    }
    let columns = pairs.iter().map(|(system, peer)| format!("{system} / {peer}"));
    write_row(text, "ratio", columns)?;
    writeln!(text, "|---|{}", "---|".repeat(pairs.len()))?;
    for row in rows {
        let cells = pairs.iter().map(|&(system, peer)| {
            let ratio = row.ratios.iter().find(|ratio| ratio.system == system && ratio.peer == peer);
            ratio.map_or_else(String::new, |ratio| {
                let Spread { median, min, max } = ratio.ratio;
                format!("{median:.3}x [{min:.3}-{max:.3}]")
            })
        });
        write_row(text, row.title, cells)?;
    }
    writeln!(text)
}

fn write_goals(text: &mut String, cell: &Cell) -> Result {
    if cell.goals.is_empty() {
        return Ok(());
    }
    writeln!(text, "| goal | system | measured | |\n|---|---|---|---|")?;
    for line in &cell.goals {
        let value = if line.is_ratio { format!("{:.3}x", line.value) } else { format!("{:.2}", line.value) };
        let verdict = if line.is_reached { "reached" } else { "**missed**" };
        writeln!(text, "| {} | {} | {value} | {verdict} |", line.goal, line.system)?;
    }
    writeln!(text)
}

fn write_values(text: &mut String, cell: &Cell) -> Result {
    write_row(text, "median [range]", cell.systems.iter().cloned())?;
    writeln!(text, "|---|{}", "---|".repeat(cell.systems.len()))?;
    for row in &cell.rows {
        let digits = row.digits;
        let cells = row.values.iter().map(|spread| match spread {
            Some(Spread { median, min, max }) => format!("{median:.digits$} [{min:.digits$}-{max:.digits$}]"),
            None => String::new(),
        });
        write_row(text, row.title, cells)?;
    }
    Ok(())
}

fn write_row(text: &mut String, title: &str, cells: impl Iterator<Item = String>) -> Result {
    write!(text, "| {title} |")?;
    for cell in cells {
        write!(text, " {cell} |")?;
    }
    writeln!(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::{summarize, tests::results};

    #[test]
    fn ratios_come_first_then_goals_then_values_then_plots() {
        let mut summary = summarize(&results());
        summary.cells[0].plots.push("small-ack".to_owned());
        let text = page(&summary);
        let lines = [
            "**small-msg-saturate, page-cache, round 3, kafka failed**: it died",
            "**small-msg-saturate, page-cache, round 2, mainstem was disturbed**: others used 0.40 CPUs.",
            "## small-msg-saturate, page-cache",
            "| ratio | mainstem / kafka |",
            "| messages/s | 3.409x [3.333-3.500] |",
            "| goal | system | measured | |",
            "| messages/s >= 3x kafka | mainstem | 3.409x | reached |",
            "| VmHWM, MiB <= 16 | mainstem | 12.00 | reached |",
            "| median [range] | kafka | mainstem |",
            "| messages/s | 11000 [10000-12000] | 36000 [35000-40000] |",
            "| CPUs used by others | 0.01 [0.01-0.01] | 0.01 [0.01-0.40] |",
            "![small-ack](plots/small-ack.svg)",
        ];
        let found = lines.map(|line| text.lines().position(|other| other == line));
        assert!(found.iter().all(Option::is_some) && found.is_sorted(), "{found:?} in\n{text}");
    }
}
