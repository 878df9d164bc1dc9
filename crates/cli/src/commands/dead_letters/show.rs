//! `mainstem dead-letters show`.

use anyhow::Result;
use clap::Args;
use mainstem_flow::letter;

use super::letters::{Chosen, Letter, read};
use crate::output::{print, print_json, table};
use crate::target::Target;

/// What `dead-letters show` takes.
#[derive(Debug, Args)]
pub(crate) struct Show {
    #[command(flatten)]
    chosen: Chosen,
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
            if letter.noted().is_none() {
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
        [] => print(&format!("{} has no letters", show.chosen.topic)),
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
    let text = |name| letter.text(name).unwrap_or("-");
    let shown = |bytes: Option<&[u8]>| {
        bytes.map_or("null".into(), |bytes| String::from_utf8_lossy(bytes).into_owned())
    };
    format!(
        "source      {}\ngroup       {}\nstage       {}\nclass       {}\ndeliveries  {}\nreplayed    {}\nkey         {}\nvalue       {}\n\n{}",
        letter.shown_source(),
        text(letter::GROUP),
        text(letter::STAGE),
        text(letter::CLASS),
        text(letter::DELIVERY_COUNT),
        letter.text(letter::ROUNDS).unwrap_or("0"),
        shown(letter.record.key.as_deref()),
        shown(letter.record.value.as_deref()),
        letter.text(letter::CAUSE).unwrap_or(text(letter::MESSAGE)),
    )
}
