//! `mainstem dead-letters show`.

use anyhow::Result;
use clap::Args;
use mainstem_flow::letter;

use super::filter::Filter;
use super::letters::{Chosen, Letter, read};
use crate::output::{print, print_json, print_line, shown, table};
use crate::target::Target;

/// Arguments of `dead-letters show`.
#[derive(Debug, Args)]
pub(crate) struct Show {
    #[command(flatten)]
    chosen: Chosen,
    #[command(flatten)]
    filter: Filter,
    /// At most so many letters.
    #[arg(long, short = 'n', default_value_t = 100, value_name = "N")]
    max: usize,
    /// Print a list in JSON, with the records, all causes and what was counted.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

/// Shows the letters.
pub(crate) async fn run(show: &Show) -> Result<()> {
    let admin = show.target.connect().await?;
    let mut letters = Vec::new();
    if show.max > 0 {
        let keep = |letter: Letter| {
            if letter.noted().is_none() && show.filter.passes(&letter) {
                letters.push(letter);
            }
            Ok(letters.len() < show.max)
        };
        read(&admin, show.target.config()?, &show.chosen, keep).await?;
    }
    if show.json {
        return print_json(&letters.iter().map(Letter::to_json).collect());
    }
    match &letters[..] {
        [] => print_line(&format!("{} has no letters", show.chosen.topic)),
        // One that was asked for is shown whole.
        [one] if show.chosen.offset.is_some() => print(&whole(one)),
        all => {
            let columns = ["PARTITION", ">OFFSET", "SOURCE", "STAGE", "CLASS", ">DELIVERIES", "MESSAGE"];
            print(&table(&columns, all.iter().map(row).collect()))
        }
    }
}

fn row(letter: &Letter) -> Vec<String> {
    let text = |name| letter.text(name).unwrap_or("-").to_owned();
    vec![
        letter.record.partition.partition.to_string(),
        letter.record.offset.to_string(),
        letter.shown_source(),
        text(letter::STAGE),
        text(letter::CLASS),
        text(letter::DELIVERY_COUNT),
        text(letter::MESSAGE),
    ]
}

fn whole(letter: &Letter) -> String {
    let text = |name| shown(letter.text(name).unwrap_or("-"));
    let bytes = |bytes: Option<&[u8]>| {
        bytes.map_or("null".into(), |bytes| shown(&String::from_utf8_lossy(bytes)).into_owned())
    };
    let left_out = match letter.text(letter::LEFT_OUT) {
        Some(parts) => format!("left out    {}\n", shown(parts)),
        None => String::new(),
    };
    // A cause has several lines, none of which is to be taken for one of those above.
    let cause = letter.text(letter::CAUSE).or(letter.text(letter::MESSAGE)).unwrap_or("-");
    let cause: Vec<_> = cause.lines().map(|line| format!("  {}", shown(line))).collect();
    format!(
        "source      {}\ngroup       {}\nstage       {}\nclass       {}\ndeliveries  {}\nreplayed    {}\nkey         {}\nvalue       {}\n{left_out}\n{}",
        shown(&letter.shown_source()),
        text(letter::GROUP),
        text(letter::STAGE),
        text(letter::CLASS),
        text(letter::DELIVERY_COUNT),
        shown(letter.text(letter::ROUNDS).unwrap_or("0")),
        bytes(letter.record.key.as_deref()),
        bytes(letter.record.value.as_deref()),
        cause.join("\n"),
    )
}
